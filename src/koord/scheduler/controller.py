"""Define a controller of the scheduler, and run those of every enabled plugin while this scheduler leads.

A controller that raises is logged and restarted. Which plugin has which controllers is stated in `scheduler`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.scheduler.evictor import SchedulerEvictor
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.live_handle import LiveHandle
from koord.scheduler.metrics import KoordinatorMetrics
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricRegistry


class SchedulerController(Protocol):
    """Keep the objects of a feature up to date while the scheduler leads."""

    name: ClassVar[str]

    async def run(self) -> None:
        """Run from the start of leading until cancelled; failures are retried or reported, not raised."""


class SchedulerControllerContext(msgspec.Struct, frozen=True):
    """Hold what a controller is made with; `plugins` are the instances of its plugin, one per enabling profile."""

    client: Client
    handle: LiveHandle  # its `lister(...)` must be called when the controller is made, not later
    clock: Clock
    recorders: Mapping[str, EventRecorder]  # by the name of the scheduler, in the order of its profiles
    evictor: SchedulerEvictor
    plugins: Sequence[Plugin]
    metrics: KoordinatorMetrics | None = None

    @property
    def recorder(self) -> EventRecorder:
        """Return the recorder of the first profile, for what no scheduler's name is known of."""
        return next(iter(self.recorders.values()))


@runtime_checkable
class ControllerProvider(Protocol):
    """A plugin of any package that brings its own controllers; they run while the scheduler leads."""

    def controllers(self, context: SchedulerControllerContext) -> Sequence[SchedulerController]: ...


@runtime_checkable
class MetricsProvider(Protocol):
    """A plugin of any package that brings its own metrics, which are served with the scheduler's."""

    def register_metrics(self, registry: MetricRegistry) -> None: ...


ControllerFactory = Callable[[SchedulerControllerContext], Sequence[SchedulerController]]


_LOG = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S, LONGEST_RESTART_DELAY_S = 1.0, 60.0


def runs_controllers(plugin: str, wanted: Sequence[str]) -> bool:
    """Return whether --controller-plugins wants a plugin's controllers: `name` and `-name` go before `*`."""
    named = next((entry for entry in wanted if entry.removeprefix("-") == plugin), None)
    return named == plugin if named is not None else "*" in wanted


def build_controllers(
    profiles: Iterable[SchedulerProfile],
    controllers: Mapping[str, ControllerFactory],
    make_context: Callable[[tuple[Plugin, ...]], SchedulerControllerContext],
    wanted: Sequence[str] = ("*",),
) -> tuple[SchedulerController, ...]:
    """Build the controllers of all enabled plugins; `make_context` makes the context for some plugins' controllers.

    `wanted` says whose, as --controller-plugins does.
    """
    plugins: dict[str, list[Plugin]] = {}
    for profile in profiles:
        for plugin in profile.plugins():
            has_some = plugin.name in controllers or isinstance(plugin, ControllerProvider)
            if has_some and runs_controllers(plugin.name, wanted):
                plugins.setdefault(plugin.name, []).append(plugin)
    found: list[SchedulerController] = []
    for name, held in plugins.items():
        context, first = make_context(tuple(held)), held[0]
        if name in controllers:
            found += controllers[name](context)
        elif isinstance(first, ControllerProvider):
            found += first.controllers(context)
    return tuple(found)


async def run_controllers(controllers: Iterable[SchedulerController], clock: Clock) -> None:
    """Run all controllers until cancelled."""
    async with asyncio.TaskGroup() as group:
        for controller in controllers:
            group.create_task(_run_with_restarts(controller, clock))


async def _run_with_restarts(controller: SchedulerController, clock: Clock) -> None:
    delay_s = FIRST_RESTART_DELAY_S
    while True:
        started = clock.monotonic()
        try:
            await controller.run()
            return
        except Exception:  # noqa: BLE001 - a mistake in one controller must stop neither scheduling nor the others
            _LOG.exception("%s broke and is started again in %.0f s", controller.name, delay_s)
        if clock.monotonic() - started > LONGEST_RESTART_DELAY_S:
            delay_s = FIRST_RESTART_DELAY_S
        await clock.sleep(delay_s)
        delay_s = min(delay_s * 2, LONGEST_RESTART_DELAY_S)
