"""Record events on pods whose device annotations are ignored or cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from koord.scheduler.controller import SchedulerController, SchedulerControllerContext
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.status_reporter import event_subject_of


class DeviceEventController:
    """Record the warnings that the device cache collects as events on the pods."""

    name: ClassVar[str] = "device events"

    def __init__(self, context: SchedulerControllerContext) -> None:
        plugin = context.plugins[0]
        assert isinstance(plugin, DeviceShare)
        self._device_events = plugin.cache.pending_events
        self._recorder = context.recorder
        self._work = asyncio.Event()
        plugin.cache.on_event = self._work.set

    async def run(self) -> None:
        while True:
            while self._device_events:
                pod, reason, message = self._device_events.popleft()
                self._recorder.record(event_subject_of(pod), "Warning", reason, message, action="Scheduling")
            self._work.clear()
            await self._work.wait()


def device_controllers(context: SchedulerControllerContext) -> Sequence[SchedulerController]:
    return (DeviceEventController(context),)
