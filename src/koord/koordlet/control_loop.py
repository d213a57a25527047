"""The control loop of one machine: each tick takes samples, runs the strategies and publishes what changed.

It is built as soon as the machine's cgroups are found. Evictions are returned to the caller, as they
go over the network. Every write of the executor becomes an event of the audit log.

HostMachine is the machine that the agent runs on, as strategies see it: reads of the cgroup tree, writes by the
executor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host import resctrl, tc
from koord.host.audit_log import GROUP, NODE, POD, AuditEvent, AuditLog
from koord.host.capability import burst_above_quota, probe_capabilities
from koord.host.cgroup import knob, usage
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.devices import storage
from koord.host.hardware import BlockDevices, Capability
from koord.host.hardware_topology import cpu_model, online_cpus
from koord.host.io_error import IoError
from koord.koordlet.agent_status import ContainersStatus, InterferenceStatus
from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult, WriteRecord
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.cgroup_writer.journal import WriteJournal
from koord.koordlet.collect.collector_set import CollectorSet
from koord.koordlet.collect.performance import CYCLES, PRESSURE
from koord.koordlet.container_values import containers_status
from koord.koordlet.inputs.machine import L3Cache, MachineShape
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.metrics import KoordletMetrics
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies import file_ownership, interference_report, interference_view, runtime_hooks
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.runner import StrategyResult, StrategyRunner, StrategyStatus, strategy_status
from koord.koordlet.strategies.runtime_hooks import RuntimeHooksState
from koord.koordlet.strategies.strategy import WorkSteps
from koord.telemetry.clock import Clock
from koord.values import timestamp

_LOG = logging.getLogger(__name__)


class HostMachine:
    """HostMachine implements NodeMachine for the real node.

    Call `refresh` now and then, as CPUs and disks come and go. With `may_write` False nothing is probed or mounted;
    without `resctrl` or `disks` those are not read.
    """

    def __init__(
        self, tree: CgroupTree, executor: CgroupExecutor, *, may_write: bool, resctrl: bool, disks: bool
    ) -> None:
        self._tree = tree
        self._executor = executor
        self._may_write = may_write
        self._with_resctrl = resctrl
        self._with_disks = disks
        self._burst_within_quota: bool | None = None
        self._logs = {
            what: ProblemLog(_LOG, f"{what} of this machine are not known", f"{what} of this machine are known again")
            for what in ("processors", "resctrl", "disks")
        }
        self._shape = MachineShape()
        self.refresh()

    @property
    def shape(self) -> MachineShape:
        return self._shape

    def refresh(self) -> None:
        layout = self._tree.layout
        found = online_cpus(self._tree.host)
        self._log_change("processors", found)
        self._shape = MachineShape(
            processors=() if isinstance(found, IoError) else tuple(found),
            layout=layout,
            groups={kube_qos: layout.qos_dir(kube_qos) for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT)},
            cgroup_version=self._tree.version,
            page_bytes=self._tree.host.page_bytes,
            cache=self._cache() if self._with_resctrl else L3Cache(),
            disks=self._disks() if self._with_disks else BlockDevices(),
            burst_within_quota=self._is_burst_within_quota(),
            time_slice_ns=self._own_time_slice_ns(),
        )

    def read_knob(self, group: str, file: str) -> str | None:
        value = self._tree.value(file, group)
        return None if isinstance(value, IoError) else value

    def has_knob(self, file: str) -> bool:
        return file not in self._executor.disabled_knobs and self._tree.is_supported(file, self._shape.kubepods)

    def child_groups(self, group: str) -> tuple[str, ...]:
        found = self._tree.children(group)
        return () if isinstance(found, IoError) else tuple(found)

    def thread_ids(self, group: str) -> tuple[int, ...]:
        found = usage.threads(self._tree, group)
        return () if isinstance(found, IoError) else tuple(found)

    def time_slices(self, group: str) -> Mapping[int, int]:
        read = self._executor.time_slices.slice_ns
        found = {thread: read(thread) for thread in usage.threads_below(self._tree, group)}
        return {thread: ns for thread, ns in found.items() if not isinstance(ns, IoError)}

    def resctrl_threads(self, name: str) -> frozenset[int]:
        found = resctrl.tasks(self._tree.host, name)
        return frozenset() if isinstance(found, IoError) else frozenset(found)

    def limited_disks(self, group: str) -> frozenset[str]:
        numbers: set[str] = set()
        for name in (knob.IO_QOS,) if not group else (*knob.IO_THROTTLES, knob.IO_WEIGHT):
            text = self._tree.read(name, group)
            for line in [] if isinstance(text, IoError) else text.splitlines():
                number, _, rest = line.partition(" ")
                if ":" in number and rest and "enable=0" not in rest:
                    numbers.add(number)
        return frozenset(numbers)

    def execute(
        self,
        effects: Sequence[FileEffect],
        *,
        complete_owners: Sequence[str] = (),
        kept: Sequence[tuple[str, str]] = (),
        verify: bool = False,
    ) -> Sequence[FileWriteResult]:
        if not complete_owners:
            return self._executor.execute(effects, verify=verify)
        strangers = {effect.owner for effect in effects} - set(complete_owners)
        if strangers:
            raise ValueError(f"effects of {', '.join(sorted(strangers))} among those of {', '.join(complete_owners)}")
        return self._executor.reconcile(complete_owners, effects, kept=kept, verify=verify)

    def release(self, owner: str, why: str) -> Sequence[FileWriteResult]:
        return self._executor.release(owner, why)

    def _own_time_slice_ns(self) -> int:
        found = self._executor.time_slices.slice_ns(0)
        return 0 if isinstance(found, IoError) else found

    def _is_burst_within_quota(self) -> bool:
        if (
            self._burst_within_quota is None
            and self._may_write
            and self._tree.is_supported(knob.CPU_BURST, self._kubepods())
        ):
            found = burst_above_quota(self._tree)
            if not isinstance(found, IoError):
                self._burst_within_quota = not found
                _LOG.info("the kernel %s a burst above the quota", "takes" if found else "refuses")
        return self._burst_within_quota is not False

    def _kubepods(self) -> str:
        return self._tree.layout.kubepods

    def _cache(self) -> L3Cache:
        host = self._tree.host
        lacking = resctrl.check_supported(host)
        if lacking is None and not resctrl.is_mounted(host) and self._may_write:
            lacking = resctrl.mount(host)
        if lacking is not None:
            self._log_change("resctrl", lacking)
            return L3Cache()
        mask, root, model = resctrl.cbm_mask(host), resctrl.read_schemata(host), cpu_model(host)
        if isinstance(mask, IoError) or isinstance(root, IoError) or isinstance(model, IoError):
            self._log_change("resctrl", next(one for one in (mask, root, model) if isinstance(one, IoError)))
            return L3Cache()
        self._log_change("resctrl", None)
        return L3Cache(mask=mask, ids=tuple(sorted(root.l3)), vendor=model.vendor, limits=resctrl.limits(host))

    def _disks(self) -> BlockDevices:
        found = storage(self._tree.host)
        if isinstance(found, IoError):
            self._log_change("disks", found)
            return BlockDevices()
        self._log_change("disks", None)
        return found

    def _log_change(self, what: str, found: object) -> None:
        """Log the error of a reader once per errno, and its recovery."""
        log = self._logs[what]
        if isinstance(found, IoError):
            log.fails(found, found.code)
        else:
            log.works()


VERBOSE = 3  # of single writes; the log's own default shows them

JOURNAL_FILE = "journal.jsonl"


class ControlLoop:
    """The control loop owns the executor, the collectors and the strategy runner of one machine."""

    def __init__(
        self,
        tree: CgroupTree,
        store: SeriesStore,
        clock: Clock,
        settings: KoordletSettings,
        metrics: KoordletMetrics,
        audit_log: AuditLog | None,
    ) -> None:
        self.tree = tree
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._store = store
        self._names: Mapping[str, PodIdentity] = {}
        self._pods: tuple[PodMeta, ...] | None = None
        audit = self._drop_record if audit_log is None else make_audit_callback(audit_log, tree.layout, self._pod_name)
        self.executor = CgroupExecutor(
            tree,
            clock,
            journal=WriteJournal(tree.host, f"{settings.state_dir}/{JOURNAL_FILE}"),
            audit=audit,
            measure=metrics.observe_write,
            refresh_s=settings.refresh_s,
        )
        self.machine = HostMachine(
            tree,
            self.executor,
            may_write=not settings.safe_mode,
            resctrl=not settings.gates.isdisjoint({"RdtResctrl", "Resctrl"}),
            disks="BlkIOReconcile" in settings.gates,
        )
        self.collectors = CollectorSet(tree, store, clock, settings.collect, plugins=settings.plugins.collectors)
        strategies = settings.plugins.all_strategies()
        self._owners = frozenset(owner for strategy in strategies for owner in strategy.restores)
        self.strategy_runner = StrategyRunner(
            self.machine,
            store,
            settings.gates,
            msgspec.structs.replace(settings.strategies, hooks=settings.hook_settings),
            strategies,
            timer=clock.monotonic,
        )
        self._strategy_statuses: dict[str, StrategyStatus] = {
            name: StrategyStatus(strategy=name, why="not run yet") for name in self.strategy_runner.enabled
        }
        self._states: dict[str, str] = {}
        self.last_run: frozenset[str] = frozenset()  # strategies that ran in the last tick
        self._released_others = False

    def tick_steps(self, node_inputs: NodeInputs, *, memory_policy: str = "") -> WorkSteps[tuple[EvictionRequest, ...]]:
        """Take the samples, run the strategies that are due, and return the evictions that they want."""
        now_s = self._clock.time()
        if node_inputs.pods is not self._pods:
            self._pods = node_inputs.pods
            self._names = {pod.uid: _pod_identity(pod) for pod in node_inputs.pods}
            self._metrics.pods_changed(node_inputs.pods)
        applications = () if node_inputs.slo is None else node_inputs.slo.host_applications
        pods = node_inputs.pods if node_inputs.pods_known else None
        self.collectors.sample(
            now_s, pods, applications, memory_policy=memory_policy, third_party=node_inputs.third_party
        )
        yield
        self._metrics.set_usage(self._store, now_s)
        if not self._released_others and not node_inputs.safe_mode:
            self._released_others = True
            self.executor.release_others(self._known_owners(), "no strategy of this version writes it")
        ran = yield from self.strategy_runner.tick_steps(now_s, node_inputs)
        self.last_run = frozenset(one.strategy for one in ran)
        self._metrics.journal_unwritable.labels(self._settings.node).set(float(bool(self.executor.journal_problem)))
        self._publish_results(now_s, ran, node_inputs)
        return tuple(victim for one in ran for victim in one.evictions)

    def capabilities(self, check_tc: Callable[[], IoError | None] = tc.check_supported) -> list[Capability]:
        """Return what the kernel supports; knobs are probed unless safe mode forbids writes."""
        return probe_capabilities(self.tree, probe=not self._settings.safe_mode, check_tc=check_tc)

    def containers_status(self, pods: Sequence[PodMeta]) -> ContainersStatus:
        """Return every value that was decided for the cgroups of these pods."""
        state = self.strategy_runner.state_of(runtime_hooks.NAME)
        hooked = state.pods if isinstance(state, RuntimeHooksState) else {}
        return containers_status(pods, self.tree, self.executor, hooked, safe_mode=self._settings.safe_mode)

    def interference_status(self, pods: Sequence[PodMeta], namespace: str, name: str) -> InterferenceStatus:
        """Return what is known of interference, of all pods or of one, and which collectors do not work."""
        if interference_view.OWNER not in self.strategy_runner.enabled:
            return interference_report.SWITCHED_OFF
        statuses = self.collectors.statuses
        missing = [
            f"no samples of {name}: {statuses[name].problem}"
            for name in (CYCLES, PRESSURE)
            if name in statuses and statuses[name].problem
        ]
        state = self.strategy_runner.state_of(interference_view.OWNER)
        return interference_report.interference_status(
            state, pods, namespace=namespace, name=name, limits="; ".join(missing)
        )

    def strategy_statuses(self) -> list[StrategyStatus]:
        return list(self._strategy_statuses.values())

    def close(self) -> None:
        """Close the collectors. Files keep their values: an agent that is replaced must not release what it holds."""
        self.collectors.close()

    def _publish_results(self, now_s: float, ran: Sequence[StrategyResult], node_inputs: NodeInputs) -> None:
        threshold = None if node_inputs.slo is None else node_inputs.slo.resource_used_threshold_with_be
        self._metrics.record_strategies(
            ran, node_inputs.pods, "" if threshold is None else threshold.cpu_suppress_policy
        )
        at = timestamp.text(datetime.fromtimestamp(now_s, UTC))
        for one in ran:
            self._strategy_statuses[one.strategy] = strategy_status(one, at)
            self._log_state_change(one, node_inputs)

    def _log_state_change(self, ran: StrategyResult, node_inputs: NodeInputs) -> None:
        """Log one line whenever a strategy's state changes; single writes are in the audit log."""
        if ran.error is not None:
            state = f"failed: {ran.error!r}"
        elif node_inputs.slo is None:
            state = "waits for a NodeSLO"
        elif node_inputs.node is None:
            state = "waits for the Node"
        else:
            state = "only tells what it would do (safe mode)" if node_inputs.safe_mode else "runs"
        if self._states.get(ran.strategy) == state:
            return
        self._states[ran.strategy] = state
        if ran.error is not None:
            _LOG.error("strategy %s %s", ran.strategy, state, exc_info=ran.error)
        else:
            _LOG.info("strategy %s %s", ran.strategy, state)

    def _known_owners(self) -> frozenset[str]:
        switched = file_ownership.CORE_SCHED in self._settings.gates
        return self._owners | ({file_ownership.CORE_SCHED_SWITCH} if switched else frozenset())

    def _pod_name(self, uid: str) -> PodIdentity | None:
        return self._names.get(uid)

    def _drop_record(self, record: WriteRecord) -> None:
        """Drop the record, because the gate of the audit log is off."""


