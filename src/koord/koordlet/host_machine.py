"""The machine that the agent runs on, as strategies see it: reads of the cgroup tree, writes by the executor."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host import resctrl
from koord.host.capability import burst_above_quota
from koord.host.cgroup import knob, usage
from koord.host.cgroup.tree import CgroupTree
from koord.host.devices import storage
from koord.host.hardware import BlockDevices
from koord.host.hardware_topology import cpu_model, online_cpus
from koord.host.io_error import IoError
from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.inputs.machine import L3Cache, MachineShape
from koord.koordlet.problem_log import ProblemLog

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
