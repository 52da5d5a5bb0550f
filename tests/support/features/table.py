"""Measures features and writes the table in docs/keras.md.

`python -m support.features.table [GROUP...]`, with tests/ in PYTHONPATH, measures
the groups whose name contains one of the words, all by default; the others keep
their lines.
"""

from __future__ import annotations

from pathlib import Path

SIZES = (2, 3)
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "keras.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
