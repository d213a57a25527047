"""The context of a request: the parts of the server that a verb may use, the request, and its resource path.

The admission chain stands between a decoded request and the store: mutating plugins, then validating ones.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.store.collection import ResourceCollection, StoreRecord
from koord.embedded.apiserver.store.object_store import EventExpiry, ObjectStore
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import Clock
from koord.values import timestamp
from koord.values.names import SAFE_NAME_ALPHABET

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


class MetadataGenerator:
    """Generates timestamps, uids and name suffixes for new objects; a seeded source makes a run repeatable."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self._cached_second = -1
        self._cached_text = ""

    def now(self) -> str:
        """Return the time in RFC 3339 with whole seconds; the text is made once a second."""
        second = int(self._clock.time())
        if second != self._cached_second:
            self._cached_second = second
            self._cached_text = timestamp.unix_text(second)
        return self._cached_text

    def uid(self) -> str:
        bits = f"{self._chance.getrandbits(128):032x}"
        variant = "89ab"[int(bits[16], 16) & 3]
        return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-{variant}{bits[17:20]}-{bits[20:]}"

    def name_suffix(self) -> str:
        return "".join(self._chance.choices(SAFE_NAME_ALPHABET, k=5))


class ServerDeps(msgspec.Struct, eq=False):
    store: ObjectStore
    catalog: ResourceCatalog
    clock: Clock
    chance: random.Random
    metadata_generator: MetadataGenerator
    admission: AdmissionChain
    expiry: EventExpiry


class RequestContext(msgspec.Struct, eq=False):
    """One request for one resource. `namespace` is "" for cluster-scoped resources and lists over all namespaces."""

    resource: ServedResource
    namespace: str
    name: str
    subresource: str
    request: ApiRequest
    track_managed_fields: bool  # whether managedFields are kept for what this client writes
    warnings: list[str]

    def collection(self, deps: ServerDeps) -> ResourceCollection:
        return deps.store.collection(self.resource.storage)


class WriteResult(msgspec.Struct, frozen=True):
    """The result of a write: the object as stored, or as it would have been (dry run, final deletion)."""

    status: int
    record: StoreRecord | None = None
    plain: Obj | None = None  # in the served version, when there is no record


class ResourcePath(msgspec.Struct, frozen=True):
    """A path below a group-version. `namespace` is None when the path has no namespaces segment at all."""

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    rest: str = ""  # what follows a subresource (proxy paths)
    watch: bool = False  # the old /watch/ prefix


@functools.lru_cache(maxsize=16_384)
def parse_resource_path(path: str) -> ResourcePath | None:
    """Parse a resource path; return None for every other path (discovery, health, unknown roots)."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    elif rest[0] == "namespaces" and len(rest) == 2 and "//" in path:
        namespace, rest = "", rest[1:]  # "/namespaces//pods" means all namespaces
    return ResourcePath(
        group,
        version,
        rest[0],
        namespace,
        rest[1] if len(rest) > 1 else "",
        rest[2] if len(rest) > 2 else "",
        "/".join(rest[3:]),
        watch,
    )
