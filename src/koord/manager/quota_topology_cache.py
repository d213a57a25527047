"""Keeps the quota topology in step with the cluster, and answers the webhooks from it.

Every replica has one, since all of them serve webhooks. The checks themselves are in webhooks.quota.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.profiles import ElasticQuotaProfile
from koord.api.koordinator.protocol import A_QUOTA_SHARED_WEIGHT, L_QUOTA_NAME, L_QUOTA_TREE_ID
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.informer import HandlerRegistration
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhooks.admission import AdmissionDecision
from koord.manager.webhooks.quota import admission, topology
from koord.manager.webhooks.quota.topology import QuotaCheckGates
from koord.telemetry.metrics import MetricDeclaration, MetricReading
from koord.values import resources as vector
from koord.values.quantity import QuantityError

_LOG = logging.getLogger(__name__)

_BY_QUOTA = "quota-label"
_BY_NAMESPACE = "namespace"
_BY_TREE = "tree-id"
_BY_NAME = "name"

SHARED_WEIGHT = MetricDeclaration(
    "koord_manager_webhook_quota_shared_weight",
    "Shared weight of a quota, by resource; cpu in thousandths of a core.",
    "gauge",
    ("elasticquota_name", "resource_name"),
)


class QuotaTopologyCache:
    """The quota topology fed by informers; `start` it once, before or after the informers have synced."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.sigs.k8s.io", ("elasticquotas",), READ_VERBS),
        RbacRule("quota.koordinator.sh", ("elasticquotaprofiles",), READ_VERBS),
        RbacRule("", ("pods",), READ_VERBS),
    )

    def __init__(self, context: ManagerContext) -> None:
        self.topology = topology.QuotaTopology()
        self._clock = context.clock
        self._rules = QuotaCheckGates(
            guarantee_usage=context.settings.is_gate_enabled("ElasticQuotaGuaranteeUsage"),
            update_resource_key=context.settings.is_gate_enabled("ElasticQuotaEnableUpdateResourceKey"),
        )
        self._quotas = context.informers.for_resource(ELASTIC_QUOTAS)
        self._profiles = context.informers.for_resource(ELASTIC_QUOTA_PROFILES)
        self._pods = context.informers.for_resource(PODS)
        self._subscription: HandlerRegistration[ElasticQuota] | None = None
        for informer, name, key in (
            (self._pods, _BY_QUOTA, _quota_label),
            (self._pods, _BY_NAMESPACE, _namespace),
            (self._profiles, _BY_TREE, _tree_label),
            (self._quotas, _BY_NAME, _name),
        ):
            if not informer.has_index(name):
                informer.add_index(name, key)  # type: ignore[arg-type]

    async def start(self) -> None:
        if self._subscription is None:
            self._subscription = self._quotas.add_event_handler(self._on_quota)

    async def stop(self) -> None:
        if self._subscription is not None:
            self._quotas.remove_event_handler(self._subscription)
            self._subscription = None

    # -- the two webhooks

    def mutate(self, request: AdmissionRequest) -> AdmissionDecision:
        self.topology.handle(topology.TimeElapsed(self._clock.monotonic()))
        return admission.mutate_quota(request, self.topology)

    def validate(self, request: AdmissionRequest) -> AdmissionDecision:
        now = self._clock.monotonic()
        self.topology.handle(topology.TimeElapsed(now))
        ruling = admission.validate_quota(request, self.topology, self, self._rules, now)
        if ruling.event is not None and not request.dry_run:
            self.topology.handle(ruling.event)
        return ruling.verdict

    def to_json(self) -> dict[str, Any]:
        """Return what GET /elasticQuota answers."""
        self.topology.handle(topology.TimeElapsed(self._clock.monotonic()))
        return self.topology.to_json()

    def readings(self) -> Iterable[MetricReading]:
        """Return metrics computed on demand, so that a deleted quota has no series."""
        values: list[tuple[tuple[str, ...], float]] = []
        for quota in self._quotas.list():
            counted = self.topology.get(quota.metadata.name)
            if counted is None or counted.namespace != quota.metadata.namespace:
                continue  # a second object of one name would be a second value of one series
            weights = quota_codecs.parse_quota_resources(quota.metadata.annotations, A_QUOTA_SHARED_WEIGHT)
            if weights is None or isinstance(weights, MalformedAnnotation):
                continue
            for resource, amount in vector.parse(weights).items():
                values.append(((quota.metadata.name, resource), float(vector.units(resource, amount))))
        yield SHARED_WEIGHT.reading(values)

    # -- views

    def pods_with_label(self, quota: str) -> Sequence[str]:
        return [pod.metadata.name for pod in self._pods.by_index(_BY_QUOTA, quota)]

    def has_pods_in(self, namespace: str) -> bool:
        return bool(self._pods.by_index(_BY_NAMESPACE, namespace))

    def node_selector_of_tree(self, tree_id: str) -> LabelSelector | None:
        """Return the node selector of the tree; of several profiles the first by name counts."""
        profiles = self._profiles.by_index(_BY_TREE, tree_id)
        first = min(profiles, key=lambda one: (one.metadata.namespace, one.metadata.name), default=None)
        return first.spec.node_selector if first is not None else None

    def quotas_named(self, name: str) -> list[ElasticQuota]:
        """Return the quotas of this name. Names are meant to be global, but several namespaces may hold one."""
        return self._quotas.by_index(_BY_NAME, name)

    # -- news

    def _on_quota(self, change: ObjectChange[ElasticQuota]) -> None:
        quota = change.object
        if change.kind == "deleted":
            self.topology.handle(topology.QuotaObjectDeleted(quota.metadata.namespace, quota.metadata.name))
            return
        try:
            info = topology.QuotaInfo.from_quota(quota)
        except QuantityError as error:
            # The schema forbids it; an object from before the schema keeps its last readable state here.
            _LOG.warning("quota %s/%s is left out: %s", quota.metadata.namespace, quota.metadata.name, error)
            return
        self.topology.handle(topology.QuotaObserved(info))


def _quota_label(pod: Pod) -> Iterable[str]:
    name = pod.metadata.labels.get(L_QUOTA_NAME)
    return (name,) if name else ()


def _namespace(pod: Pod) -> Iterable[str]:
    return (pod.metadata.namespace,)


def _name(quota: ElasticQuota) -> Iterable[str]:
    return (quota.metadata.name,)


def _tree_label(profile: ElasticQuotaProfile) -> Iterable[str]:
    tree = profile.metadata.labels.get(L_QUOTA_TREE_ID)
    return (tree,) if tree else ()
