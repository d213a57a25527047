"""The webhook handlers: admission functions joined to the caches that they read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, ClassVar

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.builtin import CONFIG_MAPS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from koord.api.colocation import ClusterColocationProfile
from koord.api.core import ConfigMap
from koord.api.custom import CLUSTER_COLOCATION_PROFILES, ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.right import READ, Right
from koord.api.scheduling import PriorityClass
from koord.kube.cache import Change
from koord.kube.informer import Informer
from koord.kube.refused import Refused
from koord.manager.metrics import Metrics
from koord.manager.quota.evaluator import QuotaEvaluator
from koord.manager.quota.live import LiveQuotas
from koord.manager.serving.door import Admit, Door
from koord.manager.serving.route import served
from koord.manager.webhooks import binding, configmap, node_mutating, node_validating, reservation
from koord.manager.webhooks.exclusion import excluded
from koord.manager.webhooks.pod_mutating import admission as pod_mutating
from koord.manager.webhooks.pod_validating import admission as pod_validating
from koord.manager.webhooks.pod_validating import required_label
from koord.manager.webhooks.profile.compiled import Book
from koord.manager.webhooks.verdict import Denied, Verdict
from koord.manager.webhooks.world import View
from koord.manager.world import NAMESPACE, World

_LOG = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that only webhooks read."""

    names_needed: bool = False  # --node-strategy-name-need-check
    binding: binding.Settings = binding.Settings()
    rules_namespace: str = NAMESPACE  # of the ConfigMap with the enhanced validator's rules
    rules_name: str = "pod-enhanced-validator-config"


