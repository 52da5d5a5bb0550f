"""PyTorch's own tests of c10d back ends, run by the back end ring: how many pass.

`python -m c10d_share --ranks 4`, in an environment with PyTorch, expecttest and
hypothesis, and with `tests` on its path. Prints Markdown. `--backend gloo` runs them by
PyTorch's own back end.
"""
