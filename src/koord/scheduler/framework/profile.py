"""Define a profile: which plugins run at which extension point, in which order and with which weight.

A plugin may offer something beside the extension points; the profile finds out once whether it does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.extension_points import CACHED_METHODS, RESERVATION_METHODS, PluginMethod, overrides
from koord.scheduler.framework.plugin import Plugin, ScoreNormaliser
from koord.scheduler.framework.verdict import ALWAYS, ROW

P = TypeVar("P", bound=Plugin)


@runtime_checkable
class ProfileAware(Protocol):
    """A plugin that reads the other plugins of its profile, or runs them in dry runs."""

    def set_profile(self, profile: SchedulerProfile) -> None:
        """Receive the finished profile. Called once."""


@runtime_checkable
class RowExpirer(Protocol):
    """A plugin whose verdicts on nodes change with time alone."""

    def note_expired_rows(self) -> None:
        """Mark the rows that time alone has changed (`table.mark_changed`); called before a pod is evaluated."""


@runtime_checkable
class NodeCopySyncer(Protocol):
    """A plugin that gives a part of what one pod uses to another pod on the node."""

    def sync_node_copy(self, cycle: CycleState, other: PodInfo, node: NodeInfo) -> None:
        """Correct what pods hold on this copy of a node after a dry run added or removed `other`; for every pod."""


@runtime_checkable
class NearMissReporter(Protocol):
    """A Filter plugin that can tell how much is missing on a node that it rejects."""

    def near_miss(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> tuple[float, str] | None:
        """Return which share of the pod's request is missing on a node (0 to 1), and what in words.

        Only for explanations: it is called for a few nodes.
        """


@runtime_checkable
class FallbackNodeProvider(Protocol):
    """A Filter plugin that takes its rejections back rather than leave a pod without a node."""

    name: str

    def fallback_node(self, cycle: CycleState, pod: PodInfo, rows: RowList) -> tuple[int, str] | None:
        """Return the row that takes the pod after all, and why, when only this plugin rejects these rows."""


class ScorePlugin(msgspec.Struct, frozen=True):
    plugin: Plugin
    name: str
    weight: int
    normalises: bool
    normaliser: ScoreNormaliser | None
    columnar: bool
    depends_on_feasible: (
        bool  # its scores depend on which nodes are feasible, which it learns in PreScore or right before
    )


class FilterPlugin(msgspec.Struct, frozen=True):
    plugin: Plugin
    columnar: bool
    near_misses: NearMissReporter | None = None
    has_fault_codes: bool = False


class PodHooks(msgspec.Struct, frozen=True):
    """List what is called for a pod: for every one, cached results of its class or not, and before nodes are filtered.

    `skipped` names the plugins that are not called at PreFilter because they would skip the pod.
    """

    before_pre_filter: tuple[Plugin, ...]
    pre_filter: tuple[Plugin, ...]
    skipped: frozenset[str]
    signatures: tuple[Callable[[PodInfo], Hashable], ...]
    begin_attempt: tuple[Plugin, ...]
    admit: tuple[Plugin, ...]
    find_one_node: tuple[Plugin, ...]
    prefer_nodes: tuple[Plugin, ...]
    permit: tuple[Plugin, ...]


class SchedulerProfile:
    """Hold the plugins of one scheduler name; immutable once made.

    `points` maps a method of `Plugin` to the plugins that override it, in order; weights are by plugin name. A node
    with nominated pods is filtered with them, and again without them if `filters_without_nominated`.
    """

    def __init__(
        self,
        scheduler_name: str,
        points: Mapping[PluginMethod, Sequence[Plugin]],
        weights: Mapping[str, int] | None = None,
        *,
        filters_without_nominated: bool = True,
        others: Sequence[Plugin] = (),
    ) -> None:
        """`others` are plugins that are enabled and have none of the points: they bring controllers or routes alone."""
        self._others = tuple(others)
        self.scheduler_name = scheduler_name
        self.filters_without_nominated = filters_without_nominated
        self._points = {method: tuple(plugins) for method, plugins in points.items()}
        self.filters = tuple(
            FilterPlugin(
                p,
                overrides(p, Plugin.filter_columns),
                p if isinstance(p, NearMissReporter) else None,
                overrides(p, Plugin.fault_codes),
            )
            for p in self.plugins_at(Plugin.filter)
        )
        self.scorers = tuple(
            ScorePlugin(
                plugin=p,
                name=p.name,
                weight=(weights or {}).get(p.name, 1),
                normalises=p.normaliser is not None or overrides(p, Plugin.normalise),
                normaliser=p.normaliser,
                columnar=overrides(p, Plugin.score_columns),
                depends_on_feasible=p.scope is not ROW
                and (p in self.plugins_at(Plugin.pre_score) or p in self.plugins_at(Plugin.before_score)),
            )
            for p in self.plugins_at(Plugin.score)
        )
        # Read for every pod, so they are attributes.
        self.before_score_plugins = self.plugins_at(Plugin.before_score)
        self.pre_score_plugins = self.plugins_at(Plugin.pre_score)
        prepared = self.plugins_at(Plugin.pre_filter)
        self.add_pod_plugins = tuple(p for p in prepared if overrides(p, Plugin.add_pod))
        self.remove_pod_plugins = tuple(p for p in prepared if overrides(p, Plugin.remove_pod))
        self.node_copy_syncers = tuple(p for p in self.plugins() if isinstance(p, NodeCopySyncer))
        evaluators: Iterable[Plugin] = (
            p
            for method in (Plugin.filter, Plugin.score, *CACHED_METHODS, *RESERVATION_METHODS)
            for p in self.plugins_at(method)
        )
        self._evaluators = tuple({p.name: p for p in evaluators}.values())
        self._hooks = self._pod_hooks(keys=True)
        self._askable = tuple(p for p in self.plugins() if p.idle_by_labels)
        self._plain_hooks: dict[tuple[bool, ...], PodHooks] = {}  # by which of these have nothing to do
        # Asked of every pod: methods, and lists rather than generators, take half the time.
        dated = [p for p in self._evaluators if overrides(p, Plugin.prefilter_epoch)]
        self._prefilter_epochs = tuple(p.prefilter_epoch for p in dated if not p.prefilter_epoch_of_nodes)
        self._node_prefilter_epochs = tuple(p.prefilter_epoch for p in dated if p.prefilter_epoch_of_nodes)
        self._nodes_epoch: tuple[int, Sequence[Hashable]] = (-1, ())  # with the position in the log of changed nodes
        self.row_expirers = tuple(p for p in self._evaluators if isinstance(p, RowExpirer))
        # By who skipped a pod in PreFilter.
        self._reserve_plugins = {frozenset[str](): self.plugins_at(Plugin.reserve)}
        self.fallback_plugins = tuple(p for p in self.plugins_at(Plugin.filter) if isinstance(p, FallbackNodeProvider))
        self._cacheable = all(map(_is_cacheable, self._evaluators))
        for plugin in self.plugins():
            if isinstance(plugin, ProfileAware):
                plugin.set_profile(self)

    def _pod_hooks(self, *, keys: bool, idle: frozenset[str] = frozenset()) -> PodHooks:
        def is_idle(method: PluginMethod, plugin: Plugin) -> bool:
            by_labels = plugin.name in idle and method in plugin.idle_by_labels
            return not keys and (by_labels or method in plugin.idle_without_keys)

        def called(method: PluginMethod, plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
            return tuple(p for p in plugins if not is_idle(method, p))

        signing = (p for p in self._evaluators if overrides(p, Plugin.signature))
        pre_filter = self.plugins_at(Plugin.pre_filter)
        return PodHooks(
            before_pre_filter=called(Plugin.before_pre_filter, self.plugins_at(Plugin.before_pre_filter)),
            pre_filter=called(Plugin.pre_filter, pre_filter),
            skipped=frozenset(p.name for p in pre_filter if is_idle(Plugin.pre_filter, p)),
            signatures=tuple(p.signature for p in called(Plugin.signature, signing)),
            begin_attempt=called(Plugin.begin_attempt, self.plugins_at(Plugin.begin_attempt)),
            admit=called(Plugin.admit, self.plugins_at(Plugin.admit)),
            find_one_node=called(Plugin.find_one_node, self.plugins_at(Plugin.find_one_node)),
            prefer_nodes=called(Plugin.prefer_nodes, self.plugins_at(Plugin.prefer_nodes)),
            permit=called(Plugin.permit, self.plugins_at(Plugin.permit)),
        )

    def hooks_for(self, pod: PodInfo) -> PodHooks:
        """Return what is called for this very pod."""
        if pod.has_koordinator_keys:
            return self._hooks
        group = pod.label_group
        version, known = group.groups.idle_version, group.memo.get(self)
        if known is not None and known[0] == version:
            hooks: PodHooks = known[1]
            return hooks
        answers = tuple([plugin.is_idle_for(pod) for plugin in self._askable])
        found = self._plain_hooks.get(answers)
        if found is None:
            idle = frozenset(p.name for p, answer in zip(self._askable, answers, strict=True) if answer)
            found = self._plain_hooks[answers] = self._pod_hooks(keys=False, idle=idle)
        group.memo[self] = (version, found)
        return found

    def plugins_at(self, method: PluginMethod) -> tuple[Plugin, ...]:
        """Return the plugins whose method is called, in the order of its extension point."""
        return self._points.get(method, ())

    def reserve_plugins(self, skipped: frozenset[str]) -> tuple[Plugin, ...]:
        """Return the plugins to run at Reserve for pods that these plugins skipped in PreFilter."""
        known = self._reserve_plugins.get(skipped)
        if known is None:
            everyone = self._reserve_plugins[frozenset()]
            known = tuple(p for p in everyone if not (p.reserves_as_it_filters and p.name in skipped))
            self._reserve_plugins[skipped] = known
        return known

    def plugins(self) -> tuple[Plugin, ...]:
        """Return every plugin of the profile once, in the order of first mention."""
        every = (*self._points.values(), self._others)
        return tuple({p.name: p for plugins in every for p in plugins}.values())

    def prefilter_epochs(self, state: ClusterState) -> Sequence[Hashable]:
        """Return a value that stays equal while the PreFilter and PreScore results of all classes hold."""
        position = state.table.node_changes.position
        nodes_at, of_nodes = self._nodes_epoch
        if nodes_at != position:
            of_nodes = [epoch(state) for epoch in self._node_prefilter_epochs]
            self._nodes_epoch = (position, of_nodes)
        if self._prefilter_epochs:
            return [state.prefilter_version, of_nodes, *[epoch(state) for epoch in self._prefilter_epochs]]
        return [state.prefilter_version, of_nodes]

    def equivalence_key(self, pod: PodInfo) -> Hashable:
        """Return a key that is equal for pods that every plugin treats alike; None when no two pods are."""
        return self.class_key(pod, self.hooks_for(pod))

    def class_key(self, pod: PodInfo, hooks: PodHooks) -> Hashable:
        """Return `equivalence_key` of a pod whose hooks are at hand."""
        if not self._cacheable:
            return None
        return (pod.shape.number, *[signature(pod) for signature in hooks.signatures])


def find_plugin(profiles: Iterable[SchedulerProfile], kind: type[P]) -> P | None:
    """Return the first plugin of that class in any profile."""
    found = (plugin for profile in profiles for plugin in profile.plugins())
    return next((plugin for plugin in found if isinstance(plugin, kind)), None)


def _is_cacheable(plugin: Plugin) -> bool:
    """Return whether a plugin's verdict on a pod may be reused for an equal pod, or for the same one later.

    A plugin without a scope may read anything, so it must declare what it reads of a pod (`signature`) and when what it
    keeps of the cluster no longer holds (`prefilter_epoch`). One that declares nothing is run anew for every pod.
    """
    if plugin.scope is not ALWAYS:
        return True
    prepares = any(overrides(plugin, method) for method in CACHED_METHODS)
    return overrides(plugin, Plugin.signature) and (overrides(plugin, Plugin.prefilter_epoch) or not prepares)
