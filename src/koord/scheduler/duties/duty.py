"""What a duty is, and what it is given. Which plugin brings which duties is the registry's to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import msgspec

from koord.kube.client import Client
from koord.kube.recorder import Recorder
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.shell.eviction import Evictor
from koord.scheduler.shell.handle import LiveHandle
from koord.telemetry.clock import Clock


class Duty(Protocol):
    name: ClassVar[str]

    async def run(self) -> None:
        """From the start of leading until cancelled. What goes wrong on the way is retried or told, not raised."""


class Post(msgspec.Struct, frozen=True):
    """`plugins` are the instances of the plugin that brings the duty, one per profile that enables it."""

    client: Client
    handle: LiveHandle  # its `lister(...)` must be asked for kinds when the duty is made, not later
    clock: Clock
    recorder: Recorder
    evictor: Evictor
    plugins: Sequence[Plugin]


Hiring = Callable[[Post], Sequence[Duty]]
