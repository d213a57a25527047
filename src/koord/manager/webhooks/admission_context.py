"""The caches that the admission of pods and reservations reads, and the mutating admission of reservations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.api.patch.merge_schema import RESERVATION_MERGE_SCHEMA
from koord.manager.webhooks import admission, colocation_profile
from koord.manager.webhooks.admission import SYSTEM_NAMESPACES


class QuotaLookup(Protocol):
    """The part of the quota topology that pods need; QuotaTopology implements it."""

    def quota_of(self, labels: Mapping[str, str], namespace: str, *, default: bool = True) -> str:
        """Return the name of a pod's quota, which need not exist. Without `default` only the label counts."""

    def get(self, name: str) -> object | None: ...

    def is_parent(self, name: str) -> bool: ...

    def tree_id(self, name: str) -> str: ...

    def owner_of(self, namespace: str) -> str | None:
        """Return the quota whose annotation lists the namespace."""


class AdmissionContext(msgspec.Struct, frozen=True, kw_only=True):
    """AdmissionContext is what is known at a request, cheap to build: compiled profiles and cache lookups."""

    gates: Mapping[str, bool]
    profiles: tuple[colocation_profile.CompiledProfile, ...]  # in the order of their names
    namespace_labels: Callable[[str], Mapping[str, str] | None]
    priority_class: Callable[[str], PriorityClass | None]
    draw: Callable[[], int]  # 0 to 99, for profiles with a probability
    quotas: QuotaLookup
    node_selector_of_tree: Callable[[str], LabelSelector | None]  # nodeSelector of the tree's first ElasticQuotaProfile
    excluded: frozenset[str] = SYSTEM_NAMESPACES  # namespaces that are left alone


RESERVATION_LAYOUT = colocation_profile.ObjectLayout(
    model=Reservation,
    merge_shape=RESERVATION_MERGE_SCHEMA,
    pod_spec=("spec", "template", "spec"),
    template=("spec", "template"),
)


def mutate_reservation(request: AdmissionRequest, context: AdmissionContext) -> admission.AdmissionDecision:
    """Apply profiles to the reservation itself and to its pod template.

    Namespace selectors are not evaluated, because a reservation has no namespace, and resources are not translated.
    """
    given = request.object
    ours = request.resource.resource == "reservations" and not request.sub_resource and request.operation == "CREATE"
    if not ours or given is None:
        return admission.AdmissionAllowed()
    try:
        given, reservation = admission.decode_object(given, Reservation)
    except msgspec.ValidationError as error:
        return admission.AdmissionDenied(400, str(error))
    made = dict(given)
    for profile in context.profiles:
        if not profile.pod_selector.matches(reservation.metadata.labels):
            continue
        if profile.bad_probability:
            return admission.AdmissionDenied(500, profile.bad_probability)
        if colocation_profile.is_skipped_by_probability(profile, context.draw):
            continue
        outcome = colocation_profile.apply_profile(made, profile, RESERVATION_LAYOUT, context.priority_class)
        if isinstance(outcome, admission.AdmissionDenied):
            return outcome
        made = outcome
    return admission.allow_with_changes(given, made)
