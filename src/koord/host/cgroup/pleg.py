"""Generate pod lifecycle events from directories of the cgroup tree, before the kubelet lists the pods.

A scan at the start and after lost events makes the state complete: nothing that existed before is missed. The kernel
limits how many inotify instances and watches a user has. Where they are used up, scans alone find what changed, and
`unwatched` says so, so that the caller scans more often.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host.cgroup.tree import CgroupTree
from koord.host.inotify import DirectoryChange, InotifyWatcher
from koord.host.io_error import IoError

_TIERS = (GUARANTEED, BURSTABLE, BEST_EFFORT)


class PodLifecycleEventType(enum.Enum):
    """PodLifecycleEventType says what happened to a pod or container."""

    POD_ADDED = "podAdded"
    POD_DELETED = "podDeleted"
    CONTAINER_ADDED = "containerAdded"
    CONTAINER_DELETED = "containerDeleted"


class PodLifecycleEvent(msgspec.Struct, frozen=True):
    """A pod or container that appeared or disappeared."""

    kind: PodLifecycleEventType
    pod: str  # UID
    container: str = ""  # id without its runtime
    group: str = ""


class PodLifecycleEventGenerator:
    """The generator: call `poll` when `fileno` is readable; all state belongs to the one task that does so.

    `unwatched` is why some directory is not watched, as of the last scan; None while all are.
    """

    def __init__(
        self, tree: CgroupTree, open_watcher: Callable[[], InotifyWatcher | IoError] = InotifyWatcher.open
    ) -> None:
        self._tree = tree
        self._open_watcher = open_watcher
        self._watcher: InotifyWatcher | None = None
        self.unwatched: IoError | None = None
        self._base = tree.group_path("cpu", "")
        self._pods: dict[str, str] = {}  # group: UID
        self._containers: dict[str, str] = {}  # group: id

    def fileno(self) -> int | None:
        """Return the descriptor to wait for; None until a scan got an inotify instance."""
        return None if self._watcher is None else self._watcher.fileno()

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()

    def scan(self) -> list[PodLifecycleEvent]:
        """Return the events that bring the state in line with the tree; also finds QoS groups that are new.

        Every scan tries to watch what is not watched yet.
        """
        self.unwatched = None
        if self._watcher is None:
            opened = self._open_watcher()
            if isinstance(opened, IoError):
                self.unwatched = opened
            else:
                self._watcher = opened
        events: list[PodLifecycleEvent] = []
        pods: dict[str, str] = {}
        for group in dict.fromkeys(map(self._tree.layout.qos_dir, _TIERS)):
            if not self._watch(group):
                continue  # a kubelet that is still starting has no such group yet
            for child in self._children(group):
                uid = self._tree.layout.pod_uid_of_dir(child.rpartition("/")[2])
                if uid is not None:
                    pods[child] = uid
        for group in [group for group in self._pods if group not in pods]:
            events += self._pod_gone(group)
        for group, uid in pods.items():
            events += self._pod_there(group, uid)
        return events

    def poll(self) -> list[PodLifecycleEvent]:
        """Return the events since the last call."""
        if self._watcher is None:
            return self.scan()
        changes = self._watcher.read()
        if isinstance(changes, IoError):
            return self.scan()
        events: list[PodLifecycleEvent] = []
        for change in changes:
            events += self.scan() if change.overflowed else self._changed(change)
        return events

    def _changed(self, change: DirectoryChange) -> list[PodLifecycleEvent]:
        above = change.folder.removeprefix(self._base).strip("/")
        group = f"{above}/{change.name}" if above else change.name
        if above in self._pods:
            return self._container(above, group, change.created)
        uid = self._tree.layout.pod_uid_of_dir(change.name)
        if uid is None:
            # a QoS group inside the group of all pods: what is in it already must be found, too
            return self.scan() if change.created and group in map(self._tree.layout.qos_dir, _TIERS) else []
        return self._pod_there(group, uid) if change.created else self._pod_gone(group)

    def _pod_there(self, group: str, uid: str) -> list[PodLifecycleEvent]:
        events: list[PodLifecycleEvent] = []
        if group not in self._pods:
            self._pods[group] = uid
            events.append(PodLifecycleEvent(PodLifecycleEventType.POD_ADDED, uid, group=group))
        if not self._watch(group):
            return [*events, *self._pod_gone(group)]  # it went while we looked
        there = set(self._children(group))
        for known in [known for known in self._containers if known.startswith(f"{group}/") and known not in there]:
            events += self._container(group, known, False)
        for child in sorted(there):
            events += self._container(group, child, True)
        return events

    def _pod_gone(self, group: str) -> list[PodLifecycleEvent]:
        events: list[PodLifecycleEvent] = []
        for known in [known for known in self._containers if known.startswith(f"{group}/")]:
            events += self._container(group, known, False)
        if self._watcher is not None:
            self._watcher.unwatch(self._folder(group))
        uid = self._pods.pop(group, None)
        return (
            events if uid is None else [*events, PodLifecycleEvent(PodLifecycleEventType.POD_DELETED, uid, group=group)]
        )

    def _container(self, pod: str, group: str, made: bool) -> list[PodLifecycleEvent]:
        uid, container = self._pods[pod], self._tree.layout.container_id_of_dir(group.rpartition("/")[2])
        if container is None or made == (group in self._containers):
            return []
        if made:
            self._containers[group] = container
        else:
            del self._containers[group]
        return [
            PodLifecycleEvent(
                PodLifecycleEventType.CONTAINER_ADDED if made else PodLifecycleEventType.CONTAINER_DELETED,
                uid,
                container,
                group,
            )
        ]

    def _watch(self, group: str) -> bool:
        """Watch a group if the kernel lets us; return whether the group exists."""
        folder = self._folder(group)
        if self._watcher is not None:
            refused = self._watcher.watch(folder)
            if refused is None or refused.vanished:
                return refused is None
            self.unwatched = refused
        return self._tree.host.is_folder(folder)

    def _folder(self, group: str) -> str:
        return f"{self._base}/{group}"

    def _children(self, group: str) -> list[str]:
        found = self._tree.children(group)
        return [] if isinstance(found, IoError) else found
