"""The context of every controller: a client, shared caches, time, randomness, an event recorder, status patches, and
the kinds that the server serves.

Pods of one template have equal specs but for their node: each distinct spec is kept once, to save memory.
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
from koord.embedded.workloads.expectations import WrittenVersions
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import Clock

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
