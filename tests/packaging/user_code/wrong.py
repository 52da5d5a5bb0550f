"""Mistakes that type checkers find: each line that has one says so."""

import numpy as np

import ring_keras as ring

ring.init(3)  # wrong: a number is no list of process sets
ring.alreduce(np.ones(3))  # wrong: there is no such name
ring.allreduce(np.ones(3), op=7)  # wrong: an int is no op
ring.allreduce(np.ones(3), "sum", "name")  # wrong: names are given by keyword
ring.broadcast(np.ones(3), root_rank="first")  # wrong: a rank is a number
rank: str = ring.rank()  # wrong: it is a number
ring.DistributedOptimizer("adam", bucket_size_bytes="64M")  # wrong: bytes are a number
ring.callbacks.LearningRateWarmup()  # wrong: base_lr is missing
ring.callbacks.Warmup(0.1)  # wrong: there is no such callback
ring.run(print, ["x"])  # wrong: np is missing
ring.predict(batch_size=3)  # wrong: model and data are missing
ring.ProcessSet(4)  # wrong: one rank is no list of ranks
ring.agree_on(3).upper()  # wrong: an int, as what was agreed on
ring.run(len, ["x"], np=2)[0].upper()  # wrong: the function's results are ints
ring.stats().ranks  # wrong: there is no such field
