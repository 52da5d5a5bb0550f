"""How ranks that srun, mpirun and the like have started find each other.

Nobody tells such ranks where the job's store is, as ringrun would. Rank 0 starts it,
in a process of its own, and tells the others by a way that only their user can read.
"""

from ring_keras.schedulers.store_options import store_options

__all__ = ["store_options"]
