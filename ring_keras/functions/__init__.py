"""Functions of a script or a notebook, as the ranks of a job."""
