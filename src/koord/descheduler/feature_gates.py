"""The feature gates of koord-descheduler with their readers; the table drives parsing, help and documentation."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.gates import BETA, FeatureGate


class DeschedulerGate(FeatureGate, frozen=True, kw_only=True):
    """A gate of koord-descheduler and its reader below koord.descheduler."""

    reader: str


DESCHEDULER_GATES: Mapping[str, DeschedulerGate] = {
    "DisablePVCReservation": DeschedulerGate(
        False, BETA, "reservations for migrated pods leave their volume claims out", reader="migration.writer"
    )
}
