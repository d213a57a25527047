"""The admission chain between a decoded request and the store: mutating plugins, then validating ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from koord.embedded.apiserver.catalog import ServedResource

AdmissionOperation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class AdmissionAttributes(msgspec.Struct, eq=False):
    """One write as admission sees it. Mutating plugins change `obj` in place or set another object."""

    operation: AdmissionOperation
    resource: ServedResource
    name: str
    namespace: str
    obj: dict[str, Any] | None  # private to this request; None for DELETE
    old_obj: dict[str, Any] | None  # shared with the store: never change it; None for CREATE
    subresource: str = ""
    dry_run: bool = False
    user: str = ""
    options: dict[str, Any] = {}  # CreateOptions, UpdateOptions, ... in their JSON shape
    warnings: list[str] = []  # go out as Warning headers


class AdmissionPlugin(Protocol):
    """Admits or refuses a request by raising StatusError.

    A plugin that really waits (a webhook) makes the write check again afterwards that nobody else changed
    the object; one that does not wait costs nothing but its own work.
    """

    async def admit(self, attributes: AdmissionAttributes) -> None: ...


class AdmissionChain:
    def __init__(self, mutating: Sequence[AdmissionPlugin] = (), validating: Sequence[AdmissionPlugin] = ()) -> None:
        self.mutating = tuple(mutating)
        self.validating = tuple(validating)

    async def mutate(self, attributes: AdmissionAttributes) -> None:
        for plugin in self.mutating:
            await plugin.admit(attributes)

    async def validate(self, attributes: AdmissionAttributes) -> None:
        for plugin in self.validating:
            await plugin.admit(attributes)
