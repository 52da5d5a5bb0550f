"""Our collectives and training beside those of other packages, in one run.

`python -m benchmarks` from the root of the repository; README.md says what it
measures.
"""
