"""What marks a row as none of the data."""

__all__ = ["PADDING_WEIGHT"]

PADDING_WEIGHT = -0.0
"""The sample weight of a copy that fills up a rank's part; its sign tells it from 0."""
