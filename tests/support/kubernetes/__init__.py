"""A chart's pods, run as processes of this machine."""
