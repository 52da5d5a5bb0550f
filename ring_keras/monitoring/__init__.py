"""What the ranks measure of themselves, and what follows from it."""
