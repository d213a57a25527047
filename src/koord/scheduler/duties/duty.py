"""Define a controller of the scheduler, and run those of every enabled plugin while this scheduler leads.

A controller that raises is logged and restarted. Which plugin has which controllers is stated in the registry.
"""

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
    """Keep the objects of a feature up to date while the scheduler leads."""
    name: ClassVar[str]

    async def run(self) -> None:
        """Run from the start of leading until cancelled; failures are retried or reported, not raised."""


class Post(msgspec.Struct, frozen=True):
    """Hold what a controller is made with; `plugins` are the instances of its plugin, one per profile that enables it.

    """

    client: Client
    handle: LiveHandle  # its `lister(...)` must be called when the controller is made, not later
    clock: Clock
    recorder: Recorder
    evictor: Evictor
    plugins: Sequence[Plugin]


Hiring = Callable[[Post], Sequence[Duty]]
