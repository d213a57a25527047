"""Kinds that are posted and acted on but never kept (Binding, Eviction, Scale), described like those that are."""

from __future__ import annotations

import functools

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.schema.builtin import builtin
from koord.embedded.apiserver.schema.decoding import decode


@functools.cache
def _errand(group: str, version: str, kind: str, like: str = "") -> ServedResource:
    """`like`: the version whose fields these are, when its own is no longer served."""
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
    """The server still takes the old version, though it says nowhere that it does."""
    return _errand("policy", "v1", "Eviction"), _errand("policy", "v1beta1", "Eviction", like="v1")


def scale() -> ServedResource:
    return _errand("autoscaling", "v1", "Scale")
