"""The composition root: flags to config, config to programs. Only this package reads argv and the environment."""
