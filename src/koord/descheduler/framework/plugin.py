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
    """The base class of plugins: a name and some of these extension points; only overridden points are called.

    Plugins are pure: they read a snapshot and propose through the handle that they are given. State between
    rounds
    (such as marks of anomalies) belongs to the plugin, and time arrives in the snapshot.
    """
    name: ClassVar[str]
    # Kinds beyond nodes, pods, NodeMetrics and PodMigrationJobs that it reads in `snapshot.others`.
    reads: ClassVar[tuple[Resource[Any], ...]] = ()

    def __init__(self, args: Any = None) -> None:
        """Take typed arguments where their model is known, else plain data; None without arguments."""

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        """Propose evictions from the nodes of the profile. An error message that is returned ends the round."""
        return None

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        """Propose evictions after the `deschedule` points of all profiles have run. An error message ends the round."""
        return None

    def refuses(self, pod: Pod, sight: Sight) -> str | None:
        """Filter: return why the pod must not be evicted; None lets it pass."""
        return None

    def refuses_now(self, pod: Pod, sight: Sight) -> str | None:
        """PreEvictionFilter: run a closer check right before a proposal, for plugins that ask for it; None lets it
        pass.
        """
        return None

    def evicts(self, proposal: Evict, sight: Sight) -> str | None:
        """Evict: return why this evictor does not accept the proposal; None accepts it. Only the round's state
        changes.
        """
        return None


def overrides(plugin: Plugin, method: str) -> bool:
    """Return whether a plugin overrides a method, which is how it takes part in an extension point."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)
