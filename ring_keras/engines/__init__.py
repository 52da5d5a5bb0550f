"""What jobs on Ray, Spark and Dask have in common; see docs/design/0032-engines.md."""
