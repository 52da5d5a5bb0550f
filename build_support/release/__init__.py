"""Builds and checks what a release consists of; docs/releasing.md says how."""
