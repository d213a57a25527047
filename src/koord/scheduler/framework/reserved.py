"""Hold the state of one scheduling cycle: what plugins write in PreFilter and PreScore and read later.

It also carries what the Reservation plugin says about reserved resources, for the plugins that allocate them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a reservation on a node that the pod of this cycle may use.

    `reserve_pod` is placed on the node like any other pod, under the reservation's UID, as long as the reservation lasts.
    `owners` are the pods that use it now; they are placed on the node as well. What they use is not counted twice: the
    caches take an owner's part out of the reserve pod's.
    """

    uid: str
    name: str
    node_name: str
    policy: str  # "", Aligned or Restricted
    holder: PodInfo
    owners: tuple[str, ...] = ()
    allocate_once: bool = False


class Restored(Protocol):
    """Tell which nodes the pods of one class see without the reserve pods that hold resources for them.

    A row that becomes restored or stops being so must be marked as changed in the node table.
    """

    @property
    def exclusive(self) -> bool:
        """Return whether no other nodes need to be evaluated."""

    def rows(self) -> Collection[int]: ...

    def holders(self, node: NodeInfo) -> tuple[PodInfo, ...]:
        """Return the pods that are taken away from the node."""
