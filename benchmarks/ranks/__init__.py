"""What the measured processes run, each in its own package's environment.

They import nothing of the rest of `benchmarks`, and only what their package
brings.
"""
