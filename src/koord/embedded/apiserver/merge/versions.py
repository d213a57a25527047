"""An object seen at the API version in which a manager last wrote it."""

from __future__ import annotations

from collections.abc import Callable

from koord.api.merge.outcome import Obj
from koord.embedded.apiserver.schema.node import Node

# (object, api version) -> the object and its node at that version, or None when the version is not served any more.
Convert = Callable[[Obj, str], "tuple[Obj, Node] | None"]


class Versions:
    """With no converter every version has the shape of the one at hand, which is true of all kinds with one version."""

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
