"""The plugins for pods: tolerations for unreachable nodes, and the priority behind a priority class."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.store import Store

Obj = dict[str, Any]

SILENT_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TOLERATION_SECONDS = 300
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
PREEMPTS = "PreemptLowerPriority"


def _is_pod_write(attributes: Attributes) -> bool:
    return (
        attributes.resource.storage == "pods"
        and not attributes.subresource
        and attributes.operation in ("CREATE", "UPDATE")
        and attributes.obj is not None
    )


class DefaultTolerations:
    async def admit(self, attributes: Attributes) -> None:
        if not _is_pod_write(attributes) or attributes.obj is None:
            return
        spec = attributes.obj.get("spec") or {}
        held = spec.get("tolerations") or ()
        added = [
            {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
            for taint in SILENT_NODE_TAINTS
            if not (held and any(_covers(toleration, taint) for toleration in held))
        ]
        if added:
            spec["tolerations"] = [*held, *added]


def _covers(toleration: Obj, taint: str) -> bool:
    return toleration.get("key") in (taint, "", None) and toleration.get("effect") in ("NoExecute", "", None)


class PodPriority:
    def __init__(self, store: Store) -> None:
        self._classes = store.collection(PRIORITY_CLASSES)
        self._default: tuple[int, Obj | None] = (-1, None)  # as of this many events

    async def admit(self, attributes: Attributes) -> None:
        if not _is_pod_write(attributes) or attributes.obj is None:
            return
        spec = attributes.obj.get("spec")
        if spec is None:
            return
        if attributes.operation == "CREATE":
            self._resolve(attributes, spec)
            return
        before = (attributes.old or {}).get("spec") or {}
        for field in ("priority", "preemptionPolicy"):  # a client that writes a pod back need not know them
            if spec.get(field) is None and before.get(field) is not None:
                spec[field] = before[field]

    def _resolve(self, attributes: Attributes, spec: Obj) -> None:
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
        policy = (chosen or {}).get("preemptionPolicy") or PREEMPTS
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
        """Return the class for pods that name none: of the classes marked as default, the one with the lowest
        value.
        """
        if self._default[0] != self._classes.end:
            marked = [r.plain() for r in self._classes.scan() if r.plain().get("globalDefault")]
            chosen = min(marked, key=lambda c: c.get("value", 0), default=None)
            self._default = (self._classes.end, chosen)
        return self._default[1]


def _forbidden(attributes: Attributes, why: str) -> refusal.Refusal:
    return refusal.forbidden("pods", "", attributes.name, why)


class PriorityClasses:
    """Allows one default priority class and protects the system's own from deletion."""

    SYSTEM = frozenset(("system-node-critical", "system-cluster-critical"))

    def __init__(self, store: Store) -> None:
        self._classes = store.collection(PRIORITY_CLASSES)

    async def admit(self, attributes: Attributes) -> None:
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
                    attributes,
                    f"PriorityClass {record.name} is already marked as default. Only one default can exist",
                )

    def _refused(self, attributes: Attributes, why: str) -> refusal.Refusal:
        return refusal.forbidden(attributes.resource.plural, attributes.resource.group, attributes.name, why)
