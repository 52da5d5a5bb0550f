"""What is looked at on each host: one check in each file."""
