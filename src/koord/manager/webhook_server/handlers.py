"""The webhook handlers: admission functions joined to the caches that they read, and the JSON patch of results.

AdmissionReview (v1 and v1beta1) and ConversionReview are bytes in and bytes out; handlers decide.
"""

from __future__ import annotations

import base64
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

import msgspec

from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES, ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.kubernetes.admission import AdmissionRequest, AdmissionResponse, AdmissionReview
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.api.kubernetes.meta import Status
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import decode_text
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.manager.quota_topology_cache import QuotaEvaluator, QuotaTopologyCache
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.routes import WebhookRoute, served_routes
from koord.manager.webhooks import admission, configmap, node_admission, pod_mutating, pod_validating
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied, excluded_namespaces
from koord.manager.webhooks.colocation_profile import ProfileCache
from koord.manager.webhooks.pod_mutating import AdmissionContext, mutate_reservation
from koord.values.json_text import MalformedText, json_limit_exceeded

REVIEW_API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
REVIEW_KIND = "AdmissionReview"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")

TOO_DEEP = "the object is nested too deeply: hundreds of lists or maps in each other cannot be decided on"
MAX_REVIEW_BYTES = 16 << 20  # an object as it is and as it was, and what surrounds them
_REVIEW_DECODER = msgspec.json.Decoder(AdmissionReview)


class DecodedReview(msgspec.Struct, frozen=True):
    api_version: str  # the answer is given in the version of the question
    request: AdmissionRequest


class MalformedReview(msgspec.Struct, frozen=True):
    why: str


class ReviewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to send back. `patch` leads from the object that was sent to the desired one."""

    allowed: bool = True
    code: int = 0
    message: str = ""
    patch: Sequence[dict[str, Any]] = ()
    warnings: tuple[str, ...] = ()


def decode_review(body: bytes) -> DecodedReview | MalformedReview:
    if (exceeded := json_limit_exceeded(body, max_bytes=MAX_REVIEW_BYTES)) is not None:
        return MalformedReview(f"the body {exceeded}")
    try:
        review = _REVIEW_DECODER.decode(body)
    except msgspec.DecodeError as error:  # a wrong type is a ValidationError, which is one of these
        return MalformedReview(f"the body is not an AdmissionReview: {error}")
    except UnicodeDecodeError as error:
        return MalformedReview(f"the body is not UTF-8: {error}")
    except RecursionError:
        return MalformedReview(TOO_DEEP)
    if review.kind != REVIEW_KIND or review.api_version not in REVIEW_API_VERSIONS:
        asked = f"{review.api_version or '<no apiVersion>'} {review.kind or '<no kind>'}"
        return MalformedReview(
            f"{asked} is not understood here; AdmissionReview of {' or '.join(REVIEW_API_VERSIONS)} is"
        )
    request = review.request
    if request is None:
        return MalformedReview("the AdmissionReview has no request")
    if not request.uid:
        return MalformedReview("the request has no uid")
    if request.operation not in OPERATIONS:
        return MalformedReview(f"operation {request.operation!r} is none of {', '.join(OPERATIONS)}")
    if request.operation in ("CREATE", "UPDATE") and request.object is None:
        return MalformedReview(f"a {request.operation} without an object")
    return DecodedReview(review.api_version, request)


def encode_review(review: DecodedReview, answer: ReviewAnswer) -> bytes:
    patch = base64.b64encode(msgspec.json.encode(list(answer.patch))).decode() if answer.patch else None
    status = None
    if not answer.allowed or answer.message:
        status = Status(status="" if answer.allowed else "Failure", code=answer.code, message=answer.message)
    response = AdmissionResponse(
        uid=review.request.uid,
        allowed=answer.allowed,
        status=status,
        patch=patch,
        patch_type="JSONPatch" if patch else None,
        warnings=answer.warnings,
    )
    return msgspec.json.encode(AdmissionReview(api_version=review.api_version, kind=REVIEW_KIND, response=response))


def encode_rejection(why: str) -> bytes:
    """Return the body of an HTTP 400: a denying review, for callers that show it."""
    response = AdmissionResponse(uid="", allowed=False, status=Status(status="Failure", code=400, message=why))
    return msgspec.json.encode(AdmissionReview(api_version=REVIEW_API_VERSIONS[0], kind=REVIEW_KIND, response=response))


CONVERSION_API_VERSION = "apiextensions.k8s.io/v1"


class _ConversionRequest(msgspec.Struct, rename="camel"):
    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion")
    objects: list[dict[str, Any]] = []


class _ConversionReview(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: _ConversionRequest


def convert_review(body: bytes) -> bytes | MalformedReview:
    """Answer a ConversionReview. Every kind has one version: its own comes back unchanged, any other is refused."""
    review = decode_text(body, _ConversionReview, max_bytes=MAX_REVIEW_BYTES)
    if isinstance(review, MalformedText):
        return MalformedReview(f"the body is not a ConversionReview: {review}")
    if review.kind != "ConversionReview" or review.api_version != CONVERSION_API_VERSION:
        return MalformedReview(
            f"{review.api_version} {review.kind} is not understood here; {CONVERSION_API_VERSION} is"
        )
    wanted = review.request.desired_api_version
    foreign = sorted({str(obj.get("apiVersion")) for obj in review.request.objects} - {wanted})
    response: dict[str, Any] = {"uid": review.request.uid, "convertedObjects": review.request.objects}
    response["result"] = {"status": "Success"}
    if foreign:
        message = f"there is no conversion from {', '.join(foreign)} to {wanted}"
        response = {"uid": review.request.uid, "result": {"status": "Failure", "message": message}}
    return msgspec.json.encode({"apiVersion": CONVERSION_API_VERSION, "kind": "ConversionReview", "response": response})


PatchOperation = dict[str, Any]


def json_patch(old: Any, new: Any) -> list[PatchOperation]:
    """Return the JSON patch (RFC 6902) from one object to another; empty when both are equal.

    Lists of another length are replaced whole: their elements have no identity.
    """
    found: list[PatchOperation] = []
    _collect_operations(old, new, "", found)
    return found


def _collect_operations(old: Any, new: Any, path: str, found: list[PatchOperation]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        found += [{"op": "remove", "path": _json_pointer(path, key)} for key in old if key not in new]
        for key, value in new.items():
            if key in old:
                _collect_operations(old[key], value, _json_pointer(path, key), found)
            else:
                found.append({"op": "add", "path": _json_pointer(path, key), "value": value})
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            _collect_operations(before, after, f"{path}/{number}", found)
    elif type(old) is not type(new) or old != new:  # True equals 1 in Python but not on the wire
        found.append({"op": "replace", "path": path, "value": new})


def _json_pointer(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


AdmitFunction = Callable[[AdmissionRequest], AdmissionDecision | Awaitable[AdmissionDecision]]


class WebhookHandler:
    """One served webhook: its route and its admission function. It turns a decision into the answer to send."""

    def __init__(self, route: WebhookRoute, admit: AdmitFunction) -> None:
        self.route = route
        self._admit = admit

    def handles(self, request: AdmissionRequest) -> bool:
        asked = request.resource.resource + (f"/{request.sub_resource}" if request.sub_resource else "")
        return any(asked in entry.resources and request.resource.group == entry.group for entry in self.route.entries)

    async def decide(self, request: AdmissionRequest) -> AdmissionDecision:
        """Decide on the request. One about another resource, which no rule of ours sends, is allowed."""
        if not self.handles(request):
            return AdmissionAllowed()
        verdict = self._admit(request)
        return await verdict if inspect.isawaitable(verdict) else verdict

    async def answer(self, request: AdmissionRequest) -> ReviewAnswer:
        verdict = await self.decide(request)
        if isinstance(verdict, AdmissionDenied):
            return ReviewAnswer(allowed=False, code=verdict.code, message=verdict.message)
        if verdict.object is None or not self.route.mutates:
            return ReviewAnswer()
        return ReviewAnswer(patch=json_patch(request.object or {}, verdict.object))


_LOG = logging.getLogger(__name__)


class WebhookOptions(msgspec.Struct, frozen=True, kw_only=True):
    require_strategy_names: bool = False  # --node-strategy-name-need-check
    binding_admission: admission.BindingAdmissionSettings = admission.BindingAdmissionSettings()
    rules_namespace: str = NAMESPACE  # of the ConfigMap with the enhanced validator's rules
    rules_name: str = "pod-enhanced-validator-config"


class WebhookHandlers:
    """Builds a handler for each path whose gate is on. Build it before the informers start."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("config.koordinator.sh", ("clustercolocationprofiles",), READ_VERBS),
        RbacRule("", ("namespaces", "pods", "nodes"), READ_VERBS),
        RbacRule("", ("configmaps",), READ_VERBS, namespace=NAMESPACE),
        RbacRule("scheduling.k8s.io", ("priorityclasses",), READ_VERBS),
        *QuotaTopologyCache.rights,
        *QuotaEvaluator.rights,
    )

    def __init__(
        self,
        context: ManagerContext,
        quotas: QuotaTopologyCache,
        evaluator: QuotaEvaluator,
        metrics: WebhookMetrics,
        options: WebhookOptions = WebhookOptions(),  # noqa: B008 - a frozen value
        chance: Random | None = None,
    ) -> None:
        self.profile_cache = ProfileCache()
        self.excluded_namespaces = excluded_namespaces(context.settings.namespace)
        self._context = context
        self._quotas = quotas
        self._evaluator = evaluator
        self._metrics = metrics
        self._options = options
        self._rng = chance or Random()
        self._gates = context.settings.gates
        self._rules: tuple[pod_validating.RequiredLabelRule, ...] = ()
        self._fetched_namespaces: dict[str, Mapping[str, str]] = {}  # namespaces that the cache did not know when asked
        self._fetched_priority_classes: dict[str, PriorityClass] = {}
        informers, settings = context.informers, context.settings
        self._profiles = informers.for_resource(CLUSTER_COLOCATION_PROFILES)
        self._namespaces = informers.for_resource(NAMESPACES)
        self._classes = informers.for_resource(PRIORITY_CLASSES)
        self._pods = informers.for_resource(PODS)
        self._config = informers.for_resource(
            CONFIG_MAPS, settings.config_namespace, fields=f"metadata.name={settings.config_name}"
        )
        self._profiles.add_event_handler(self._on_profile)
        watched: list[Informer[Any]] = [self._profiles, self._namespaces, self._classes, self._pods, self._config]
        watched += [
            informers.for_resource(ELASTIC_QUOTAS),
            informers.for_resource(ELASTIC_QUOTA_PROFILES),
        ]  # what `quotas` rests on
        self._nodes = None
        if self._gates["ConfigMapValidatingWebhook"]:
            self._nodes = informers.for_resource(NODES)
            watched.append(self._nodes)
        if self._gates["EnablePodEnhancedValidator"]:
            rules = informers.for_resource(
                CONFIG_MAPS, options.rules_namespace, fields=f"metadata.name={options.rules_name}"
            )
            rules.add_event_handler(self._on_rules)
            watched.append(rules)
        self._informers: tuple[Informer[Any], ...] = tuple(watched)
        table: dict[str, AdmitFunction] = {
            "/mutate-pod": self._with_fetched_names(
                lambda request: pod_mutating.mutate_pod(request, self.admission_context())
            ),
            "/validate-pod": self._validate_pod,
            "/validate-pod-binding": self._validate_binding,
            "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota": quotas.mutate,
            "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota": quotas.validate,
            "/mutate-node-status": node_admission.mutate_node_status,
            "/validate-node": lambda request: node_admission.validate_node(request, self._config_data()),
            "/validate-nodeslo": node_admission.validate_node_slo,
            "/validate-configmap": lambda request: configmap.admit_configmap(request, self._configmap_context()),
            "/mutate-reservation": self._with_fetched_names(
                lambda request: mutate_reservation(request, self.admission_context())
            ),
        }
        self.handlers = {route.path: WebhookHandler(route, table[route.path]) for route in served_routes(self._gates)}

    async def wait_synced(self) -> None:
        """Wait until the caches are synced; before that nobody should be sent here."""
        for informer in self._informers:
            await informer.wait_for_sync()
        self._informers = ()  # it stays so: the next caller need not ask

    def admission_context(self) -> AdmissionContext:
        return AdmissionContext(
            gates=self._gates,
            profiles=self.profile_cache.profiles,
            namespace_labels=self.namespace_labels,
            priority_class=self._priority_class,
            draw=lambda: self._rng.randrange(100),
            quotas=self._quotas.topology,
            node_selector_of_tree=self._quotas.node_selector_of_tree,
            excluded=self.excluded_namespaces,
        )

    # Pods --------------------------------------------------------------------------------------------------------

    async def _validate_pod(self, request: AdmissionRequest) -> AdmissionDecision:
        """Validate the pod, then charge its quota: what would be denied anyway must not use it up."""
        view = self.admission_context()
        verdict = pod_validating.validate_pod(request, view, self._rules)
        if isinstance(verdict, AdmissionDenied) or not self._gates["EnableQuotaAdmission"]:
            return verdict
        about = pod_validating.decode_subject(request, view)
        return await self._evaluator.admit(request) if isinstance(about, pod_validating.PodReviewSubject) else about

    def _validate_binding(self, request: AdmissionRequest) -> AdmissionDecision:
        enabled = self._gates["BindingAdmissionWebhook"]
        ruling = admission.validate_binding(request, self._options.binding_admission, enabled, self._pods.get)
        if ruling.decision is not None:
            self._metrics.binding_decisions.labels(ruling.decision).inc()
        return ruling.verdict

    def _with_fetched_names(self, admit: Callable[[AdmissionRequest], AdmissionDecision]) -> AdmitFunction:
        """Fetch a namespace or priority class that is newer than the cache before deciding without it."""

        async def judged(request: AdmissionRequest) -> AdmissionDecision:
            namespace = request.namespace
            if namespace and namespace not in self.excluded_namespaces and self.namespace_labels(namespace) is None:
                found = await self._context.client.get(NAMESPACES, namespace)
                if not isinstance(found, ApiError):
                    self._fetched_namespaces[namespace] = found.metadata.labels
            for name in {profile.priority_class_name for profile in self.profile_cache.profiles} - {""}:
                if self._priority_class(name) is None:
                    made = await self._context.client.get(PRIORITY_CLASSES, name)
                    if not isinstance(made, ApiError):
                        self._fetched_priority_classes[name] = made
            return admit(request)

        return judged

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        found = self._namespaces.get("", name)
        if found is None:
            return self._fetched_namespaces.get(name)
        self._fetched_namespaces.pop(name, None)
        return found.metadata.labels

    def _priority_class(self, name: str) -> PriorityClass | None:
        found = self._classes.get("", name)
        if found is None:
            return self._fetched_priority_classes.get(name)
        self._fetched_priority_classes.pop(name, None)
        return found

    # Configuration -----------------------------------------------------------------------------------------------

    def _config_data(self) -> Mapping[str, str] | None:
        settings = self._context.settings
        found = self._config.get(settings.config_namespace, settings.config_name)
        return None if found is None else found.data

    def _configmap_context(self) -> configmap.ConfigMapAdmissionContext:
        settings = self._context.settings
        return configmap.ConfigMapAdmissionContext(
            namespace=settings.config_namespace,
            name=settings.config_name,
            nodes=self._node_labels,
            require_names=self._options.require_strategy_names,
        )

    def _node_labels(self) -> Iterable[tuple[str, Mapping[str, str]]]:
        nodes = self._nodes.list() if self._nodes is not None else []
        return [(node.metadata.name, node.metadata.labels) for node in nodes]

    # Event handlers ----------------------------------------------------------------------------------------------

    def _on_profile(self, change: ObjectChange[ClusterColocationProfile]) -> None:
        if change.kind == "deleted":
            self.profile_cache.drop(change.object.metadata.name)
            return
        profile = self.profile_cache.put(change.object)
        for complaint in profile.warnings:
            _LOG.warning("profile %s: %s", profile.name, complaint)

    def _on_rules(self, change: ObjectChange[ConfigMap]) -> None:
        try:
            self._rules = () if change.kind == "deleted" else pod_validating.parse_rules(change.object.data)
        except msgspec.DecodeError as error:
            _LOG.warning("the rules of the enhanced validator cannot be read, the ones before stay: %s", error)
