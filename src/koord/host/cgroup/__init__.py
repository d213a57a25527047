"""The cgroup file system of both versions: layout, knobs, their notation, and readers of usage."""
