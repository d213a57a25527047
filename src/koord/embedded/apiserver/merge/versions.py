"""This module decides who owns which field after a create, an update or a patch.

Server-side apply builds on it.

It also views an object at the API version in which a manager last wrote it, and detects writes that change
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api.merge.outcome import Obj
from koord.embedded.apiserver.schema.node import Node

# (object, api version) -> the object and its node at that version, or None when the version is not served any more.
Convert = Callable[[Obj, str], "tuple[Obj, Node] | None"]


class Versions:
    """ObjectVersions views objects at other API versions; without a converter every version has the same shape."""

    def __init__(self, api_version: str, node: Node, convert: Convert | None) -> None:
        self.api_version = api_version
        self.node = node
        self._convert = convert

    def same(self, api_version: str) -> bool:
        return api_version == self.api_version or self._convert is None

    def at(self, obj: Obj, api_version: str) -> tuple[Obj, Node] | None:
        if self._convert is None or obj.get("apiVersion") == api_version:
            return obj, self.node
        return self._convert(obj, api_version)
