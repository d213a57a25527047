"""Keep the status of PodGroups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from koord.api.annotations.gang import gang_id
from koord.api.custom import POD_GROUPS
from koord.api.meta import Object
from koord.api.model import to_dict
from koord.api.sigs_scheduling import PodGroup, PodGroupStatus
from koord.kube.controller import Controller, Done, Outcome, Requeue
from koord.kube.outage import OUTAGE
from koord.kube.recorder import reference
from koord.kube.refused import Refused
from koord.kube.workqueue import WorkQueue
from koord.policy.gang.declaration import gang_of
from koord.policy.gang.phase import PENDING, Seen, status_of
from koord.scheduler.duties.duty import Duty, Post
from koord.scheduler.duties.network_topology import NetworkSurveyor
from koord.scheduler.plugins.coscheduling import Coscheduling, NetworkCoscheduling
from koord.scheduler.state.wire import PODS, Pod

_MOMENT_S = 0.25


class PodGroupKeeper:
    """Keep the status of PodGroups: written when it differs from what the members say, with an event for every phase.

    Members come and go in bursts, so a PodGroup is reconciled a moment after the first change.
    """
    name: ClassVar[str] = "pod group keeper"

    def __init__(self, post: Post) -> None:
        plugin = post.plugins[0]
        assert isinstance(plugin, Coscheduling)
        self._company = plugin.company
        self._workers = plugin.controller_workers
        self._client, self._clock, self._recorder = post.client, post.clock, post.recorder
        self._pods = post.handle.lister(PODS)
        self._pod_groups = post.handle.lister(POD_GROUPS)
        self._queue: WorkQueue[tuple[str, str]] | None = None  # nobody works before this scheduler leads
        self._failures: dict[tuple[str, str], str] = {}  # what was told last of a failed round
        self.writes = 0
        self._pods.on_change(self._on_pod)
        self._company.reservers.append(self._on_pod)
        self._pod_groups.on_change(self._on_pod_group)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if self._queue is None:
            return
        for pod in (old, new):
            gang = _gang_of(pod) if pod is not None else None
            if gang is not None and self._pod_groups.get(*gang) is not None:
                self._queue.add_after(gang, _MOMENT_S)

    def _on_pod_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._failures.pop(_key(old), None)
        elif new is not None and self._queue is not None:
            self._queue.add_after(_key(new), _MOMENT_S)

    async def run(self) -> None:
        queue = self._queue = WorkQueue(self._clock, name="pod-groups")
        for known in self._pod_groups.list():
            queue.add(_key(known))
        try:
            await Controller("pod-groups", queue, self._reconcile, workers=self._workers).run()
        finally:
            self._queue = None

    async def _reconcile(self, key: tuple[str, str]) -> Outcome:
        found = self._pod_groups.get(*key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Done()
        self._tell_of_failure(key, found)
        now = datetime.fromtimestamp(int(self._clock.time()), UTC)
        wanted = status_of(found.status, found.spec.min_member, self._members(gang_id(*key)), now)
        patch = status_patch(found.status, wanted)
        if not patch:
            return Done()
        try:
            answer = await self._client.patch(
                POD_GROUPS, key[1], {"status": patch}, key[0], kind="merge", uid=found.metadata.uid
            )
        except OUTAGE as outage:
            return Requeue(str(outage))
        if isinstance(answer, Refused):
            return Done() if answer.not_found else Requeue(answer.message)
        self.writes += 1
        if wanted.phase != found.status.phase:
            self._tell_of_phase(found, wanted)
        return Done()

    def _members(self, gang: str) -> list[Seen]:
        known = self._company.gangs.gangs.get(gang)
        if known is None:
            return []
        seen = []
        for member in known.members.values():
            namespace, _, name = member.key.partition("/")
            pod = self._company.stand_ins.get(member.uid) or self._pods.get(namespace, name)
            if pod is not None and pod.metadata.uid == member.uid:
                bound = bool(pod.spec.node_name) or member.uid in known.bound
                seen.append(Seen(pod.status.phase, bound, _owner(pod)))
        return seen

    # Words -------------------------------------------------------------------------------------------------------

    def _tell_of_phase(self, found: PodGroup, status: PodGroupStatus) -> None:
        minimum = found.spec.min_member
        note = f"{status.scheduled} of at least {minimum} members have a node"
        if status.phase == PENDING:
            there = len(self._members(gang_id(*_key(found))))
            note = f"{there} of at least {minimum} members are there"
        self._recorder.record(reference(POD_GROUPS, found), "Normal", status.phase, note, action="Scheduling")

    def _tell_of_failure(self, key: tuple[str, str], found: PodGroup) -> None:
        """Record why the gang was not scheduled, once for all members, and again only when the message changes."""
        gang = self._company.gangs.gangs.get(gang_id(*key))
        message = self._company.failures.get(gang.group_id, "") if gang is not None else ""
        if message != self._failures.get(key, ""):
            self._failures[key] = message
            if message:
                about = reference(POD_GROUPS, found)
                self._recorder.record(about, "Warning", "FailedScheduling", message, action="Scheduling")


def gang_duties(post: Post) -> Sequence[Duty]:
    keeper = PodGroupKeeper(post)
    aware = any(isinstance(plugin, NetworkCoscheduling) for plugin in post.plugins)
    return (keeper, NetworkSurveyor(post)) if aware else (keeper,)


def status_patch(before: PodGroupStatus, after: PodGroupStatus) -> dict[str, Any]:
    """Return a merge patch of the status; fields that are the default again are removed, as Go clients do."""
    old, new = to_dict(before), to_dict(after)
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    return changed | {name: None for name in old if name not in new}


def _key(obj: Object) -> tuple[str, str]:
    return obj.metadata.namespace, obj.metadata.name


def _gang_of(pod: Pod) -> tuple[str, str] | None:
    meta = pod.metadata
    gang = gang_of(meta.namespace, meta.labels or {}, meta.annotations or {})
    if gang is None:
        return None
    namespace, _, name = gang.partition("/")
    return namespace, name


def _owner(pod: Pod) -> str:
    controller = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    return f"{pod.metadata.namespace}/{controller.name}" if controller is not None else ""
