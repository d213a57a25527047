"""Room on a node that is reserved for the pod in hand: Reservation says it, the plugins that keep ledgers read it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """`holder` is the reserve pod: as long as the reservation lasts it is placed on the node like any other pod, under
    the reservation's uid. `owners` are the pods that live in it now; they are placed on the node as well, and what
    they use is not counted twice: the ledgers take an owner's part out of the holder's."""

    uid: str
    name: str
    node_name: str
    policy: str  # "", Aligned or Restricted
    holder: PodInfo
    owners: tuple[str, ...] = ()
    allocate_once: bool = False


class Restored(Protocol):
    """Nodes that pods of one class see otherwise than everyone: without those who hold room there for them.

    A row that comes to this or stops being so must be noted as changed in the table.
    """

    @property
    def exclusive(self) -> bool:
        """Whether no other nodes need to be looked at."""

    def rows(self) -> Collection[int]: ...

    def holders(self, node: NodeInfo) -> tuple[PodInfo, ...]:
        """Who is taken away from the node."""
