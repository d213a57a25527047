"""Parse resource paths. It knows the grammar of paths, not which of them are served."""

from __future__ import annotations

import functools

import msgspec


class Route(msgspec.Struct, frozen=True):
    """A path below a group-version. `namespace` is None when the path has no namespaces segment at all."""

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    rest: str = ""  # what follows a subresource (proxy paths)
    watch: bool = False  # the old /watch/ prefix


@functools.lru_cache(maxsize=16_384)
def resource_route(path: str) -> Route | None:
    """Parse a resource path; return None for every other path (discovery, health, unknown roots)."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    elif rest[0] == "namespaces" and len(rest) == 2 and "//" in path:
        namespace, rest = "", rest[1:]  # "/namespaces//pods" means all namespaces
    return Route(
        group,
        version,
        rest[0],
        namespace,
        rest[1] if len(rest) > 1 else "",
        rest[2] if len(rest) > 2 else "",
        "/".join(rest[3:]),
        watch,
    )
