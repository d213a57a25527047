"""This module parses what pods request of devices, once for all pods with equal requests, and follows GPU templates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar, TypeVar

from koord.api.annotations import device_codecs, pod_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.reservation_codecs import ignores_reservations, requires_pre_allocation
from koord.api.config.scheduler.koordinator_args import GPUSharedResourceTemplatesConfig
from koord.api.koordinator import protocol
from koord.api.koordinator import scheduling as wire
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.handle import Handle, single_object
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.device_share.annotations import from_annotation
from koord.scheduler.plugins.device_share.device_amounts import Amounts, DeviceAmounts
from koord.scheduler.plugins.device_share.refusal import NO_TEMPLATE, DeviceRefusal, DeviceRefusalCode
from koord.scheduler.plugins.device_share.request import (
    DeviceDemand,
    GpuTemplates,
    device_requests,
    parse_demand,
    parse_templates,
)
from koord.scheduler.plugins.device_share.selection import per_device_amounts
from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml

T = TypeVar("T")

PLUGIN_NAME = "DeviceShare"
_REQUESTS_KEPT = 512
_VERDICTS_KEPT = 1 << 14
_READ_ANNOTATIONS = (protocol.A_DEVICE_ALLOCATE_HINT, protocol.A_DEVICE_JOINT_ALLOCATE, protocol.A_GPU_PARTITION_SPEC)


def to_reject(refusal: DeviceRefusal) -> Reject:
    return Reject(refusal.reasons, refusal.code is not DeviceRefusalCode.UNRESOLVABLE)


class PodDeviceRequest:
    """One device request, shared by all pods that ask for the same.

    `card_counts` is None where counting the cards that would fit does not tell whether the pod fits.
    """

    __slots__ = (
        "_codes",
        "_rejections",
        "card_counts",
        "counting_suffices",
        "demand",
        "designated",
        "id",
        "ignores_reservations",
        "needs_reservation",
        "numa_answers",
        "verdicts",
    )

    def __init__(
        self, number: int, demand: DeviceDemand, *, required: bool, ignores: bool, promised: DeviceAmounts | None = None
    ) -> None:
        self.id = number
        self.demand = demand
        self.needs_reservation = required  # it must use a reservation
        self.ignores_reservations = ignores  # it may use what is reserved for others
        self.designated = promised  # devices that it was given earlier, to be given again
        self.card_counts = _card_counts(demand) if promised is None else None
        # Enough cards that fit are enough: it matters not where they are.
        self.counting_suffices = (
            self.card_counts is not None and not demand.same_pcie and not any(h.scope for h in demand.hints.values())
        )
        self.verdicts: dict[Hashable, Reject | None] = {}  # by situation, with what the node's labels say
        self.numa_answers: dict[Hashable, Any] = {}  # what was said of NUMA nodes, by situation
        self._rejections: list[Reject] = []
        self._codes: dict[Reject, int] = {}

    def code(self, verdict: Reject | None) -> int:
        if verdict is None:
            return 0
        known = self._codes.get(verdict)
        if known is None:
            self._rejections.append(verdict)
            known = self._codes[verdict] = len(self._rejections)
        return known

    def rejection_of_code(self, code: int) -> Reject:
        return self._rejections[code - 1]

    def remember(self, situation: Hashable, verdict: Reject | None) -> None:
        if len(self.verdicts) >= _VERDICTS_KEPT:
            self.verdicts.clear()
        self.verdicts[situation] = verdict

    def numa_answer(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the memoized answer for a situation, computing it for the first caller."""
        if key not in self.numa_answers:
            if len(self.numa_answers) >= _VERDICTS_KEPT:
                self.numa_answers.clear()
            self.numa_answers[key] = work()
        found: T = self.numa_answers[key]
        return found


