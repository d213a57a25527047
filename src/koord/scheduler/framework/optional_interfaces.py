"""Define what a plugin may offer beside the extension points; the profile finds out once whether it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState

if TYPE_CHECKING:
    from koord.scheduler.framework.profile import SchedulerProfile


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
