"""This package is the composition root: flags to config, config to programs. Only it reads argv and the environment."""
