"""The context of every controller: a client, shared caches, time, randomness, an event recorder, status patches, and
the kinds that the server serves.

Pods of one template have equal specs but for their node: each distinct spec is kept once, to save memory.

Expectations: what a controller did that its cache does not show yet, so that it is not done twice or undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod import Pod, PodSpec
from koord.api.kubernetes.resource import Resource
from koord.api.model import to_dict
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import Clock

# An event that has not come by then was lost; looking again with what is known is better than waiting for it.
EXPECTATION_TIMEOUT_S = 300.0


class _Pending(msgspec.Struct, kw_only=True):
    since: float
    made: set[str]
    gone: set[str]
    in_flight: int = 0
    early: set[str]  # seen while a create was under way, perhaps before its answer


class ControllerExpectations:
    """Tracks by owner UID which new objects must still appear in the cache, and which deleted ones must leave."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: dict[str, _Pending] = {}

    def fulfilled(self, owner: str) -> bool:
        awaited = self._awaited.get(owner)
        if awaited is None:
            return True
        if awaited.in_flight == 0 and self._clock.monotonic() - awaited.since >= EXPECTATION_TIMEOUT_S:
            del self._awaited[owner]
            return True
        return False

    def pending_deletions(self, owner: str) -> frozenset[str]:
        """Return the UIDs that were deleted and may still look alive in the cache."""
        awaited = self._awaited.get(owner)
        return frozenset(awaited.gone) if awaited is not None else frozenset()

    def expect_creation(self, owner: str) -> None:
        """Note that a create is about to be sent; `created` or `creation_failed` must follow."""
        self._entry(owner).in_flight += 1

    def created(self, owner: str, uid: str) -> None:
        awaited = self._entry(owner)
        if uid not in awaited.early:
            awaited.made.add(uid)
        self._request_done(owner, awaited)

    def creation_failed(self, owner: str) -> None:
        self._request_done(owner, self._entry(owner))

    def expect_deletion(self, owner: str, uid: str) -> None:
        self._entry(owner).gone.add(uid)

    def deletion_failed(self, owner: str, uid: str) -> None:
        self.observed_deletion(owner, uid)

    def observed(self, owner: str, uid: str) -> None:
        """Note that the cache shows the object, or showed it."""
        awaited = self._awaited.get(owner)
        if awaited is None:
            return
        if awaited.in_flight:
            awaited.early.add(uid)
        awaited.made.discard(uid)
        self._drop_if_met(owner, awaited)

    def observed_deletion(self, owner: str, uid: str) -> None:
        """Note that the cache shows the object as gone or terminating."""
        awaited = self._awaited.get(owner)
        if awaited is not None:
            awaited.gone.discard(uid)
            self.observed(owner, uid)

    def forget(self, owner: str) -> None:
        """Drop the expectations of an owner that is gone."""
        self._awaited.pop(owner, None)

    def __len__(self) -> int:
        return len(self._awaited)

    def _entry(self, owner: str) -> _Pending:
        awaited = self._awaited.get(owner)
        if awaited is None:
            awaited = _Pending(since=0.0, made=set(), gone=set(), early=set())
            self._awaited[owner] = awaited
        awaited.since = self._clock.monotonic()
        return awaited

    def _request_done(self, owner: str, awaited: _Pending) -> None:
        awaited.in_flight = max(0, awaited.in_flight - 1)
        if awaited.in_flight == 0:
            awaited.early.clear()
        self._drop_if_met(owner, awaited)

    def _drop_if_met(self, owner: str, awaited: _Pending) -> None:
        if not awaited.made and not awaited.gone and not awaited.in_flight:
            del self._awaited[owner]


