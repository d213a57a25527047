"""Which resource names are counted on nodes beside cpu, memory and ephemeral storage, by Kubernetes' rules."""

from __future__ import annotations

from functools import lru_cache

from koord.api.pod_resources import HUGE_PAGES_PREFIX
from koord.api.resource_name import CPU, EPHEMERAL_STORAGE, MEMORY
from koord.values import names

_NATIVE = "kubernetes.io/"
_QUOTA_PREFIX = "requests."
_ATTACHABLE_PREFIX = "attachable-volumes-"

# In the order in which refusals name them.
BUILT_IN = (CPU, MEMORY, EPHEMERAL_STORAGE)


@lru_cache(maxsize=4096)
def is_extended(name: str) -> bool:
    """Outside of Kubernetes' own domain: what `ignoredResources` and `ignoredResourceGroups` can name."""
    if "/" not in name or _NATIVE in name or name.startswith(_QUOTA_PREFIX):
        return False
    return not names.qualified_name(f"{_QUOTA_PREFIX}{name}")


@lru_cache(maxsize=4096)
def is_scalar(name: str) -> bool:
    """Counted as a plain number when a pod asks for it, and ignored otherwise."""
    return name.startswith((HUGE_PAGES_PREFIX, _ATTACHABLE_PREFIX)) or _NATIVE in name or is_extended(name)


def is_counted(name: str) -> bool:
    return name in BUILT_IN or is_scalar(name)
