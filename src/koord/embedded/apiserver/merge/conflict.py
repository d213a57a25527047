"""This module implements server-side apply: it merges a configuration into the live object by field ownership.

It also detects conflicts with other managers, prunes the fields that the applier dropped, and takes over
from kubectl's client-side apply. The caller applies defaults and validates afterwards, as for any write.
"""

from __future__ import annotations

import msgspec

from koord.api.merge.outcome import PatchFailed
from koord.embedded.apiserver.merge import entries, fieldset
from koord.embedded.apiserver.merge.entries import UPDATE, Key
from koord.embedded.apiserver.merge.fieldset import Fields, Path
from koord.values.quotation import quoted


class Conflict(msgspec.Struct, frozen=True):
    """A FieldConflict is one field that another manager owns."""
    owner: Key
    path: Path

    @property
    def field(self) -> str:
        return fieldset.text(self.path)

    @property
    def holder(self) -> str:
        """Return the owner as messages name it."""
        manager, operation, version, subresource = self.owner
        shown = quoted(manager)
        if subresource:
            shown += f" with subresource {quoted(subresource)}"
        return f"{shown} using {version}" if operation == UPDATE else shown


class Conflicts(msgspec.Struct, frozen=True):
    """ApplyConflicts is the result of an apply without force that would take fields from their owners."""

    found: tuple[Conflict, ...]

    @property
    def message(self) -> str:
        if len(self.found) == 1:
            one = self.found[0]
            return f"Apply failed with 1 conflict: conflict with {one.holder}: {one.field}"
        lines: list[str] = []
        owner: Key | None = None
        for conflict in self.found:
            if conflict.owner != owner:
                owner = conflict.owner
                lines.append(f"conflicts with {conflict.holder}:")
            lines.append(f"- {conflict.field}")
        return f"Apply failed with {len(self.found)} conflicts: " + "\n".join(lines)

    def failed(self) -> PatchFailed:
        causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {c.holder}", "field": c.field}
            for c in self.found
        ]
        return PatchFailed(409, self.message, "Conflict", {"causes": causes})


def conflicts(taken: dict[Key, Fields]) -> Conflicts:
    """Build the conflicts sorted by owner, as the real server's message is; its causes have a random order."""
    return Conflicts(
        tuple(
            Conflict(owner, path)
            for owner in sorted(taken, key=entries.identity)
            for path in fieldset.paths(taken[owner])
        )
    )
