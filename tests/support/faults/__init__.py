"""Faults of processes and of links: kinds of them, the draw, and what ranks do."""
