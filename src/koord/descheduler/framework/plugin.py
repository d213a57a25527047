"""What a plugin of the descheduler is: a name and some of these methods. Only those that it overrides are called.

Plugins are pure: they read a snapshot and speak through the hand that they are given. What one keeps between rounds
(such as marks of anomalies) is its own, and time arrives in the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from koord.api.node import Node
from koord.api.resource import Resource
from koord.descheduler.framework.effect import Evict
from koord.descheduler.wire import Pod

if TYPE_CHECKING:
    from koord.descheduler.framework.round import Hand, Sight


class Plugin:
    name: ClassVar[str]
    # Kinds beyond nodes, pods, NodeMetrics and PodMigrationJobs that it reads in `snapshot.others`.
    reads: ClassVar[tuple[Resource[Any], ...]] = ()

    def __init__(self, args: Any = None) -> None:
        """Typed args where their shape is known, else plain data, None if there are none."""

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        """Look at the nodes of the profile and propose evictions; an error in words ends the pass."""
        return None

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        """The same, after all `deschedule` of all profiles."""
        return None

    def refuses(self, pod: Pod, sight: Sight) -> str | None:
        """Filter: why the pod must not be evicted; None when this plugin does not mind."""
        return None

    def refuses_now(self, pod: Pod, sight: Sight) -> str | None:
        """PreEvictionFilter: a closer look, right before it is proposed, by plugins that ask for it."""
        return None

    def evicts(self, proposal: Evict, sight: Sight) -> str | None:
        """Evict: whether this evictor takes the proposal on; if not, why. Only the round is changed by a yes."""
        return None


def overrides(plugin: Plugin, method: str) -> bool:
    """Whether a plugin has its own version of a method: that is how it takes part in a point."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)
