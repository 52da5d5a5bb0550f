"""`ringrun --check-build`: whether this host, or several, can run a job, and how fast."""
