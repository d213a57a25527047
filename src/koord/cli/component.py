"""The programs that `koord up` can run inside its process, and how each is made from the command line's words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from koord.embedded.cluster import Maker

# name -> what it is, for help texts; the order is the order of starting
COMPONENTS: dict[str, str] = {}


def chosen(
    text: str, *, nodes: int, profile: Path | None, settings: Mapping[str, str]
) -> list[tuple[str, Maker]] | str:
    """The makers of the components named in `text` ("all", "", "a,b"), or what is wrong with it."""
    names = list(COMPONENTS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown:
        return f"--components {text}: no component {', '.join(unknown)}; there are {', '.join(COMPONENTS)}"
    stray = [key for key in settings if key.partition(".")[0] not in COMPONENTS]
    if stray:
        return f"--set {stray[0]}: the part before the dot must be one of {', '.join(COMPONENTS)}"
    return [(name, _maker(name, nodes, profile)) for name in names]


def _maker(name: str, nodes: int, profile: Path | None) -> Maker:
    raise LookupError(f"no maker for {name}")
