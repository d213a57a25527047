"""This module says which resources are counted on nodes, and computes what a node has and a pod would use of
each.

A resource is scored on a node that has some of it; one that is not built in only if the pod requests it.
"""

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
    """Return whether the resource is outside of Kubernetes' own domain, as `ignoredResources` and
    `ignoredResourceGroups` need.
    """
    if "/" not in name or _NATIVE in name or name.startswith(_QUOTA_PREFIX):
        return False
    return not names.qualified_name(f"{_QUOTA_PREFIX}{name}")


@lru_cache(maxsize=4096)
def is_scalar(name: str) -> bool:
    """Return whether the resource is counted as a plain number when a pod requests it, and ignored otherwise."""
    return name.startswith((HUGE_PAGES_PREFIX, _ATTACHABLE_PREFIX)) or _NATIVE in name or is_extended(name)


def is_counted(name: str) -> bool:
    return name in BUILT_IN or is_scalar(name)
