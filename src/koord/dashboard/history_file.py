"""This module keeps the dashboard's time lines in a file, so that they do not begin anew with each start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from koord.dashboard.fleet import FleetHistory
from koord.telemetry.certificates import write_private_file

SAVE_EVERY_S = 60.0
MAX_BYTES = 4 << 20  # a day is a tenth of it
_FORMAT = 1


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    history: FleetHistory


class HistoryUnreadable(msgspec.Struct, frozen=True):
    """HistoryUnreadable says why a file of the past is not used."""

    text: str


class HistoryFile:
    """HistoryFile reads and writes the past of one cluster. It is as long as an hour and a day, and never grows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> FleetHistory | HistoryUnreadable | None:
        """Return the past; None where there is no file yet."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                return self._unreadable(f"it is larger than {MAX_BYTES} bytes")
            kept = msgspec.json.decode(self.path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except OSError as error:
            return self._unreadable(error.strerror or str(error))
        except msgspec.MsgspecError as error:
            return self._unreadable(str(error))
        return kept.history if kept.format == _FORMAT else self._unreadable(f"it has the format {kept.format}")

    def save(self, history: FleetHistory) -> str:
        """Write the past; return why it could not be written, or nothing."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private_file(self.path, msgspec.json.encode(_Kept(format=_FORMAT, history=history)))
        except OSError as error:
            return f"The past is not kept: {self.path}: {error.strerror or error}."
        return ""

    def _unreadable(self, why: str) -> HistoryUnreadable:
        return HistoryUnreadable(f"The time lines begin anew: {self.path} cannot be used: {why}.")