def _pod_identity(pod: PodMeta) -> PodIdentity:
    return PodIdentity(
        pod.namespace, pod.name, {one.id.partition("://")[2]: one.name for one in pod.containers if one.id}
    )


class PodIdentity(msgspec.Struct, frozen=True):
    """The names by which the audit log identifies a pod and its containers."""

    namespace: str
    name: str
    containers: dict[str, str] = {}  # name by plain id


def audit_event(record: WriteRecord, layout: CgroupLayout, pod_of: Callable[[str], PodIdentity | None]) -> AuditEvent:
    """Build the audit event of a write. `pod_of` looks up a UID; an unknown pod is identified by its UID alone."""
    subject = _subject(record.group, layout, pod_of)
    return msgspec.structs.replace(
        subject,
        reason=record.reason,
        message=record.message,
        owner=record.owner,
        before=record.before,
        after=record.after,
        why=record.why,
        refused=record.refused,
    )


def make_audit_callback(
    audit_log: AuditLog, layout: CgroupLayout, pod_of: Callable[[str], PodIdentity | None]
) -> Callable[[WriteRecord], None]:
    """Return the executor's `audit` callback, which appends every record to the log.

    A log that cannot be written stops no write, and is reported once per errno.
    """
    told: set[str] = set()

    def tell(record: WriteRecord) -> None:
        io_error = audit_log.append(audit_event(record, layout, pod_of), VERBOSE)
        if io_error is not None and io_error.code not in told:
            told.add(io_error.code)
            _LOG.warning("the audit log cannot be written: %s", io_error)

    return tell


def _subject(group: str, layout: CgroupLayout, pod_of: Callable[[str], PodIdentity | None]) -> AuditEvent:
    if not group:
        return AuditEvent(type=NODE)
    parts = group.split("/")
    for index, part in enumerate(parts):
        uid = layout.pod_uid_of_dir(part)
        if uid is None or not group.startswith(f"{layout.kubepods}/"):
            continue
        known = pod_of(uid) or PodIdentity("", uid)
        plain = layout.container_id_of_dir(parts[index + 1]) if index + 1 < len(parts) else None
        container = known.containers.get(plain, plain) if plain else ""
        return AuditEvent(type=POD, namespace=known.namespace, name=known.name, container=container)
    return AuditEvent(type=GROUP, name=group)


T = TypeVar("T")


async def run_steps_cooperatively(steps: WorkSteps[T]) -> T:
    """Run one step in each turn of the event loop and return the result; cancellation ends it between two steps."""
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await asyncio.sleep(0)
    finally:
        steps.close()
