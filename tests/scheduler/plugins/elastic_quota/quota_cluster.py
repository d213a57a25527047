"""A cluster with quotas for tests: nodes, quotas and pods as the watch shows them, and a whole scheduling engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.config.scheduler.configuration import SCHEDULER_PLUGIN_CATALOG
from koord.api.config.scheduler.koordinator_args import ElasticQuotaArgs, defaulted_elastic_quota
from koord.api.koordinator.sigs_scheduling import ElasticQuota as QuotaObject
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import ObjectEvent
from koord.scheduler.framework.decision import ChosenNode, Decision, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.verdict import StatusWrite
from koord.scheduler.plugins.default_preemption import DefaultPreemption
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.queue.nominations import Nominations
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.elastic_quota.test_quota_manager_event_order import numbers_of

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


class RecordingHandleBackend:
    """Records the actions that the plugin requests from the scheduler."""

    def __init__(self) -> None:
        self.told: list[ObjectEvent] = []

    def waiting_pods(self) -> Iterable[tuple[PodInfo, str]]:
        return ()

    def allow(self, uid: str, plugin: str) -> bool:
        return False

    def reject(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool:
        return False

    def report_unschedulable(self, key: str, uid: str, message: str) -> None:
        """Nobody reads them here."""

    def nominate(self, key: str, uid: str, node: str) -> None:
        """Nor waits."""

    def activate(self, uids: Iterable[str]) -> None:
        """Nobody sleeps here."""

    def publish_event(self, object_event: ObjectEvent) -> None:
        self.told.append(object_event)

    def write_status(self, write: StatusWrite) -> None:
        raise NotImplementedError


class QuotaHandle:
    def __init__(self, state: ClusterState, held: dict[str, FakeLister] | None = None) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self.actions.backend = self.counter = RecordingHandleBackend()
        self.held: dict[str, FakeLister] = {} if held is None else held

    def lister(self, resource: Resource[Any]) -> FakeLister:
        return self.held.setdefault(resource.plural, FakeLister())

    def now(self) -> float:
        return 1000.0


class QuotaCluster:
    def __init__(self, nodes: Mapping[str, str] | None = None, *, gates: Mapping[str, bool] | None = None, **args: Any):
        """`nodes` are names with cpus."""
        self.state = ClusterState()
        self.handle = QuotaHandle(self.state)
        fit = SCHEDULER_PLUGIN_CATALOG["NodeResourcesFit"]
        plugins = [REGISTRY["NodeResourcesFit"](fit.defaulted(fit.model()), self.handle)]
        made = defaulted_elastic_quota(msgspec.structs.replace(ElasticQuotaArgs(), **args))
        self.quota = ElasticQuotaPlugin(made, self.handle, **(gates or {}))
        model = SCHEDULER_PLUGIN_CATALOG[DefaultPreemption.name]
        self.preemption = DefaultPreemption(model.defaulted(model.model()), self.handle)
        self.nominations = Nominations()
        profile = profile_of([*plugins, self.quota, self.preemption])
        self.engine = SchedulingEngine(profile, self.state, 0, self.nominations)
        for name, cpu in (nodes or {}).items():
            self.state.set_node(make_node(name, cpu=cpu, memory="640Gi"))

    @property
    def ledger(self) -> ElasticQuotaCache:
        return self.quota.quota_cache

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
        return self.state.pod_info(pod)

    def gone(self, pod: Pod) -> None:
        self.handle.held["pods"].drop(pod.metadata.name, pod.metadata.namespace)
        self.state.drop_pod(pod.metadata.uid)

    # Deciding -----------------------------------------------------------------------------------------------------

    def decide(self, pod: Pod) -> Decision:
        info = self.seen(pod)
        attempt = self.engine.decide(info)
        return self.engine.post_filter(attempt) if isinstance(attempt.decision, Unschedulable) else attempt.decision

    def place(self, pod: Pod) -> str:
        """Schedule the pod and assume it."""
        decision = self.decide(pod)
        assert isinstance(decision, ChosenNode), decision
        self.state.assume(self.state.pod_info(pod), decision.node)
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

    def hopes(self, pod: Pod, object_event: ObjectEvent) -> bool:
        return self.quota.queueing_hint(self.state.pod_info(pod), object_event)

    # Comparing ----------------------------------------------------------------------------------------------------

    def agrees_with_a_new_ledger(self) -> None:
        other = QuotaHandle(self.state, self.handle.held)
        anew = ElasticQuotaCache(self.ledger.rules, other, with_overhead=self.ledger.with_overhead)
        assert numbers_of(self.ledger.manager) == numbers_of(anew.manager)
        for listed in self.handle.held.values():  # it must not listen on
            listed._callbacks[:] = [c for c in listed._callbacks if getattr(c, "__self__", None) is not anew]
        self.state._placement_listeners[:] = [
            c for c in self.state._placement_listeners if getattr(c, "__self__", None) is not anew
        ]
