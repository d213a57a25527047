"""A cluster with quotas for tests: nodes, quotas and pods as the watch shows them, and a whole scheduling engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.config.scheduler.catalog import CATALOG
from koord.api.config.scheduler.elastic_quota import ElasticQuotaArgs, defaulted
from koord.api.model import convert
from koord.api.resource import Resource
from koord.api.sigs_scheduling import ElasticQuota as QuotaObject
from koord.scheduler.framework.decision import Chosen, Decision, Unschedulable
from koord.scheduler.framework.desk import Desk
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.event import Happened
from koord.scheduler.plugins.default_preemption import DefaultPreemption
from koord.scheduler.plugins.elastic_quota import ElasticQuota
from koord.scheduler.plugins.elastic_quota.ledger import Ledger
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.queue.nomination import Nominations
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import Pod
from tests.policy.quota.test_quota_book_in_any_order import numbers_of
from tests.scheduler.clusters import make_node, make_pod
from tests.scheduler.equality import profile_of
from tests.scheduler.handles import Listed

LABEL = "quota.scheduling.koordinator.sh/"


def make_quota(
    name: str,
    min: Mapping[str, str] | None = None,
    max: Mapping[str, str] | None = None,
    *,
    namespace: str = "quotas",
    parent: str = "",
    annotations: Mapping[str, str] | None = None,
    **labels: str,
) -> QuotaObject:
    """Labels by their last part, with _ for -: is_parent="true"."""
    given = {f"{LABEL}{key.replace('_', '-')}": value for key, value in labels.items()}
    if parent:
        given[f"{LABEL}parent"] = parent
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "labels": given,
        "annotations": {f"{LABEL}{key}": value for key, value in (annotations or {}).items()},
    }
    return convert({"metadata": meta, "spec": {"min": dict(min or {}), "max": dict(max or {})}}, QuotaObject)


def of_quota(name: str, quota: str = "", *, fixed: bool = False, **words: Any) -> Pod:
    labels = {f"{LABEL}name": quota} if quota else {}
    if fixed:
        labels[f"{LABEL}preemptible"] = "false"
    return make_pod(name, labels=labels, **words)


class Counter:
    """Records the actions that the plugin requests from the scheduler."""

    def __init__(self) -> None:
        self.told: list[Happened] = []

    def waiting(self) -> Iterable[tuple[PodInfo, str]]:
        return ()

    def allow(self, uid: str, plugin: str) -> bool:
        return False

    def refuse(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool:
        return False

    def remark(self, key: str, uid: str, message: str) -> None:
        """Nobody reads them here."""

    def nominate(self, key: str, uid: str, node: str) -> None:
        """Nor waits."""

    def activate(self, uids: Iterable[str]) -> None:
        """Nobody sleeps here."""

    def tell(self, happened: Happened) -> None:
        self.told.append(happened)


class Handle:
    def __init__(self, state: ClusterState, held: dict[str, Listed] | None = None) -> None:
        self.state = state
        self.desk = Desk()
        self.desk.counter = self.counter = Counter()
        self.held: dict[str, Listed] = {} if held is None else held

    def lister(self, resource: Resource[Any]) -> Listed:
        return self.held.setdefault(resource.plural, Listed())

    def now(self) -> float:
        return 1000.0


class QuotaScene:
    def __init__(self, nodes: Mapping[str, str] | None = None, *, gates: Mapping[str, bool] | None = None, **args: Any):
        """`nodes` are names with cpus."""
        self.state = ClusterState()
        self.handle = Handle(self.state)
        fit = CATALOG["NodeResourcesFit"]
        plugins = [REGISTRY["NodeResourcesFit"](fit.defaulted(fit.model()), self.handle)]
        made = defaulted(msgspec.structs.replace(ElasticQuotaArgs(), **args))
        self.quota = ElasticQuota(made, self.handle, **(gates or {}))
        model = CATALOG[DefaultPreemption.name]
        self.preemption = DefaultPreemption(model.defaulted(model.model()), self.handle)  # type: ignore[arg-type]
        self.nominations = Nominations()
        profile = profile_of([*plugins, self.quota, self.preemption])
        self.engine = Engine(profile, self.state, 0, self.nominations)
        for name, cpu in (nodes or {}).items():
            self.state.set_node(make_node(name, cpu=cpu, memory="640Gi"))

    @property
    def ledger(self) -> Ledger:
        return self.quota.ledger

    # As the watch brings it ---------------------------------------------------------------------------------------

    def quotas(self, *quotas: QuotaObject) -> None:
        for quota in quotas:
            self.handle.held["elasticquotas"].put(quota)

    def drop_quota(self, name: str, namespace: str = "quotas") -> None:
        self.handle.held["elasticquotas"].drop(name, namespace)

    def seen(self, pod: Pod) -> PodInfo:
        """Show a pod in the lister first, then in the state."""
        self.handle.held["pods"].put(pod)
        self.state.set_pod(pod)
        return self.state.info(pod)

    def gone(self, pod: Pod) -> None:
        self.handle.held["pods"].drop(pod.metadata.name, pod.metadata.namespace)
        self.state.drop_pod(pod.metadata.uid)

    # Deciding -----------------------------------------------------------------------------------------------------

    def decide(self, pod: Pod) -> Decision:
        info = self.seen(pod)
        decision = self.engine.decide(info)
        if isinstance(decision, Unschedulable):
            decision = self.engine.post_filter(info, decision)
        return decision

    def place(self, pod: Pod) -> str:
        """Schedule the pod and assume it."""
        decision = self.decide(pod)
        assert isinstance(decision, Chosen), decision
        self.state.assume(self.state.info(pod), decision.node)
        return decision.node

    def why(self, pod: Pod) -> str:
        decision = self.decide(pod)
        assert isinstance(decision, Unschedulable), decision
        return decision.message()

    def refusal(self, pod: Pod) -> str:
        """Return the quota's part of the rejection message."""
        decision = self.decide(pod)
        assert isinstance(decision, Unschedulable), decision
        assert decision.pre_filter is not None, decision
        assert decision.pre_filter[0] == "ElasticQuota"
        return decision.pre_filter[1].text

    def hopes(self, pod: Pod, happened: Happened) -> bool:
        return self.quota.might_help(self.state.info(pod), happened)

    # Comparing ----------------------------------------------------------------------------------------------------

    def agrees_with_a_new_ledger(self) -> None:
        other = Handle(self.state, self.handle.held)
        anew = Ledger(self.ledger.rules, other, with_overhead=self.ledger.with_overhead)
        assert numbers_of(self.ledger.book) == numbers_of(anew.book)
        for listed in self.handle.held.values():  # it must not listen on
            listed._callbacks[:] = [c for c in listed._callbacks if getattr(c, "__self__", None) is not anew]
        self.state._listeners[:] = [c for c in self.state._listeners if getattr(c, "__self__", None) is not anew]
