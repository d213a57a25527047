"""Write status patches: only what changed, and only when something changed."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.meta import Object
from koord.api.model import to_dict
from koord.api.resource import Resource
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.kube.verb import Plain

O = TypeVar("O", bound=Object)  # noqa: E741  an object


def difference(old: msgspec.Struct, new: msgspec.Struct) -> Plain:
    """Return the merge patch from one status to another. A number that falls to nothing is written as 0, not
    removed.
    """
    before, after = to_dict(old), to_dict(new)
    patch: Plain = {key: value for key, value in after.items() if before.get(key) != value}
    for key, value in before.items():
        if key not in after:
            patch[key] = 0 if _number(value) else None
    for key, value in patch.items():
        # A map is merged into the old one, so entries that left it must be named.
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            patch[key] = {**{gone: None for gone in before[key] if gone not in value}, **value}
    return patch


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


async def write_status(
    client: Client, resource: Resource[O], obj: O, patch: Plain, *, exactly: bool = False
) -> O | Refused | None:
    """Patch the status; return None when there was nothing to write. `exactly`: only over the version that was
    read.
    """
    if not patch:
        return None
    meta = obj.metadata
    return await client.patch(
        resource,
        meta.name,
        {"status": patch},
        meta.namespace or None,
        kind="merge",
        subresource="status",
        uid=meta.uid,
        resource_version=meta.resource_version if exactly else None,
    )
