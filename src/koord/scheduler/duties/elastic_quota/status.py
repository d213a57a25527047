"""Write on every ElasticQuota what the quota cache says of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar

from koord.api.annotations.codec import Malformed
from koord.api.custom import ELASTIC_QUOTAS
from koord.api.protocol import ROOT_QUOTA
from koord.api.sigs_scheduling import ElasticQuota as QuotaObject
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.policy.quota.book import Book
from koord.policy.quota.directory import APART
from koord.policy.quota.publication import decide_patch, figures
from koord.scheduler.duties.duty import Post
from koord.scheduler.plugins.elastic_quota import ElasticQuota

_LOG = logging.getLogger(__name__)

PERIOD_S = 1.0
_BREATH = 32  # quotas between two looks at the rest of the program
_AT_A_TIME = 8

Key = tuple[str, str]


class Status:
    """Write on every ElasticQuota what the quota cache says of it, where it does not show that already."""
    name: ClassVar[str] = "the status of quotas"

    def __init__(self, post: Post, plugin: ElasticQuota) -> None:
        self._client = post.client
        self._clock = post.clock
        self._ledger = plugin.ledger
        self._quotas = post.handle.lister(ELASTIC_QUOTAS)
        self._quiet = QuietLog(_LOG, post.clock)
        self._turn = asyncio.Semaphore(_AT_A_TIME)
        self._looked: tuple[int, int] | None = None  # at which version of the book and of the list
        # By object: the figures that are known to be shown, and the revision of the object that was looked at.
        self._shown: dict[Key, tuple[Any, str]] = {}
        self.writes = 0
        self.took: Callable[[float], None] | None = None  # told how many seconds a write took

    async def run(self) -> None:
        self._looked = None  # another leader may have written meanwhile
        self._shown.clear()
        while True:
            await self.round()
            await self._clock.sleep(PERIOD_S)

    async def round(self) -> None:
        """Check all quotas once, yielding to the scheduler in between."""
        mark = (self._ledger.book.version, self._quotas.version)
        if mark == self._looked:
            return
        listed = self._quotas.list()
        behind = []
        for count, live in enumerate(listed, 1):
            if self._is_behind(live):
                behind.append(self._bring_up(live))
            if count % _BREATH == 0:
                await asyncio.sleep(0)
        done = await asyncio.gather(*behind)
        for key in self._shown.keys() - {_key(live) for live in listed}:
            del self._shown[key]
        self._looked = mark if all(done) else None

    def _is_behind(self, live: QuotaObject) -> bool:
        book = self._ledger.book
        if not _counts(book, live) or live.metadata.deletion_timestamp is not None:
            return False
        return self._shown.get(_key(live)) != (figures(book, live.metadata.name), live.metadata.resource_version)

    async def _bring_up(self, live: QuotaObject) -> bool:
        """Write the quota's status; return False when that has to be tried again."""
        async with self._turn:
            meta, book = live.metadata, self._ledger.book
            found = figures(book, meta.name)
            patch = decide_patch(live, book)
            if isinstance(patch, Malformed):
                self._quiet.warning("the status of quota %s/%s is left alone: %s", *_key(live), patch)
            elif patch is not None:
                started = self._clock.monotonic()
                try:
                    answer = await self._client.patch(
                        ELASTIC_QUOTAS, meta.name, patch, meta.namespace, kind="merge", uid=meta.uid
                    )
                except OUTAGE as outage:
                    self._quiet.warning("the status of quota %s/%s is not written: %s", *_key(live), outage)
                    return False
                if isinstance(answer, Refused):
                    if answer.not_found or answer.conflict:
                        return True  # it is gone, or another one by now: the watch will tell
                    self._quiet.warning("the status of quota %s/%s is not written: %s", *_key(live), answer)
                    return False
                self.writes += 1
                if self.took is not None:
                    self.took(self._clock.monotonic() - started)
            self._shown[_key(live)] = (found, meta.resource_version)
            return True


def _counts(book: Book, live: QuotaObject) -> bool:
    """Return whether this object is the one that counts of those that share its name."""
    if live.metadata.name == ROOT_QUOTA or live.metadata.name in APART:
        return True
    quota = book.quotas.get(live.metadata.name)
    return quota is not None and quota.namespace == live.metadata.namespace


def _key(live: QuotaObject) -> Key:
    return live.metadata.namespace, live.metadata.name
