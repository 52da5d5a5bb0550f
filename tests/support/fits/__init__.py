"""Training programs drawn at random, run on ranks and in one process.

`program.py` draws one as a set of choices that `rules.py` lets go together;
`source.py` and `model_source.py` write it as a script of a few lines. What differs
between ranks and one process in such a script, its `job`, is in `ranks.py` and
`alone.py`; `killed.py` and `interruptions.py` end ranks. `running.py` runs it on both
and compares, `campaign.py` runs many on ranks that stay alive, and makes a failing one
small. `python -m support.fits --help` draws many.
"""
