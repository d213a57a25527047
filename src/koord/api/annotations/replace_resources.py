"""pod.koordinator.sh/replace-resources: rename or erase requested resources, as `from:to,erased:`."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.protocol import A_REPLACE_RESOURCES

ERASED = ""


def parse(annotations: Mapping[str, str]) -> dict[str, str]:
    """Parse `from:to,erased:` to source and target names, in order; an empty target erases. Malformed items are
    skipped.
    """
    found: dict[str, str] = {}
    for item in annotations.get(A_REPLACE_RESOURCES, "").split(","):
        parts = [part.strip() for part in item.split(":")]
        if len(parts) == 2 and parts[0]:
            found[parts[0]] = parts[1]
    return found


def dump(replacements: Mapping[str, str]) -> str:
    return ",".join(f"{source}:{target}" for source, target in replacements.items())
