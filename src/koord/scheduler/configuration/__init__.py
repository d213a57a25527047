"""Turn a KubeSchedulerConfiguration into profiles: read the file, check it against the plugins, make them."""

from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration, effective_configuration, load_configuration
from koord.scheduler.configuration.unsupported import without_unsupported_plugins

__all__ = [
    "CompletedConfig",
    "dump_configuration",
    "effective_configuration",
    "load_configuration",
    "without_unsupported_plugins",
]
