"""Joining a job and leaving it: the rooms that take part, in their order."""
