"""What init() and shutdown() do for each of Keras's back ends: a package for each.

`ring_keras.lifecycle.side` loads the one that a process needs, and says what it has.
"""
