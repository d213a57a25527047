"""One right that a program needs of the API server. Each part of a program declares its own; RBAC is made from them."""

from __future__ import annotations

import msgspec

READ = ("get", "list", "watch")


class Right(msgspec.Struct, frozen=True):
    """`namespace` limits it to one namespace (a Role there instead of a ClusterRole), `names` to objects so named."""

    group: str  # "" is the core group
    resources: tuple[str, ...]  # plural, with "/status" and the like where that is what is written
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    namespace: str = ""
