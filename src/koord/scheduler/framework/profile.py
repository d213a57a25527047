"""Define a profile: which plugins run at which extension point, in which order and with which weight."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import msgspec

from koord.scheduler.framework.normaliser import Normaliser
from koord.scheduler.framework.plugin import Plugin, overrides
from koord.scheduler.framework.verdict import ALWAYS, ROW
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo

# Points whose plugins are called; each names the method that takes part in it.
POINTS = (
    "pre_enqueue",
    "sort_key",
    "pre_filter",
    "filter",
    "post_filter",
    "pre_score",
    "score",
    "reserve",
    "permit",
    "pre_bind",
    "bind",
    "post_bind",
    "next_pod",
    "failed",
    "nominate",
    "begin",
    "before_pre_filter",
    "after_pre_filter",
    "admit",
    "find_one_node",
    "prefer_nodes",
    "before_filter",
    "before_score",
    "after_post_filter",
    "apply_patch",
)
# What a plugin does once for a class of pods, at or around these points; it must know when that no longer holds.
_PREPARING = ("pre_filter", "pre_score", "before_pre_filter", "after_pre_filter", "before_filter", "before_score")


class Scorer(msgspec.Struct, frozen=True):
    plugin: Plugin
    name: str
    weight: int
    normalises: bool
    normaliser: Normaliser | None
    columnar: bool
    surveys: bool  # its scores depend on which nodes are feasible, which it learns in PreScore or right before


class Filter(msgspec.Struct, frozen=True):
    plugin: Plugin
    columnar: bool


class Profile:
    """Hold the plugins of one scheduler name; immutable once made.

    `points` maps a method of `Plugin` to its plugins in order; weights are by plugin name.
    """

    def __init__(
        self, scheduler_name: str, points: Mapping[str, Sequence[Plugin]], weights: Mapping[str, int] | None = None
    ) -> None:
        self.scheduler_name = scheduler_name
        self._points = {point: tuple(plugins) for point, plugins in points.items()}
        self.filters = tuple(Filter(p, overrides(p, "filter_columns")) for p in self.at("filter"))
        self.scorers = tuple(
            Scorer(
                plugin=p,
                name=p.name,
                weight=(weights or {}).get(p.name, 1),
                normalises=p.normaliser is not None or overrides(p, "normalise"),
                normaliser=p.normaliser,
                columnar=overrides(p, "score_columns"),
                surveys=p.scope is not ROW and (p in self.at("pre_score") or p in self.at("before_score")),
            )
            for p in self.at("score")
        )
        for plugin in self.plugins():
            plugin.meet(self.plugins())
        judges: Iterable[Plugin] = (p for point in ("filter", "score", *_PREPARING) for p in self.at(point))
        self._judges = tuple({p.name: p for p in judges}.values())
        # Asked of every pod: methods, and lists rather than generators, take half the time.
        self._signatures = tuple(p.signature for p in self._judges if overrides(p, "signature"))
        self._grounds = tuple(p.ground for p in self._judges if overrides(p, "ground"))
        self.timed = tuple(p for p in self._judges if overrides(p, "catch_up"))
        reserving = [p for p in self.at("reserve") if overrides(p, "reserve")]
        self._reserving = {frozenset[str](): tuple(reserving)}  # by who skipped a pod in PreFilter
        self.relenting = tuple(p for p in self.at("filter") if overrides(p, "relent"))
        self._keeps = all(map(_says_how_long, self._judges))
        for plugin in self.plugins():
            plugin.enlist(self)

    def at(self, point: str) -> tuple[Plugin, ...]:
        """Return the plugins of an extension point, or of any method of `POINT_METHODS`, in order."""
        return self._points.get(point, ())

    def reserving(self, skipped: frozenset[str]) -> tuple[Plugin, ...]:
        """Return the plugins to run at Reserve for pods that these plugins skipped in PreFilter."""
        known = self._reserving.get(skipped)
        if known is None:
            everyone = self._reserving[frozenset()]
            known = tuple(p for p in everyone if not (p.reserves_as_it_filters and p.name in skipped))
            self._reserving[skipped] = known
        return known

    def plugins(self) -> tuple[Plugin, ...]:
        """Return every plugin of the profile once, in the order of first mention."""
        return tuple({p.name: p for point in self._points.values() for p in point}.values())

    def ground(self, state: ClusterState) -> Sequence[Hashable]:
        """Return a value that stays equal while the PreFilter and PreScore results of all classes hold."""
        return [ground(state) for ground in self._grounds]

    def class_of(self, pod: PodInfo) -> Hashable:
        """Return a key that is equal for pods that every plugin treats alike; None when no two pods are."""
        return (pod.shape.number, *[signature(pod) for signature in self._signatures]) if self._keeps else None


def _says_how_long(plugin: Plugin) -> bool:
    """Return whether a plugin's verdict on a pod may be reused for an equal pod, or for the same one later.

    A plugin without a scope may read anything, so it must declare what it reads of a pod (`signature`) and when what it
    keeps of the cluster no longer holds (`prefilter_epoch`). One that declares nothing is run anew for every pod.
    """
    if plugin.scope is not ALWAYS:
        return True
    prepares = any(overrides(plugin, method) for method in _PREPARING)
    return overrides(plugin, "signature") and (overrides(plugin, "ground") or not prepares)
