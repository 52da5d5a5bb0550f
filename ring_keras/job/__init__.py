"""The job: who its ranks are, and what they have agreed on."""
