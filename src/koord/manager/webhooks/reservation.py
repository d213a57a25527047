"""The mutating admission of reservations: profiles on the reservation itself and on its pod template.

Namespace selectors are not evaluated, because a reservation has no namespace, and resources are not translated.
"""

from __future__ import annotations

import msgspec

from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.patch.merge_schema import RESERVATION_MERGE_SCHEMA
from koord.manager.webhooks import admission
from koord.manager.webhooks.admission_context import AdmissionContext
from koord.manager.webhooks.colocation_profile import ObjectLayout, apply_profile, is_skipped_by_probability

RESERVATION_LAYOUT = ObjectLayout(
    model=Reservation,
    merge_shape=RESERVATION_MERGE_SCHEMA,
    pod_spec=("spec", "template", "spec"),
    template=("spec", "template"),
)


def mutate_reservation(request: AdmissionRequest, context: AdmissionContext) -> admission.AdmissionDecision:
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
        if is_skipped_by_probability(profile, context.draw):
            continue
        outcome = apply_profile(made, profile, RESERVATION_LAYOUT, context.priority_class)
        if isinstance(outcome, admission.AdmissionDenied):
            return outcome
        made = outcome
    return admission.allow_with_changes(given, made)
