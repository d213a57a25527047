"""Build full clusters for preemption tests: running and terminating pods, budgets, and one whole engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from koord.api.config.scheduler.configuration import SCHEDULER_PLUGIN_CATALOG
from koord.api.kubernetes.pod_policy import PodDisruptionBudget
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.decision import Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.default_preemption import DefaultPreemption
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.queue.nominations import Nominations
from tests.scheduler.builders import make_pod
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugin_equivalence import profile_of

START = datetime(2026, 1, 1, tzinfo=UTC)
# In Kubernetes' order; those of volumes need objects that these tests have none of.
FILTERS = (
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
)


class BudgetHandle:
    """Give plugins listers that hold the budgets put into them."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self._held: dict[str, FakeLister] = {}

    def lister(self, resource: Resource[Any]) -> FakeLister:
        return self._held.setdefault(resource.plural, FakeLister())

    def put(self, *budgets: PodDisruptionBudget) -> None:
        for budget in budgets:
            self._held.setdefault("poddisruptionbudgets", FakeLister()).put(budget)

    def now(self) -> float:
        raise LookupError("this test has no clock")


def running(
    name: str, node: str, *, started: int | None = 0, leaving: bool = False, preempted: bool = False, **words: Any
) -> Pod:
    """Build a pod on a node. `started` is in minutes after START; `preempted` ones are being deleted to make room."""
    pod = make_pod(name, node=node, **words)
    status = msgspec.structs.replace(
        pod.status, start_time=None if started is None else START + timedelta(minutes=started)
    )
    meta = pod.metadata
    if preempted:
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        status = msgspec.structs.replace(status, conditions=convert({"conditions": [target]}, type(status)).conditions)
    if leaving or preempted:
        meta = msgspec.structs.replace(meta, deletion_timestamp=START)
    return msgspec.structs.replace(pod, metadata=meta, status=status)


def budget(
    name: str,
    labels: Mapping[str, str] | None,
    allowed: int,
    *,
    namespace: str = "default",
    granted: Iterable[str] = (),
    expressions: Sequence[Mapping[str, Any]] = (),
) -> PodDisruptionBudget:
    """Build a budget; `labels` None has no selector; `granted` are pods whose disruption the server has approved."""
    selector = None if labels is None else {"matchLabels": dict(labels), "matchExpressions": list(expressions)}
    return convert(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
            "spec": {"selector": selector},
            "status": {
                "disruptionsAllowed": allowed,
                "disruptedPods": dict.fromkeys(granted, "2026-01-01T00:00:00Z"),
            },
        },
        PodDisruptionBudget,
    )


class PreemptionCluster:
    """Hold a cluster, its nominations, and an engine with Kubernetes' filters and DefaultPreemption."""

    def __init__(
        self,
        state: ClusterState,
        budgets: Iterable[PodDisruptionBudget] = (),
        *,
        seed: int = 0,
        filters: Sequence[str] = FILTERS,
        more: Sequence[Plugin] = (),
        percent: int = 10,
        at_least: int = 100,
        filters_without_nominated: bool = True,
        **hooks: Any,
    ) -> None:
        self.state = state
        self.handle = BudgetHandle(state)
        self.handle.put(*budgets)
        self.nominations = Nominations()
        plugins = [REGISTRY[name](_default_args(name), self.handle) for name in filters]
        model = SCHEDULER_PLUGIN_CATALOG[DefaultPreemption.name].model
        args = model(min_candidate_nodes_percentage=percent, min_candidate_nodes_absolute=at_least)
        self.preemption = DefaultPreemption(args, self.handle, **hooks)
        profile = profile_of([*plugins, *more, self.preemption], filters_without_nominated=filters_without_nominated)
        self.engine = SchedulingEngine(profile, state, seed, self.nominations)

    def info(self, pod: Pod | PodInfo) -> PodInfo:
        return pod if isinstance(pod, PodInfo) else self.state.pod_info(pod)

    def nominate(self, pod: Pod | PodInfo, node: str) -> PodInfo:
        info = self.info(pod)
        self.nominations.nominate(info, node)
        return info

    def unschedulable(self, pod: Pod | PodInfo) -> Unschedulable:
        """Decide a pod that no node takes, and run PostFilter."""
        info = self.info(pod)
        attempt = self.engine.decide(info)
        assert isinstance(attempt.decision, Unschedulable), attempt.decision
        return self.engine.post_filter(attempt)

    def victims(self, pod: Pod | PodInfo) -> tuple[str, list[str]]:
        preempt = self.unschedulable(pod).preempt
        assert preempt is not None
        return preempt.node, [victim.name for victim in preempt.victims]


def _default_args(name: str) -> Any:
    kind = SCHEDULER_PLUGIN_CATALOG.get(name)
    return None if kind is None else kind.defaulted(kind.model())


def state_summary(state: ClusterState) -> Any:
    """Return everything that a dry run could have changed by mistake."""
    table = state.table
    return (
        {
            node.name: (
                list(node.pods.values()),
                dict(node.requested),
                dict(node.ports),
                node.nonzero_cpu,
                node.nonzero_memory,
            )
            for node in table.index.values()
        },
        {
            name: (table.requested(name).tolist(), table.allocatable(name).tolist())
            for name in ("cpu", "memory", "example.com/gpu")
        },
        table.pod_count.tolist(),
        table.position,
        list(state.pods()),
    )
