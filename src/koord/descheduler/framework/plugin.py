"""The plugin interface of the descheduler: the effects that plugins propose, the plugin base class and
profiles.

Executing, counting and recording effects are the program's job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.policy.eviction import KOORD_DESCHEDULER, EvictionRecord
from koord.values.selector import Selector

if TYPE_CHECKING:
    from koord.descheduler.framework.round import EvictorHandle, RoundState


class EvictionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers behind a proposal, for the record of the eviction."""

    measured: str = ""
    threshold: str = ""
    rank: str = ""
    why_this_pod: str = ""


class EvictionProposal(msgspec.Struct, frozen=True, kw_only=True):
    """An eviction that a plugin proposes. `target` is the node that the plugin counted on, if any; the scheduler
    decides.
    """

    pod: Pod
    node: str
    profile: str
    plugin: str
    reason: str
    evictor: str  # the evict plugin of the profile, which carries it out
    target: str = ""
    delete_options: dict[str, Any] | None = None
    dry_run: bool = False  # of the plugin or of the whole program: told of, not done
    figures: EvictionFigures = EvictionFigures()

    def record(self) -> EvictionRecord:
        """Begin the record of this eviction."""
        meta, figures = self.pod.metadata, self.figures
        return EvictionRecord(
            actor=KOORD_DESCHEDULER,
            plugin=self.plugin,
            rule=self.plugin,
            reason=self.reason,
            measured=figures.measured,
            threshold=figures.threshold,
            rank=figures.rank,
            why_this_pod=figures.why_this_pod,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            node=self.node,
        )


class CordonEffect(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    unschedulable: bool
    profile: str
    plugin: str
    reason: str
    dry_run: bool = False


class AnnotateEffect(msgspec.Struct, frozen=True, kw_only=True):
    pod: Pod
    annotations: dict[str, str]
    profile: str
    plugin: str
    reason: str
    dry_run: bool = False


RoundEffect: TypeAlias = EvictionProposal | CordonEffect | AnnotateEffect


class DeschedulerPlugin:
    """The base class of plugins: a name and some of these extension points; only overridden points are called.

    Plugins are pure: they read a snapshot and propose through the handle that they are given. State between
    rounds
    (such as marks of anomalies) belongs to the plugin, and time arrives in the snapshot.
    """

    name: ClassVar[str]
    # Kinds beyond nodes, pods, NodeMetrics and PodMigrationJobs that it reads in `snapshot.others`.
    extra_resources: ClassVar[tuple[Resource[Any], ...]] = ()

    def __init__(self, args: Any = None) -> None:
        """Take typed arguments where their model is known, else plain data; None without arguments."""

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        """Propose evictions from the nodes of the profile. An error message that is returned ends the round."""
        return None

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        """Propose evictions after the `deschedule` points of all profiles have run. An error message ends the round."""
        return None

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        """Filter: return why the pod must not be evicted; None lets it pass."""
        return None

    def pre_eviction_filter(self, pod: Pod, round_state: RoundState) -> str | None:
        """PreEvictionFilter: run a closer check right before a proposal, for plugins that ask for it; None lets it
        pass.
        """
        return None

    def evict(self, proposal: EvictionProposal, round_state: RoundState) -> str | None:
        """Evict: return why this evictor does not accept the proposal; None accepts it. Only the round's state
        changes.
        """
        return None


def overrides_method(plugin: DeschedulerPlugin, method: str) -> bool:
    """Return whether a plugin overrides a method, which is how it takes part in an extension point."""
    return getattr(type(plugin), method) is not getattr(DeschedulerPlugin, method)


class DeschedulingProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One profile: its plugins by extension point, in order, and its nodes. A plugin at several points is one
    instance.
    """

    name: str
    evict: DeschedulerPlugin
    filter: Sequence[DeschedulerPlugin] = ()
    deschedule: Sequence[DeschedulerPlugin] = ()
    balance: Sequence[DeschedulerPlugin] = ()
    nodes: Selector | None = None  # None: all of them
