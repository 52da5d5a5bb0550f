"""What is compared, and measured, between hosts."""
