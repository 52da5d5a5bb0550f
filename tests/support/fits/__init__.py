"""Training programs drawn at random, run on ranks and in one process.

`program.py` draws one as a set of choices, `source.py` writes it as a script of a few
lines, `jobs.py` is what differs between ranks and one process in such a script,
`running.py` runs it on both and compares, `shrinking.py` makes a failing one small.
`python -m support.fits --help` draws many.
"""
