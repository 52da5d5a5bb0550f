"""Takes the place of `horovod.spark.common`: of its modules, what scripts import."""
