"""This module holds the RBAC rules that the parts of a program declare to need; RBAC objects are made from
them.
"""

from __future__ import annotations

import msgspec

READ = ("get", "list", "watch")


class Right(msgspec.Struct, frozen=True):
    """RbacRule is one permission that a program needs. `namespace` limits it to a Role there, `names` to objects
    so named.
    """

    group: str  # "" is the core group
    resources: tuple[str, ...]  # plural, with "/status" and the like where that is what is written
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    namespace: str = ""
