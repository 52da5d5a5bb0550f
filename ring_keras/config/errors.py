"""What is raised where the environment is wrong."""

from ring_keras._codes import CodedMixin

__all__ = ["ConfigError"]


class ConfigError(CodedMixin, ValueError):
    """An environment variable, or the token file, is not what it must be."""
