"""Kinds that are posted and acted on but never stored: Binding, Eviction, Scale, and the access and token
reviews.
"""

from __future__ import annotations

import functools

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.schema.builtin import builtin
from koord.embedded.apiserver.schema.decoding import decode


@functools.cache
def _errand(group: str, version: str, kind: str, like: str = "") -> ServedResource:
    """Describe a kind that is not stored. `like` is the version whose fields it has, when its own is no longer
    served.
    """
    node = builtin().node_for(group, like or version, kind)
    assert node is not None, f"{kind} is built in"
    return ServedResource(
        group=group,
        version=version,
        kind=kind,
        plural=f"{kind.lower()}s",
        node=node,
        decode=functools.partial(decode, node=node),
    )


def bindings() -> tuple[ServedResource, ...]:
    return (_errand("", "v1", "Binding"),)


def evictions() -> tuple[ServedResource, ...]:
    """Return the versions of Eviction. The server still takes the old one, though discovery does not list it."""
    return _errand("policy", "v1", "Eviction"), _errand("policy", "v1beta1", "Eviction", like="v1")


def scale() -> ServedResource:
    return _errand("autoscaling", "v1", "Scale")
