"""All collectives of all ranks in one file, for Perfetto or Chrome."""
