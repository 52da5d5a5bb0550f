"""Takes the place of `horovod.common`: of its modules, what scripts import."""
