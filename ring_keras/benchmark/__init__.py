"""How fast collectives are, on the ranks of a real job.

    ringrun -np 4 ring benchmark allreduce --max-bytes 256M

`ring benchmark --help` lists the options.
"""
