"""Watches slo-controller-config, keeps the last good value of each document, and records events about bad
ones.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

import msgspec

from koord.api.builtin import CONFIG_MAPS
from koord.api.core import ConfigMap
from koord.kube.cache import Change
from koord.kube.recorder import EventType, reference
from koord.manager.configuration.document import Unread
from koord.manager.configuration.kept import Kept, Parse, Standing, worded
from koord.manager.world import World

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

APPLIED = "SLOCfgApplied"  # ours: a document that was wrong is in use
INVALID = "SLOCfgInvalid"  # ours: upstream tells only of text that it cannot read
REMARK = "SLOCfgRemark"  # ours: settings that have no effect, or not the one that was meant


class Complaint(msgspec.Struct, frozen=True):
    """The event that upstream records for unreadable text: its reason, and the document's name in its message."""

    reason: str
    subject: str


class FollowerCounts(msgspec.Struct, kw_only=True):
    changes: int = 0  # versions of the ConfigMap with other data than before
    rejected: int = 0  # documents that were not put to use
    remarks: int = 0  # settings in good documents that have no effect, or not the one that was meant


class Follower:
    """Watches the ConfigMap. `watch_document` registers a document; `start` it once the informers run.

    Documents of an absent ConfigMap have their defaults.
    """

    def __init__(self, world: World) -> None:
        self.counts = FollowerCounts()
        self._world = world
        self._where = (world.settings.config_namespace, world.settings.config_name)
        namespace, name = self._where
        self._maps = world.informers.of(CONFIG_MAPS, namespace, fields=f"metadata.name={name}")
        self._kept: list[tuple[Kept[Any], Complaint]] = []
        self._seen: dict[str, str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._maps.on(self._hear)

    def of(self, key: str, parse: Parse[T], complaint: Complaint) -> Kept[T]:
        """Register the document under `key`. Call it before the informers start."""
        kept = Kept(key, parse)
        self._kept.append((kept, complaint))
        if self._seen is not None:
            kept.take(self._seen.get(key))
        return kept

    async def start(self) -> None:
        self._task = asyncio.create_task(self._settle(), name="slo-config-settle")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def kept(self) -> tuple[Kept[Any], ...]:
        return tuple(kept for kept, _ in self._kept)

    def standings(self) -> tuple[Standing, ...]:
        return tuple(kept.standing for kept, _ in self._kept)

    async def _settle(self) -> None:
        """Mark the documents as absent once the first list is in: a missing ConfigMap sends no event."""
        await self._maps.wait_synced()
        if self._seen is None:
            namespace, name = self._where
            _LOG.warning("ConfigMap %s/%s does not exist: the defaults are in use", namespace, name)
            for kept, _ in self._kept:
                kept.absent(f"ConfigMap {namespace}/{name} does not exist; the defaults are in use")

    def _hear(self, change: Change[ConfigMap]) -> None:
        config = change.object
        if change.kind == "deleted" or (config.metadata.namespace, config.metadata.name) != self._where:
            return  # settings outlive their ConfigMap: losing it must not change every node at once
        before, self._seen = self._seen, config.data
        if before == config.data:
            return
        self.counts.changes += 1
        for kept, complaint in self._kept:
            text = config.data.get(kept.key)
            if before is not None and before.get(kept.key) == text:
                continue  # what is to be said about it was said
            was = kept.standing.state
            unread = kept.take(text)
            if unread is not None:
                self._complain(config, kept, complaint, unread)
                continue
            if was == "Rejected":
                self._record(config, kept, APPLIED, f"{kept.key} is corrected and in use", "Normal")
            if kept.remarks:
                self.counts.remarks += len(kept.remarks)
                self._record(config, kept, REMARK, "; ".join(kept.remarks))

    def _complain(self, config: ConfigMap, kept: Kept[Any], complaint: Complaint, unread: Unread) -> None:
        self.counts.rejected += 1
        if unread.json:
            why = worded(kept.key, unread.flaw)
            self._record(config, kept, complaint.reason, f"failed to unmarshal {complaint.subject}, err: {why}")
        else:
            self._record(config, kept, INVALID, kept.error)

    def _record(
        self, config: ConfigMap, kept: Kept[Any], reason: str, message: str, type: EventType = "Warning"
    ) -> None:
        _LOG.log(logging.WARNING if type == "Warning" else logging.INFO, "ConfigMap %s/%s: %s", *self._where, message)
        # Events alike but for their text count as one: a word about another document, or about the next attempt to
        # correct this one, must not be lost in it.
        action = f"{kept.key}@{config.metadata.resource_version}"
        self._world.recorder.record(reference(CONFIG_MAPS, config), type, reason, message, action=action)