class PodDeviceRequestCache:
    def __init__(self) -> None:
        self._templates = GpuTemplates()
        self._template_error = ""
        self._known: dict[Hashable, PodDeviceRequest | Reject] = {}
        self._made = 0

    def set_templates(self, templates: GpuTemplates, trouble: str) -> None:
        """Set the GPU templates that are in force from now. `trouble`: why there are none, for pods that need one."""
        self._templates, self._template_error = templates, trouble
        self._known.clear()

    def for_pod(self, pod: PodInfo) -> PodDeviceRequest | Reject | None:
        """Return the pod's request, its rejection if invalid, or None if it requests no device. Runs for every pod."""
        asked = pod.shape.memo.get(PLUGIN_NAME)
        if asked is None:
            asked = pod.shape.memo[PLUGIN_NAME] = device_requests(pod.shape.requests)
        if not asked:
            return None
        annotations, labels = pod.annotations, pod.labels
        required = protocol.A_RESERVATION_AFFINITY in annotations or requires_pre_allocation(labels)
        ignores = ignores_reservations(labels)
        read = (
            *map(annotations.get, _READ_ANNOTATIONS),
            labels.get(protocol.L_GPU_ISOLATION_PROVIDER),
            required,
            ignores,
        )
        hinted = protocol.A_SCHEDULING_HINT in annotations or protocol.A_SCHEDULING_HINT_DEPRECATED in annotations
        promised = _designated_devices(annotations) if hinted and protocol.A_DEVICE_ALLOCATED in annotations else None
        key = (asked, read, None if promised is None else annotations[protocol.A_DEVICE_ALLOCATED])
        known = self._known.get(key)
        if known is None:
            demand = parse_demand(dict(asked), annotations, labels, self._templates)
            assert demand is not None
            if len(self._known) >= _REQUESTS_KEPT:  # the oldest goes: if it is asked again, it is read again
                del self._known[next(iter(self._known))]
            if isinstance(demand, DeviceRefusal):
                known = to_reject(demand)
                if self._template_error and NO_TEMPLATE in known.reasons:
                    known = Reject((*known.reasons, self._template_error), resolvable=False)
            else:
                known = PodDeviceRequest(self._made, demand, required=required, ignores=ignores, promised=promised)
                self._made += 1
            self._known[key] = known
        return known


def _designated_devices(annotations: Mapping[str, str]) -> DeviceAmounts | None:
    """Return the devices of the pod's annotation if a hint designates them; else they are of an earlier attempt."""
    hint = pod_codecs.parse_scheduling_hint(annotations)
    if not isinstance(hint, pod_codecs.PodSchedulingHint) or PLUGIN_NAME not in hint.extensions:
        return None
    found = device_codecs.parse_device_allocated(annotations)
    return None if found is None or isinstance(found, MalformedAnnotation) else from_annotation(found) or None


def _card_counts(demand: DeviceDemand) -> dict[str, tuple[Amounts, int]] | None:
    """Return by type, in allocation order, what each card must have left and how many such cards are needed."""
    if demand.templates is not None or demand.partition is not None or wire.GPU in demand.joint_types[1:]:
        return None
    need, hints = demand.gpu, [demand.hint(device_type) for device_type in demand.requests]
    if need is not None and need.shared and need.count > 1 and demand.hint(wire.GPU).scope:
        return None  # refused wherever it is
    if any(hint.selector is not None or hint.vf_selector is not None for hint in hints):
        return None
    joint = demand.joint_types if len(demand.requests) > 1 else ()
    order = [*joint, *(device_type for device_type in demand.requests if device_type not in joint)]
    found = {device_type: per_device_amounts(device_type, demand) for device_type in order}
    return {kind: each for kind, each in found.items() if each is not None} if None not in found.values() else None


_TEMPLATES_KEY = "data.yaml"


class GpuTemplateWatcher:
    """Follows the ConfigMap of GPU templates; `changed` gets the templates in force and the error or ""."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule(
            "", ("configmaps",), READ_VERBS, names=(protocol.GPU_TEMPLATES_CONFIG_MAP,), namespace=protocol.NAMESPACE
        ),
    )

    def __init__(
        self, config: GPUSharedResourceTemplatesConfig, handle: Handle, changed: Callable[[GpuTemplates, str], None]
    ) -> None:
        self._matched = frozenset(config.matched_resources)
        self._namespace, self._name = config.config_map_namespace, config.config_map_name
        self._changed = changed
        changed(GpuTemplates({}, self._matched), "")
        handle.lister(single_object(CONFIG_MAPS, self._namespace, self._name)).on_change(self._on_config_map)

    def _on_config_map(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        seen = new if new is not None else old
        assert seen is not None
        if (seen.metadata.namespace, seen.metadata.name) != (self._namespace, self._name):
            return  # a handle may show more than was asked for
        found = self._parse(new.data.get(_TEMPLATES_KEY, "")) if new is not None else GpuTemplates({}, self._matched)
        if isinstance(found, str):
            self._changed(GpuTemplates({}, self._matched), f"ConfigMap {self._namespace}/{self._name}: {found}")
        else:
            self._changed(found, "")

    def _parse(self, text: str) -> GpuTemplates | str:
        document = load_yaml(text)
        if isinstance(document, MalformedText):
            return f"{_TEMPLATES_KEY} {document}"
        return parse_templates(document, self._matched)
