"""What can happen in the cluster that might make a refused pod fit."""

from __future__ import annotations

from typing import Any

import msgspec

# Kinds of events as plugins name them in `wakes_on`. A Node update says which part changed.
ADD = "add"
UPDATE = "update"
DELETE = "delete"


class Event(msgspec.Struct, frozen=True):
    """A kind and what happened to it: Event("Node", "add"). An empty part matches every part of an update."""

    kind: str
    action: str
    part: str = ""  # of a Node: allocatable, labels, taints, unschedulable; of a Pod: labels, scale-down, gates

    def covers(self, other: Event) -> bool:
        return self.kind == other.kind and self.action == other.action and self.part in ("", other.part)


class Happened(msgspec.Struct, frozen=True):
    """An event with its objects, for hints that look closer. `old` and `new` are what the informer delivered."""

    event: Event
    old: Any = None
    new: Any = None
