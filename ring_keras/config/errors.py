"""What is raised where the environment is wrong."""

__all__ = ["ConfigError"]


class ConfigError(ValueError):
    """An environment variable, or the token file, is not what it must be."""
