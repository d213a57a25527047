"""Fields that an apply would take from their owners, and how the server says so."""

from __future__ import annotations

import msgspec

from koord.api.merge.outcome import PatchFailed
from koord.embedded.apiserver.merge import entries, fieldset
from koord.embedded.apiserver.merge.entries import UPDATE, Key
from koord.embedded.apiserver.merge.fieldset import Fields, Path
from koord.values.quotation import quoted


class Conflict(msgspec.Struct, frozen=True):
    owner: Key
    path: Path

    @property
    def field(self) -> str:
        return fieldset.text(self.path)

    @property
    def holder(self) -> str:
        """The owner as messages name it."""
        manager, operation, version, subresource = self.owner
        shown = quoted(manager)
        if subresource:
            shown += f" with subresource {quoted(subresource)}"
        return f"{shown} using {version}" if operation == UPDATE else shown


class Conflicts(msgspec.Struct, frozen=True):
    """The answer of an apply that was not forced."""

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
    """Sorted by owner; the real server sorts its message so, and leaves the order of causes to chance."""
    return Conflicts(
        tuple(
            Conflict(owner, path)
            for owner in sorted(taken, key=entries.identity)
            for path in fieldset.paths(taken[owner])
        )
    )
