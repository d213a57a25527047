"""The admission plugins of a server: the built-in ones of kube-apiserver, then the hooks.

Hooks may change what the built-in plugins looked at (the priority class of a pod), so those run once more afterwards. A
hook that asks for reinvocation is called again when others changed the object after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.admission.hooks import AdmissionHooks, HookInvocation
from koord.embedded.apiserver.admission.namespace_limits import (
    LimitRangeDefaults,
    LimitRanges,
    LimitRangeValidation,
    ResourceQuotaAdmission,
    ServiceAccountAdmission,
)
from koord.embedded.apiserver.admission.validating_policy import ValidatingPolicyAdmission
from koord.embedded.apiserver.admission.webhooks import WebhookConfigurationCheck
from koord.embedded.apiserver.catalog import ResourceCatalog
from koord.embedded.apiserver.crd import definition_strategy
from koord.embedded.apiserver.crd.version_validation import definition_warnings
from koord.embedded.apiserver.rest.object_metadata import deep_copy
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes, AdmissionChain, AdmissionPlugin
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.telemetry.clock import Clock


class MutatingAdmission:
    """Runs plugins and hooks once, and again as far as the first pass made it necessary."""

    def __init__(self, plugins: Sequence[AdmissionPlugin], hooks: AdmissionHooks) -> None:
        self._plugins = tuple(plugins)
        self._hooks = hooks

    async def admit(self, attributes: AdmissionAttributes) -> None:
        for plugin in self._plugins:
            await plugin.admit(attributes)
        asked = self._hooks.invocations(attributes, "mutating")
        if not asked:
            return
        changers = [index for index, one in enumerate(asked) if await self._hooks.mutate(attributes, one)]
        if changers:
            await self._reinvoke(attributes, asked, changers[-1])

    async def _reinvoke(self, attributes: AdmissionAttributes, asked: Sequence[HookInvocation], last: int) -> None:
        assert attributes.obj is not None, "a hook changed the object"
        before = deep_copy(attributes.obj)
        for plugin in self._plugins:
            await plugin.admit(attributes)
        touched = attributes.obj != before
        for index, one in enumerate(asked):
            if not one.hook.reinvoked or not (touched or index < last):
                continue
            if await self._hooks.mutate(attributes, one):
                touched = True


class ValidatingAdmission:
    def __init__(self, hooks: AdmissionHooks) -> None:
        self._hooks = hooks

    async def admit(self, attributes: AdmissionAttributes) -> None:
        await self._hooks.validate(attributes)


class CrdWarnings:
    """Warns about parts of a CustomResourceDefinition that have no effect."""

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if (
            attributes.resource.storage != definition_strategy.CRD_STORAGE_KEY
            or attributes.subresource
            or attributes.obj is None
        ):
            return
        attributes.warnings += definition_warnings(attributes.obj)


def standard_admission_chain(
    store: ObjectStore,
    hooks: AdmissionHooks,
    catalog: ResourceCatalog,
    clock: Clock,
    service_accounts: ServiceAccountAdmission | None = None,
) -> AdmissionChain:
    """Return the chain. With `service_accounts` a pod needs its account, which somebody has to make first."""
    limits = LimitRanges(store)
    plugins: tuple[AdmissionPlugin, ...] = (
        NamespaceLifecycle(store),
        LimitRangeDefaults(limits),
        *((service_accounts,) if service_accounts is not None else ()),
        PodPriority(store),
        DefaultTolerationSeconds(),
        RuntimeClassAdmission(store),
        StorageObjectInUseProtection(),
        DefaultStorageClass(store),
        PriorityClassValidation(store),
    )
    checks = (
        WebhookConfigurationCheck(),
        CrdWarnings(),
        LimitRangeValidation(limits),
        ValidatingPolicyAdmission(store, catalog),
        ValidatingAdmission(hooks),
        ResourceQuotaAdmission(store, clock),  # the last: what it charges is written at once
    )
    return AdmissionChain((MutatingAdmission(plugins, hooks),), checks)


IMMORTAL_NAMESPACES = frozenset(("default", "kube-system", "kube-public"))


class NamespaceLifecycle:
    def __init__(self, store: ObjectStore) -> None:
        self._namespaces = store.collection("namespaces")
        self._active: dict[str, StoreRecord] = {}  # records that were seen to be active, by name

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if attributes.operation == "DELETE":
            if attributes.resource.storage == "namespaces" and attributes.name in IMMORTAL_NAMESPACES:
                why = "this namespace may not be deleted"
                raise api_errors.forbidden("namespaces", "", attributes.name, why)
            return
        if attributes.operation == "CREATE" and attributes.namespace and attributes.resource.namespaced:
            self._check(attributes)

    def _check(self, attributes: AdmissionAttributes) -> None:
        name = attributes.namespace
        record = self._namespaces.get("", name)
        if record is None:
            self._active.pop(name, None)
            raise api_errors.not_found("namespaces", "", name)
        if self._active.get(name) is record:
            return
        found = record.plain()
        if "deletionTimestamp" not in found["metadata"] and found.get("status", {}).get("phase") != "Terminating":
            self._active[name] = record
            return
        resource = attributes.resource
        why = f"unable to create new content in namespace {name} because it is being terminated"
        refused = api_errors.forbidden(resource.plural, resource.group, attributes.name, why)
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {name} is being terminated",
            "field": "metadata.namespace",
        }
        refused.details = {**(refused.details or {}), "causes": [cause]}
        raise refused


UNREACHABLE_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
DEFAULT_TOLERATION_SECONDS = 300
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"


def _is_pod_write(attributes: AdmissionAttributes) -> bool:
    return (
        attributes.resource.storage == "pods"
        and not attributes.subresource
        and attributes.operation in ("CREATE", "UPDATE")
        and attributes.obj is not None
    )


class DefaultTolerationSeconds:
    async def admit(self, attributes: AdmissionAttributes) -> None:
        if not _is_pod_write(attributes) or attributes.obj is None:
            return
        spec = attributes.obj.get("spec") or {}
        held = spec.get("tolerations") or ()
        added = [
            {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEFAULT_TOLERATION_SECONDS}
            for taint in UNREACHABLE_NODE_TAINTS
            if not (held and any(_covers(toleration, taint) for toleration in held))
        ]
        if added:
            spec["tolerations"] = [*held, *added]


def _covers(toleration: Obj, taint: str) -> bool:
    return toleration.get("key") in (taint, "", None) and toleration.get("effect") in ("NoExecute", "", None)


class PodPriority:
    def __init__(self, store: ObjectStore) -> None:
        self._classes = store.collection(PRIORITY_CLASSES)
        self._default: tuple[int, Obj | None] = (-1, None)  # as of this many events

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if not _is_pod_write(attributes) or attributes.obj is None:
            return
        spec = attributes.obj.get("spec")
        if spec is None:
            return
        if attributes.operation == "CREATE":
            self._resolve(attributes, spec)
            return
        before = (attributes.old_obj or {}).get("spec") or {}
        for field in ("priority", "preemptionPolicy"):  # a client that writes a pod back need not know them
            if spec.get(field) is None and before.get(field) is not None:
                spec[field] = before[field]

    def _resolve(self, attributes: AdmissionAttributes, spec: Obj) -> None:
        name = spec.get("priorityClassName")
        if name:
            record = self._classes.get("", name)
            if record is None:
                raise _forbidden(attributes, f"no PriorityClass with name {name} was found")
            chosen: Obj | None = record.plain()
        else:
            chosen = self._global_default()
            if chosen is not None:
                spec["priorityClassName"] = chosen["metadata"]["name"]
        value = chosen.get("value", 0) if chosen else 0
        policy = (chosen or {}).get("preemptionPolicy") or PREEMPT_LOWER_PRIORITY
        given = spec.get("priority")
        if given is not None and given != value:
            raise _forbidden(
                attributes,
                f"the integer value of priority ({given}) must not be provided in pod spec; "
                f"priority admission controller computed {value} from the given PriorityClass name",
            )
        stated = spec.get("preemptionPolicy")
        if stated is not None and stated != policy:
            raise _forbidden(
                attributes,
                f"the string value of PreemptionPolicy ({stated}) must not be provided in pod spec; "
                f"priority admission controller computed {policy} from the given PriorityClass name",
            )
        spec["priority"], spec["preemptionPolicy"] = value, policy

    def _global_default(self) -> Obj | None:
        """Return the class for pods that name none: of the classes marked as default, the one with the lowest value."""
        if self._default[0] != self._classes.end_position:
            marked = [r.plain() for r in self._classes.scan() if r.plain().get("globalDefault")]
            chosen = min(marked, key=lambda c: c.get("value", 0), default=None)
            self._default = (self._classes.end_position, chosen)
        return self._default[1]


RUNTIME_CLASSES = "runtimeclasses.node.k8s.io"


class RuntimeClassAdmission:
    """Gives a new pod the overhead, node selector and tolerations of its RuntimeClass."""

    def __init__(self, store: ObjectStore) -> None:
        self._classes = store.collection(RUNTIME_CLASSES)

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if not _is_pod_write(attributes) or attributes.operation != "CREATE" or attributes.obj is None:
            return
        spec = attributes.obj.get("spec") or {}
        name = spec.get("runtimeClassName")
        if name is None:
            if spec.get("overhead"):
                raise _forbidden(attributes, _OVERHEAD_WITHOUT_CLASS)
            return
        if not name:
            raise api_errors.StatusError(500, "", "resource name may not be empty")
        record = self._classes.get("", name)
        if record is None:
            raise _forbidden(attributes, f'pod rejected: RuntimeClass "{name}" not found')
        runtime_class = record.plain()
        self._set_overhead(attributes, spec, (runtime_class.get("overhead") or {}).get("podFixed"))
        self._set_scheduling(attributes, spec, runtime_class.get("scheduling") or {})

    def _set_overhead(self, attributes: AdmissionAttributes, spec: Obj, fixed: Obj | None) -> None:
        given = spec.get("overhead")
        if not fixed:
            if given:
                raise _forbidden(attributes, _OVERHEAD_WITHOUT_CLASS)
            return
        if given and given != fixed:
            raise _forbidden(attributes, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
        spec["overhead"] = dict(fixed)

    def _set_scheduling(self, attributes: AdmissionAttributes, spec: Obj, scheduling: Obj) -> None:
        wanted, given = scheduling.get("nodeSelector") or {}, spec.get("nodeSelector") or {}
        for key, value in wanted.items():
            if given.get(key, value) != value:
                raise _forbidden(
                    attributes,
                    f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                    f"pod.spec.nodeSelector[{key}] = {given[key]}",
                )
        if wanted:
            spec["nodeSelector"] = {**given, **wanted}
        if scheduling.get("tolerations"):
            spec["tolerations"] = merge_tolerations([*(spec.get("tolerations") or ()), *scheduling["tolerations"]])


_OVERHEAD_WITHOUT_CLASS = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"


def merge_tolerations(found: Sequence[Obj]) -> list[Obj]:
    """Return the tolerations without those that another one covers; of equal ones the first stays."""
    merged: list[Obj] = []
    for at, toleration in enumerate(found):
        later = (other for other in found[at + 1 :] if other != toleration)
        if not any(_tolerates_all_of(other, toleration) for other in (*merged, *later)):
            merged.append(toleration)
    return merged


def _tolerates_all_of(wide: Obj, narrow: Obj) -> bool:
    if wide == narrow:
        return True
    exists = wide.get("operator") == "Exists"
    if narrow.get("key", "") != wide.get("key", "") and (wide.get("key") or not exists):
        return False
    if wide.get("effect") and narrow.get("effect") != wide["effect"]:
        return False
    seconds = wide.get("tolerationSeconds") if wide.get("effect") == "NoExecute" else None
    if seconds is not None and (narrow.get("tolerationSeconds") is None or narrow["tolerationSeconds"] > seconds):
        return False
    if exists:
        return True
    is_equal = wide.get("operator", "Equal") == "Equal" and narrow.get("operator", "Equal") == "Equal"
    return bool(is_equal and narrow.get("value", "") == wide.get("value", ""))


def _forbidden(attributes: AdmissionAttributes, why: str) -> api_errors.StatusError:
    return api_errors.forbidden("pods", "", attributes.name, why)


class PriorityClassValidation:
    """Allows one default priority class and protects the system's own from deletion."""

    SYSTEM = frozenset(("system-node-critical", "system-cluster-critical"))

    def __init__(self, store: ObjectStore) -> None:
        self._classes = store.collection(PRIORITY_CLASSES)

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if attributes.resource.storage != PRIORITY_CLASSES:
            return
        if attributes.operation == "DELETE":
            if attributes.name in self.SYSTEM:
                raise self._refused(attributes, "this is a system priority class and cannot be deleted")
            return
        if not (attributes.obj or {}).get("globalDefault"):
            return
        for record in self._classes.scan():
            if record.name != attributes.name and record.plain().get("globalDefault"):
                raise self._refused(
                    attributes, f"PriorityClass {record.name} is already marked as default. Only one default can exist"
                )

    def _refused(self, attributes: AdmissionAttributes, why: str) -> api_errors.StatusError:
        return api_errors.forbidden(attributes.resource.plural, attributes.resource.group, attributes.name, why)


