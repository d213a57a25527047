"""The machine that the agent runs on, as strategies see it: it reads the cgroup tree and writes through the executor.

"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from koord.api.qos_class import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host import resctrl
from koord.host.capability import burst_above_quota
from koord.host.cgroup import usage
from koord.host.cgroup.knob import CPU_BURST
from koord.host.cgroup.tree import Tree
from koord.host.fault import Fault
from koord.host.processor import cpu_model, processors
from koord.host.storage import storage
from koord.koordlet.apply.executor import Executor
from koord.koordlet.apply.result import FileEffect, Result
from koord.koordlet.machine import Cache, Shape
from koord.koordlet.strategies import file
from koord.koordlet.strategies.blkio import THROTTLES
from koord.koordlet.strategies.disk import Disks
from koord.koordlet.strategies.processor import Processor

_LOG = logging.getLogger(__name__)


class HostMachine:
    """HostMachine implements NodeMachine for the real node.

    Call `refresh` now and then, as CPUs and disks come and go. With `may_write` False nothing is probed or mounted;
    without `resctrl` or `disks` those are not read.
    """

    def __init__(self, tree: Tree, executor: Executor, *, may_write: bool, resctrl: bool, disks: bool) -> None:
        self._tree = tree
        self._executor = executor
        self._may_write = may_write
        self._with_resctrl = resctrl
        self._with_disks = disks
        self._burst_within_quota: bool | None = None
        self._said: dict[str, str] = {}
        self._shape = Shape()
        self.refresh()

    @property
    def shape(self) -> Shape:
        return self._shape

    def refresh(self) -> None:
        layout = self._tree.layout
        found = processors(self._tree.host)
        self._ask("processors", found)
        cpus = [] if isinstance(found, Fault) else found
        self._shape = Shape(
            processors=tuple(Processor(one.cpu, one.core, one.socket, one.node) for one in cpus),
            layout=layout,
            groups={kube_qos: layout.qos_dir(kube_qos) for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT)},
            cgroup_version=self._tree.version,
            page_bytes=self._tree.host.page_bytes,
            cache=self._cache() if self._with_resctrl else Cache(),
            disks=self._disks() if self._with_disks else Disks(),
            burst_within_quota=self._is_burst_within_quota(),
        )

    def knob(self, group: str, file: str) -> str | None:
        value = self._tree.value(file, group)
        return None if isinstance(value, Fault) else value

    def has(self, file: str) -> bool:
        return file not in self._executor.off and self._tree.supported(file, self._shape.kubepods)

    def below(self, group: str) -> tuple[str, ...]:
        found = self._tree.children(group)
        return () if isinstance(found, Fault) else tuple(found)

    def threads(self, group: str) -> tuple[int, ...]:
        found = usage.threads(self._tree, group)
        return () if isinstance(found, Fault) else tuple(found)

    def cached_threads(self, name: str) -> frozenset[int]:
        found = resctrl.tasks(self._tree.host, name)
        return frozenset() if isinstance(found, Fault) else frozenset(found)

    def limited_disks(self, group: str) -> frozenset[str]:
        numbers: set[str] = set()
        for name in (file.IO_QOS,) if not group else (*THROTTLES, file.IO_WEIGHT):
            text = self._tree.read(name, group)
            for line in [] if isinstance(text, Fault) else text.splitlines():
                number, _, rest = line.partition(" ")
                if ":" in number and rest and "enable=0" not in rest:
                    numbers.add(number)
        return frozenset(numbers)

    def carry_out(self, effects: Sequence[FileEffect], *, whole_of: Sequence[str] = ()) -> Sequence[Result]:
        if not whole_of:
            return self._executor.execute(effects)
        results: dict[int, Result] = {}
        undone: list[Result] = []
        for owner in whole_of:
            places = [place for place, effect in enumerate(effects) if effect.owner == owner]
            answers = self._executor.reconcile(owner, [effects[place] for place in places])
            results.update(zip(places, answers))
            undone += answers[len(places) :]
        strangers = {effect.owner for effect in effects} - set(whole_of)
        if strangers:
            raise ValueError(f"effects of {', '.join(sorted(strangers))} among those of {', '.join(whole_of)}")
        return [*(results[place] for place in range(len(effects))), *undone]

    def release(self, owner: str, why: str) -> Sequence[Result]:
        return self._executor.release(owner, why)

    def _is_burst_within_quota(self) -> bool:
        if self._burst_within_quota is None and self._may_write and self._tree.supported(CPU_BURST, self._kubepods()):
            found = burst_above_quota(self._tree)
            if not isinstance(found, Fault):
                self._burst_within_quota = not found
                _LOG.info("the kernel %s a burst above the quota", "takes" if found else "refuses")
        return self._burst_within_quota is not False

    def _kubepods(self) -> str:
        return self._tree.layout.kubepods

    def _cache(self) -> Cache:
        host = self._tree.host
        lacking = resctrl.supported(host)
        if lacking is None and not resctrl.mounted(host) and self._may_write:
            lacking = resctrl.mount(host)
        if lacking is not None:
            self._ask("resctrl", lacking)
            return Cache()
        mask, root, model = resctrl.cbm_mask(host), resctrl.allocation(host), cpu_model(host)
        if isinstance(mask, Fault) or isinstance(root, Fault) or isinstance(model, Fault):
            self._ask("resctrl", next(one for one in (mask, root, model) if isinstance(one, Fault)))
            return Cache()
        self._ask("resctrl", None)
        return Cache(mask=mask, ids=tuple(sorted(root.l3)), vendor=model.vendor)

    def _disks(self) -> Disks:
        found = storage(self._tree.host)
        if isinstance(found, Fault):
            self._ask("disks", found)
            return Disks()
        self._ask("disks", None)
        return Disks(
            numbers=found.disks,
            partitions=found.partitions,
            volume_groups=found.volume_groups,
            logical_volumes=found.logical_volumes,
            mounts=found.mounts,
        )

    def _ask(self, what: str, found: object) -> None:
        """Log the error of a reader once per errno, and its recovery."""
        code = found.code if isinstance(found, Fault) else ""
        if code and self._said.get(what) != code:
            _LOG.warning("%s of this machine are not known: %s", what, found)
        elif not code and self._said.get(what):
            _LOG.info("%s of this machine are known again", what)
        self._said[what] = code
