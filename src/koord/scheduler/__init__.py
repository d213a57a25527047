"""koord-scheduler: where each pod goes, and why. `state` holds the cluster, `framework` runs plugins over it."""
