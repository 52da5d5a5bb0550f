"""What the environment tells ring_keras: the `RING_KERAS_*` variables, and others'.

Only these files read the environment. They import no TensorFlow, so that the launcher
can use them.
"""

from ring_keras.config.errors import ConfigError
from ring_keras.config.keras_backend import (
    KerasBackend,
    keras_backend,
    prefer_keras_backend,
    settle_keras_backend,
)
from ring_keras.config.openssl import share_openssl
from ring_keras.config.readers import split_address
from ring_keras.config.scheduled_rank import (
    ScheduledRank,
    is_slurm_task,
    scheduled_rank,
)
from ring_keras.config.settings import (
    HEARTBEAT_S,
    TUNING_SETTINGS,
    Config,
    Variable,
    variables,
)
from ring_keras.config.slurm import expand_counts, expand_nodes
from ring_keras.config.surroundings import (
    cache_directory,
    inherited_environment,
    replace_environment,
    threads_of_rank,
)
from ring_keras.config.token import read_token

__all__ = [
    "HEARTBEAT_S",
    "TUNING_SETTINGS",
    "Config",
    "ConfigError",
    "KerasBackend",
    "ScheduledRank",
    "Variable",
    "cache_directory",
    "expand_counts",
    "expand_nodes",
    "inherited_environment",
    "is_slurm_task",
    "keras_backend",
    "prefer_keras_backend",
    "read_token",
    "replace_environment",
    "scheduled_rank",
    "settle_keras_backend",
    "share_openssl",
    "split_address",
    "threads_of_rank",
    "variables",
]
