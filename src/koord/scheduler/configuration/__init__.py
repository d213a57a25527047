"""Turn a KubeSchedulerConfiguration into profiles: read the file, check it against the plugins, make them."""
