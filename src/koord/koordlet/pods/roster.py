"""The source of this node's pods: the kubelet, new cgroups as hints, and the API server as a fallback.

New groups appear before the kubelet lists their pods, so they trigger a request. While the kubelet does not answer, the
API server's view of the node is used; it lags behind. Each PodMeta is rebuilt only when its pod changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable

import msgspec

from koord.api.pod import Pod
from koord.host.cgroup.layout import Layout
from koord.koordlet.pod import PodView
from koord.koordlet.pods.view import view_of

_LOG = logging.getLogger(__name__)


class Unread(msgspec.Struct, frozen=True):
    """A pod that cannot be decoded; the others are unaffected."""

    why: str


class Roster:
    """The cache of PodMetas. `pods` is None until there was an answer, and the same object as long as no pod changed.

    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._known: dict[Hashable, tuple[Hashable, PodView | None]] = {}
        self._emptied = False
        self.views: tuple[PodView, ...] | None = None

    def update(self, listed: Iterable[tuple[Hashable, Hashable, Callable[[], Pod | Unread]]]) -> bool:
        """Update from the key, stamp and reader of every pod; equal stamps mean equal pods. Return
        whether `pods` changed.

        A list that suddenly is empty is believed the second time: a kubelet that has just started lists no
        pods though they run.
        """
        rows = list(listed)
        if not rows and self.views and not self._emptied:
            self._emptied = True
            return False
        self._emptied = False
        before, self._known = self._known, {}
        changed = self.views is None
        for key, stamp, read in rows:
            known = before.pop(key, None)
            if known is None or known[0] != stamp:
                known = (stamp, self._view(read()))
                changed = True
            self._known[key] = known
        if changed or before:
            views = (view for _, view in self._known.values() if view is not None)
            self.views = tuple(sorted(views, key=lambda view: (view.namespace, view.name, view.uid)))
            return True
        return False

    def _view(self, pod: Pod | Unread) -> PodView | None:
        if isinstance(pod, Unread):
            _LOG.warning("a pod of this node is left out, it cannot be read: %s", pod.why)
            return None
        return view_of(pod, self._layout)
