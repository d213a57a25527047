"""Write the two files that Terway's agent reads, and delete them when it is to limit nothing."""

from __future__ import annotations

import enum

import msgspec

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.hooks.terway_qos import TerwayPlan

GLOBAL_CONFIG, PODS = "global_bps_config", "pod.json"


class FileOutcome(enum.Enum):
    KEPT = "kept"  # its content is the wanted one, or it is absent as wanted
    WRITTEN = "written"
    DELETED = "deleted"
    FAILED = "failed"


class TerwayFileResult(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    outcome: FileOutcome
    why: str = ""


class TerwayFiles:
    """The files in the host's folder for them. What stands in them is read each time, so nothing is remembered."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def apply(self, plan: TerwayPlan | None) -> tuple[TerwayFileResult, ...]:
        """Make the files what the plan says. Without a plan they stay: no NodeSLO was seen yet."""
        if plan is None:
            return ()
        wanted = ((GLOBAL_CONFIG, plan.global_config), (PODS, plan.pods))
        return tuple(
            self._apply_one(f"{self._host.paths.terway}/{name}", text if plan.enabled else None)
            for name, text in wanted
        )

    def _apply_one(self, path: str, wanted: str | None) -> TerwayFileResult:
        present = self._host.read(path)
        if isinstance(present, IoError) and not present.vanished:
            return TerwayFileResult(path=path, outcome=FileOutcome.FAILED, why=str(present))
        if (None if isinstance(present, IoError) else present) == wanted:
            return TerwayFileResult(path=path, outcome=FileOutcome.KEPT)
        if wanted is None:
            refused, done = self._host.remove_file(path), FileOutcome.DELETED
        else:
            refused, done = self._host.replace_file(path, wanted), FileOutcome.WRITTEN
        if refused is not None:
            return TerwayFileResult(path=path, outcome=FileOutcome.FAILED, why=str(refused))
        return TerwayFileResult(path=path, outcome=done)
