"""Write the two files that Terway's agent reads, and delete them when it is to limit nothing.

Others may write the same files. That this agent did is kept in a file of its own, which is made first: with the gate
off, nothing else tells whether they are to go.
"""

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

    def __init__(self, host: Host, record_path: str) -> None:
        self._host = host
        self._record_path = record_path

    @property
    def has_written(self) -> bool:
        """Return whether this agent or an earlier one wrote the files."""
        return self._host.exists(self._record_path)

    def apply(self, plan: TerwayPlan | None) -> tuple[TerwayFileResult, ...]:
        """Make the files what the plan says. Without a plan they stay: no NodeSLO was seen yet."""
        if plan is None:
            return ()
        folder = self._host.paths.terway
        if plan.enabled and not self.has_written:
            refused = self._host.replace_file(self._record_path, f"{folder}\n")
            if refused is not None:
                return (TerwayFileResult(path=self._record_path, outcome=FileOutcome.FAILED, why=str(refused)),)
        wanted = ((GLOBAL_CONFIG, plan.global_config), (PODS, plan.pods))
        results = tuple(self._apply_one(f"{folder}/{name}", text if plan.enabled else None) for name, text in wanted)
        if plan.enabled or any(one.outcome is FileOutcome.FAILED for one in results):
            return results
        refused = self._host.remove_file(self._record_path)
        if refused is None:
            return results
        return (*results, TerwayFileResult(path=self._record_path, outcome=FileOutcome.FAILED, why=str(refused)))

    def release(self) -> list[str]:
        """Delete the files if the agent wrote them; return what could not be done."""
        results = self.apply(TerwayPlan(enabled=False)) if self.has_written else ()
        return [one.why for one in results if one.outcome is FileOutcome.FAILED]

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
