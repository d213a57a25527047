"""The mutating admission of reservations: profiles on the reservation itself and on its pod template.

Namespace selectors are not evaluated, because a reservation has no namespace, and resources are not
translated.
"""

from __future__ import annotations

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.koord_scheduling import Reservation
from koord.api.merge.pod_shape import RESERVATION
from koord.manager.webhooks.draft import read, verdict
from koord.manager.webhooks.profile.application import Target, applied
from koord.manager.webhooks.profile.match import is_left_out
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.manager.webhooks.world import View

TARGET = Target(
    model=Reservation, shape=RESERVATION, pod_spec=("spec", "template", "spec"), template=("spec", "template")
)


def admit(request: AdmissionRequest, view: View) -> Verdict:
    given = request.object
    ours = request.resource.resource == "reservations" and not request.sub_resource and request.operation == "CREATE"
    if not ours or given is None:
        return Allowed()
    try:
        given, reservation = read(given, Reservation)
    except msgspec.ValidationError as error:
        return Denied(400, str(error))
    made = dict(given)
    for profile in view.profiles:
        if not profile.pods.matches(reservation.metadata.labels):
            continue
        if profile.bad_probability:
            return Denied(500, profile.bad_probability)
        if is_left_out(profile, view.draw):
            continue
        outcome = applied(made, profile, TARGET, view.priority_class)
        if isinstance(outcome, Denied):
            return outcome
        made = outcome
    return verdict(given, made)
