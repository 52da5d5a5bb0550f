"""`ringrun --check-build`: whether hosts can run a job, and how fast."""
