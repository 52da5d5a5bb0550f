"""Collectives on plain values of Python and on arrays: they need no framework."""
