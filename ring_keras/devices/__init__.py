"""Which device each rank trains on."""