class WrittenVersions:
    """Remembers by UID the resourceVersion of the last write. Versions of one server are numbers that grow."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def record(self, obj: Object) -> None:
        version = _version_number(obj.metadata.resource_version)
        if version > self._versions.get(obj.metadata.uid, 0):
            self._versions[obj.metadata.uid] = version

    def is_stale(self, obj: Object) -> bool:
        """Return whether the cached object is older than our last write, whose event will trigger a new sync."""
        version = self._versions.get(obj.metadata.uid)
        if version is None:
            return False
        if _version_number(obj.metadata.resource_version) >= version:
            del self._versions[obj.metadata.uid]
            return False
        return True

    def forget(self, uid: str) -> None:
        self._versions.pop(uid, None)


def _version_number(version: str) -> int:
    return int(version) if version.isdecimal() else 0


K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound=Object)  # noqa: E741  an object

DEFAULT_WORKERS = 5
# Timers may fire a hair early; a moment that close to the next second is that second.
_TIMER_SLACK_S = 0.001


class ControllerContext(msgspec.Struct, frozen=True):
    client: Client
    informers: InformerFactory
    clock: Clock
    recorder: EventRecorder
    seed: int
    pod_specs: PodSpecInterner
    root_ca: str = ""  # PEM of the authority behind the API server's certificate; empty: nobody reaches it by TLS

    def pods(self) -> Informer[Pod]:
        """Return the one informer of pods that all controllers share."""
        return self.informers.for_resource(PODS, transform=self.pod_specs.intern)

    def rng_for(self, who: str) -> Random:
        """Return a random source for one controller: what it draws does not change what another gets."""
        return Random(f"{self.seed} {who}")

    def now(self) -> datetime:
        """Return the time in whole seconds, as the API writes times: a time that was stored reads back equal."""
        return datetime.fromtimestamp(int(self.clock.time() + _TIMER_SLACK_S), UTC)

    async def run_controller(
        self,
        name: str,
        queue: WorkQueue[K],
        reconcile: Callable[[K], Awaitable[ReconcileResult]],
        needs: Sequence[Informer[Any]],
        workers: int = DEFAULT_WORKERS,
    ) -> None:
        """Reconcile keys until cancelled, once `needs` have synced: an unsynced cache looks like deletions."""
        for informer in needs:
            await informer.wait_for_sync()
        await Controller(name, queue, reconcile, workers=workers).run()

    async def update_status(
        self,
        resource: Resource[O],
        obj: O,
        patch: Unstructured,
        *,
        exactly: bool = False,
        written: WrittenVersions | None = None,
    ) -> ReconcileResult | None:
        """Patch the status and note its version in `written`. Return None to go on, or how the sync ends."""
        answer = await patch_status(self.client, resource, obj, patch, exactly=exactly)
        if isinstance(answer, ApiError):
            return Done() if answer.not_found else Requeue(answer.message)
        if answer is not None and written is not None:
            written.record(answer)
        return None


def sync_result(refused: ApiError | None, wait_s: float | None = None) -> ReconcileResult:
    """Return how a sync ends: with a retry of what was refused, after a wait, or for good."""
    if refused is not None:
        return Requeue(refused.message)
    return Done() if wait_s is None else RequeueAfter(wait_s)


def error_unless_gone(answer: object) -> ApiError | None:
    """Return the error of a write. There is none where the object is gone or another one has its name."""
    return answer if isinstance(answer, ApiError) and not answer.not_found and not answer.conflict else None


class WorkloadController(Protocol):
    """One controller: it registers with the informers when it is made, and works while `run` runs."""

    name: str

    async def run(self) -> None: ...


def seconds_until(moment: datetime, now: datetime) -> float:
    return (moment - now).total_seconds()


# A cluster where every pod differs gains nothing from the table, so it must not grow with the pods either.
MAX_INTERNED_SPECS = 4096


class PodSpecInterner:
    """Interns pod specs; `intern` is the transform of an informer."""

    def __init__(self) -> None:
        self._known: dict[bytes, PodSpec] = {}

    def intern(self, pod: Pod) -> Pod:
        spec = pod.spec
        homeless = msgspec.structs.replace(spec, node_name="")
        known = self._known.setdefault(msgspec.msgpack.encode(homeless), homeless)
        if len(self._known) > MAX_INTERNED_SPECS:
            self._known.clear()
        placed = msgspec.structs.replace(known, node_name=spec.node_name) if spec.node_name else known
        return msgspec.structs.replace(pod, spec=placed)


def status_patch(old: msgspec.Struct, new: msgspec.Struct) -> Unstructured:
    """Return the merge patch from one status to another. A number that falls to nothing is written as 0."""
    before, after = to_dict(old), to_dict(new)
    patch: Unstructured = {key: value for key, value in after.items() if before.get(key) != value}
    for key, value in before.items():
        if key not in after:
            patch[key] = 0 if isinstance(value, int) and not isinstance(value, bool) else None
    for key, value in patch.items():
        # A map is merged into the old one, so entries that left it must be named.
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            patch[key] = {**{gone: None for gone in before[key] if gone not in value}, **value}
    return patch


async def patch_status(
    client: Client, resource: Resource[O], obj: O, patch: Unstructured, *, exactly: bool = False
) -> O | ApiError | None:
    """Patch the status; return None when there was nothing to write. `exactly`: only over the version that was read."""
    if not patch:
        return None
    return await client.patch_object(
        resource, obj, {"status": patch}, kind="merge", subresource="status", exactly=exactly
    )


# -- the kinds that the server serves

_ACCEPT = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


class ServedKind(msgspec.Struct, frozen=True):
    """A served kind in its preferred version, read as metadata only."""

    resource: Resource[Object]
    verbs: frozenset[str]
    subresources: frozenset[str] = frozenset()

    @property
    def qualified(self) -> str:
        return f"{self.resource.plural}.{self.resource.group}" if self.resource.group else self.resource.plural


class ServedKinds(msgspec.Struct, frozen=True):
    served: tuple[ServedKind, ...]
    by_kind: dict[tuple[str, str], ServedKind]  # (group, kind): references may name any version

    def find(self, api_version: str, kind: str) -> ServedKind | None:
        return self.by_kind.get((api_version.rpartition("/")[0], kind))


async def discover(client: Client) -> ServedKinds | ApiError:
    groups: list[dict[str, Any]] = []
    for root in ("/api", "/apis"):
        answer = await client.raw(ApiRequest(method="GET", path=root, accept=_ACCEPT))
        if not answer.ok:
            return error_from_response(answer)
        # Not `plain()`: a server may keep the document as the bytes that it sends.
        groups += msgspec.json.decode(answer.body.raw()).get("items") or ()
    return parse_discovery(groups)


def parse_discovery(groups: list[dict[str, Any]]) -> ServedKinds:
    """Parse aggregated discovery. Versions come preferred first; a kind is taken in the first that has it."""
    found: dict[tuple[str, str], ServedKind] = {}
    by_kind: dict[tuple[str, str], ServedKind] = {}
    for item in groups:
        group = (item.get("metadata") or {}).get("name") or ""
        for version in item.get("versions") or ():
            for row in version.get("resources") or ():
                if (group, row["resource"]) in found:
                    continue
                name = row["responseKind"]["kind"]
                resource = Resource(
                    group=group,
                    version=version["version"],
                    kind=name,
                    plural=row["resource"],
                    namespaced=row["scope"] == "Namespaced",
                    model=Object,
                )
                subresources = frozenset(sub["subresource"] for sub in row.get("subresources") or ())
                kind = ServedKind(resource, frozenset(row["verbs"]), subresources)
                found[group, row["resource"]] = kind
                by_kind.setdefault((group, name), kind)
    return ServedKinds(tuple(found.values()), by_kind)
