"""One pass over the cluster: every profile's plugins are asked, and what they propose is gathered within the limits.

ready nodes -> all Deschedule plugins -> all Balance plugins -> effects
                    |  filter, limits, evictor's yes  |
                    +-- each proposal is seen by all that follow, as if it were already under way
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from koord.api.node import Node
from koord.descheduler.framework.effect import Annotate, Cordon, Effect, Evict
from koord.descheduler.framework.limit import Limits, Tally
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.profile import Profile
from koord.descheduler.snapshot import Snapshot
from koord.descheduler.wire import Pod
from koord.values.selector import Selector

REMEMBERED = 500  # pods that filters refused in one round: for explanations, and those are read by people
TOO_SMALL = "the cluster size is 0 or 1 meaning eviction causes service disruption or degradation"


class Sight:
    """The state that filters and evictors read: the snapshot, and what this round has proposed on top of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.proposed: list[Evict] = []  # those that evictors took on, in order


class Declined(msgspec.Struct, frozen=True):
    """A proposal or candidate that was declined, by whom and why; kept for explanations."""

    pod: Pod
    plugin: str
    by: str
    why: str


class Outcome(msgspec.Struct, frozen=True):
    """The result of one round. `passed_over` are the first pods that filters or plugins kept from being proposed."""

    effects: tuple[Effect, ...] = ()
    declined: tuple[Declined, ...] = ()
    error: str = ""
    passed_over: tuple[Declined, ...] = ()
    broken: tuple[Exception, ...] = ()  # what plugins raised: mistakes in them, for the log


class Hand:
    """The handle through which one plugin of one profile filters pods and proposes effects in a round."""

    def __init__(self, work: Round, profile: Profile, plugin: Plugin) -> None:
        self._work = work
        self._profile = profile
        self._plugin = plugin
        self.snapshot = work.sight.snapshot

    def refuses(self, pod: Pod) -> str | None:
        """Run the Filter point of the profile; return the first reason against evicting the pod, or None."""
        return self._first(pod, "refuses")

    def refuses_now(self, pod: Pod) -> str | None:
        return self._first(pod, "refuses_now")

    def _first(self, pod: Pod, method: str) -> str | None:
        for plugin in self._profile.filter:
            why: str | None = getattr(plugin, method)(pod, self._work.sight)
            if why is not None:
                self._work.pass_over(pod, self._plugin.name, plugin.name, why)
                return why
        return None

    def pass_over(self, pod: Pod, why: str) -> None:
        """Record why the plugin itself does not propose the pod; for explanations."""
        self._work.pass_over(pod, self._plugin.name, self._plugin.name, why)

    def evict(self, pod: Pod, reason: str, *, target: str = "", dry_run: bool = False) -> str | None:
        """Propose to evict the pod. Return None when the proposal is accepted and counted, else the reason against it.

        """
        return self._work.evict(self._profile, self._plugin, pod, reason, target=target, dry_run=dry_run)

    def cordon(self, node: str, *, unschedulable: bool, reason: str, dry_run: bool = False) -> None:
        self._work.effects.append(
            Cordon(
                node=node,
                unschedulable=unschedulable,
                profile=self._profile.name,
                plugin=self._plugin.name,
                reason=reason,
                dry_run=dry_run or self._work.dry_run,
            )
        )

    def annotate(self, pod: Pod, annotations: dict[str, str], *, reason: str, dry_run: bool = False) -> None:
        self._work.effects.append(
            Annotate(
                pod=pod,
                annotations=annotations,
                profile=self._profile.name,
                plugin=self._plugin.name,
                reason=reason,
                dry_run=dry_run or self._work.dry_run,
            )
        )

    def node_is_full(self, node: str) -> bool:
        """Return whether no further pod may be evicted from the node in this round."""
        return self._work.tally.node_is_full(node)


class Round:
    def __init__(self, snapshot: Snapshot, limits: Limits, *, dry_run: bool = False) -> None:
        self.sight = Sight(snapshot)
        self.tally = Tally(limits)
        self.dry_run = dry_run
        self.effects: list[Effect] = []
        self.declined: list[Declined] = []
        self.broken: list[Exception] = []
        self._passed_over: dict[tuple[str, str], Declined] = {}  # by plugin and uid of the pod

    def pass_over(self, pod: Pod, plugin: str, by: str, why: str) -> None:
        key = (plugin, pod.metadata.uid)
        if key not in self._passed_over and len(self._passed_over) < REMEMBERED:
            self._passed_over[key] = Declined(pod, plugin, by, why)

    def evict(
        self, profile: Profile, plugin: Plugin, pod: Pod, reason: str, *, target: str, dry_run: bool
    ) -> str | None:
        node, namespace = pod.spec.node_name, pod.metadata.namespace
        proposal = Evict(
            pod=pod,
            node=node,
            profile=profile.name,
            plugin=plugin.name,
            reason=reason,
            evictor=profile.evict.name,
            target=target,
            dry_run=dry_run or self.dry_run,
        )
        by, why = "limits", self.tally.refuses(node, namespace)
        if why is None:
            # The evictor is asked even in a dry run, so that a dry run chooses the pods that a real run would.
            by, why = profile.evict.name, profile.evict.evicts(proposal, self.sight)
        if why is not None:
            self.declined.append(Declined(pod, plugin.name, by, why))
            return why
        self.tally.count(node, namespace)
        self.sight.proposed.append(proposal)
        self.effects.append(proposal)
        return None

    def outcome(self, error: str = "") -> Outcome:
        gone = {one.pod.metadata.uid for one in self.sight.proposed}  # refused at a second look, after being proposed
        kept = tuple(one for one in self._passed_over.values() if one.pod.metadata.uid not in gone)
        return Outcome(tuple(self.effects), tuple(self.declined), error, kept, tuple(self.broken))


def ready_nodes(snapshot: Snapshot, chosen: Selector | None) -> list[Node]:
    """Return the nodes that are ready or report no readiness, cordoned ones included, sorted by name for
    determinism.
    """
    return [
        node
        for _, node in sorted(snapshot.nodes.items())
        if _selected(node, chosen) and all(c.status == "True" for c in node.status.conditions if c.type == "Ready")
    ]


def decide(
    profiles: Sequence[Profile],
    snapshot: Snapshot,
    limits: Limits,
    *,
    nodes: Selector | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Run the whole round. A plugin's error ends it; what was proposed before stays proposed."""
    ready = ready_nodes(snapshot, nodes)
    work = Round(snapshot, limits, dry_run=dry_run)
    if len(ready) <= 1:
        return work.outcome(TOO_SMALL)
    for point in ("deschedule", "balance"):
        for profile in profiles:
            errors = _ran(profile, point, [node for node in ready if _selected(node, profile.nodes)], work)
            if errors:
                return work.outcome("; ".join(errors))
    return work.outcome()


def _ran(profile: Profile, point: str, nodes: Sequence[Node], work: Round) -> list[str]:
    errors = []
    for plugin in getattr(profile, point):
        run: Callable[[Sequence[Node], Hand], str | None] = getattr(plugin, point)
        try:
            error = run(nodes, Hand(work, profile, plugin))
        except Exception as broken:  # noqa: BLE001  one bad plugin, or one bad object, must not end the program: it is told
            work.broken.append(broken)
            error = f"{type(broken).__name__}: {broken}"
        if error is not None:
            errors.append(f"{plugin.name}: {error}")
    return errors


def _selected(node: Node, chosen: Selector | None) -> bool:
    return chosen is None or chosen.matches(node.metadata.labels)
