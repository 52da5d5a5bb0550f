"""This host among others."""
