"""Record events on pods whose device annotations are ignored or cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from koord.scheduler.duties.duty import Duty, Post
from koord.scheduler.plugins.device_share import DeviceShare
from koord.scheduler.shell.teller import about_pod


class DeviceHerald:
    """Record the warnings that the device cache collects as events on the pods."""
    name: ClassVar[str] = "device herald"

    def __init__(self, post: Post) -> None:
        plugin = post.plugins[0]
        assert isinstance(plugin, DeviceShare)
        self._remarks = plugin.book.remarks
        self._recorder = post.recorder
        self._work = asyncio.Event()
        plugin.book.heard = self._work.set

    async def run(self) -> None:
        while True:
            while self._remarks:
                pod, reason, message = self._remarks.popleft()
                self._recorder.record(about_pod(pod), "Warning", reason, message, action="Scheduling")
            self._work.clear()
            await self._work.wait()


def device_duties(post: Post) -> Sequence[Duty]:
    return (DeviceHerald(post),)
