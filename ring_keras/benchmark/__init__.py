"""How fast collectives are, on the ranks of a real job.

    ringrun -np 4 python -m ring_keras.benchmark allreduce --max-bytes 256M

`python -m ring_keras.benchmark --help` lists the options.
"""