PROTECTION_FINALIZERS = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}
STORAGE_CLASSES = "storageclasses.storage.k8s.io"
DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"


class StorageObjectInUseProtection:
    async def admit(self, attributes: AdmissionAttributes) -> None:
        finalizer = PROTECTION_FINALIZERS.get(attributes.resource.storage)
        if finalizer is None or attributes.operation != "CREATE" or attributes.subresource or attributes.obj is None:
            return
        meta = attributes.obj["metadata"]
        held = meta.get("finalizers") or []
        if finalizer not in held:
            meta["finalizers"] = [*held, finalizer]


class DefaultStorageClass:
    def __init__(self, store: ObjectStore) -> None:
        self._classes = store.collection(STORAGE_CLASSES)

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if attributes.resource.storage != "persistentvolumeclaims" or attributes.operation != "CREATE":
            return
        if attributes.subresource or attributes.obj is None:
            return
        spec = attributes.obj.setdefault("spec", {})
        notes = attributes.obj["metadata"].get("annotations") or {}
        if spec.get("storageClassName") is not None or BETA_STORAGE_CLASS in notes:
            return
        chosen = self._default()
        if chosen is not None:
            spec["storageClassName"] = chosen

    def _default(self) -> str | None:
        """Return the newest of the classes that are marked as default; of equals the first by name."""
        marked = [record for record in self._classes.scan() if _is_default(record)]
        marked.sort(key=lambda record: record.name)
        marked.sort(key=_creation_timestamp, reverse=True)
        return marked[0].name if marked else None


def _is_default(record: StoreRecord) -> bool:
    notes = record.plain()["metadata"].get("annotations") or {}
    return any(notes.get(key) == "true" for key in DEFAULT_CLASS_ANNOTATIONS)


def _creation_timestamp(record: StoreRecord) -> str:
    return str(record.plain()["metadata"].get("creationTimestamp") or "")