class Judge:
    """Builds a handler for each path whose gate is on. Build it before the informers start."""

    rights: ClassVar[tuple[Right, ...]] = (
        Right("config.koordinator.sh", ("clustercolocationprofiles",), READ),
        Right("", ("namespaces", "pods", "nodes"), READ),
        Right("", ("configmaps",), READ, namespace=NAMESPACE),
        Right("scheduling.k8s.io", ("priorityclasses",), READ),
        *LiveQuotas.rights,
        *QuotaEvaluator.rights,
    )

    def __init__(
        self,
        world: World,
        quotas: LiveQuotas,
        evaluator: QuotaEvaluator,
        metrics: Metrics,
        options: Options = Options(),  # noqa: B008 - a frozen value
        chance: Random | None = None,
    ) -> None:
        self.book = Book()
        self.excluded = excluded(world.settings.namespace)
        self._world = world
        self._quotas = quotas
        self._evaluator = evaluator
        self._metrics = metrics
        self._options = options
        self._chance = chance or Random()
        self._gates = world.settings.gates
        self._rules: tuple[required_label.Rule, ...] = ()
        self._lately_seen: dict[str, Mapping[str, str]] = {}  # namespaces that the cache did not know when asked
        self._lately_made: dict[str, PriorityClass] = {}
        informers, settings = world.informers, world.settings
        self._profiles = informers.of(CLUSTER_COLOCATION_PROFILES)
        self._namespaces = informers.of(NAMESPACES)
        self._classes = informers.of(PRIORITY_CLASSES)
        self._pods = informers.of(PODS)
        self._config = informers.of(
            CONFIG_MAPS, settings.config_namespace, fields=f"metadata.name={settings.config_name}"
        )
        self._profiles.on(self._on_profile)
        watched: list[Informer[Any]] = [self._profiles, self._namespaces, self._classes, self._pods, self._config]
        watched += [informers.of(ELASTIC_QUOTAS), informers.of(ELASTIC_QUOTA_PROFILES)]  # what `quotas` rests on
        self._nodes = None
        if self._gates["ConfigMapValidatingWebhook"]:
            self._nodes = informers.of(NODES)
            watched.append(self._nodes)
        if self._gates["EnablePodEnhancedValidator"]:
            rules = informers.of(CONFIG_MAPS, options.rules_namespace, fields=f"metadata.name={options.rules_name}")
            rules.on(self._on_rules)
            watched.append(rules)
        self._watched: tuple[Informer[Any], ...] = tuple(watched)
        table: dict[str, Admit] = {
            "/mutate-pod": self._with_seen_names(lambda request: pod_mutating.admit(request, self.view())),
            "/validate-pod": self._validate_pod,
            "/validate-pod-binding": self._validate_binding,
            "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota": quotas.mutate,
            "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota": quotas.validate,
            "/mutate-node-status": node_mutating.admit,
            "/validate-node": lambda request: node_validating.admit(request, self._config_data()),
            "/validate-configmap": lambda request: configmap.admit_configmap(request, self._config_view()),
            "/mutate-reservation": self._with_seen_names(lambda request: reservation.admit(request, self.view())),
        }
        self.doors = {route.path: Door(route, table[route.path]) for route in served(self._gates)}

    async def wait_synced(self) -> None:
        """Wait until the caches are synced; before that nobody should be sent here."""
        for informer in self._watched:
            await informer.wait_synced()
        self._watched = ()  # it stays so: the next caller need not ask

    def view(self) -> View:
        return View(
            gates=self._gates,
            profiles=self.book.profiles,
            namespace_labels=self.namespace_labels,
            priority_class=self._priority_class,
            draw=lambda: self._chance.randrange(100),
            quotas=self._quotas.topology,
            pool_of_tree=self._quotas.pool_of_tree,
            excluded=self.excluded,
            rules=self._rules,
        )

    # Pods --------------------------------------------------------------------------------------------------------

    async def _validate_pod(self, request: AdmissionRequest) -> Verdict:
        """Validate the pod, then charge its quota: what would be denied anyway must not use it up."""
        view = self.view()
        verdict = pod_validating.admit(request, view)
        if isinstance(verdict, Denied) or not self._gates["EnableQuotaAdmission"]:
            return verdict
        about = pod_validating.subject(request, view)
        return await self._evaluator.admit(request) if isinstance(about, pod_validating.Subject) else about

    def _validate_binding(self, request: AdmissionRequest) -> Verdict:
        enabled = self._gates["BindingAdmissionWebhook"]
        ruling = binding.admit(request, self._options.binding, enabled, self._pods.get)
        if ruling.decision is not None:
            self._metrics.binding_decisions.labels(ruling.decision).inc()
        return ruling.verdict

    def _with_seen_names(self, admit: Callable[[AdmissionRequest], Verdict]) -> Admit:
        """Fetch a namespace or priority class that is newer than the cache before deciding without it."""

        async def judged(request: AdmissionRequest) -> Verdict:
            namespace = request.namespace
            if namespace and namespace not in self.excluded and self.namespace_labels(namespace) is None:
                found = await self._world.client.get(NAMESPACES, namespace)
                if not isinstance(found, Refused):
                    self._lately_seen[namespace] = found.metadata.labels
            for name in {profile.priority_class_name for profile in self.book.profiles} - {""}:
                if self._priority_class(name) is None:
                    made = await self._world.client.get(PRIORITY_CLASSES, name)
                    if not isinstance(made, Refused):
                        self._lately_made[name] = made
            return admit(request)

        return judged

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        found = self._namespaces.get("", name)
        if found is None:
            return self._lately_seen.get(name)
        self._lately_seen.pop(name, None)
        return found.metadata.labels

    def _priority_class(self, name: str) -> PriorityClass | None:
        found = self._classes.get("", name)
        if found is None:
            return self._lately_made.get(name)
        self._lately_made.pop(name, None)
        return found

    # Configuration -----------------------------------------------------------------------------------------------

    def _config_data(self) -> Mapping[str, str] | None:
        settings = self._world.settings
        found = self._config.get(settings.config_namespace, settings.config_name)
        return None if found is None else found.data

    def _config_view(self) -> configmap.View:
        settings = self._world.settings
        return configmap.View(
            namespace=settings.config_namespace,
            name=settings.config_name,
            nodes=self._node_labels,
            names_needed=self._options.names_needed,
        )

    def _node_labels(self) -> Iterable[tuple[str, Mapping[str, str]]]:
        nodes = self._nodes.list() if self._nodes is not None else []
        return [(node.metadata.name, node.metadata.labels) for node in nodes]

    # Event handlers ----------------------------------------------------------------------------------------------

    def _on_profile(self, change: Change[ClusterColocationProfile]) -> None:
        if change.kind == "deleted":
            self.book.drop(change.object.metadata.name)
            return
        profile = self.book.put(change.object)
        for complaint in profile.complaints:
            _LOG.warning("profile %s: %s", profile.name, complaint)

    def _on_rules(self, change: Change[ConfigMap]) -> None:
        try:
            self._rules = () if change.kind == "deleted" else required_label.rules(change.object.data)
        except msgspec.DecodeError as error:
            _LOG.warning("the rules of the enhanced validator cannot be read, the ones before stay: %s", error)
