"""The daemon as a program: one round after the other, and the file that they keep."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping

import msgspec

from koord.api.model import to_dict
from koord.devicedaemon.settings import DeviceDaemonSettings
from koord.devicedaemon.vendor_probe import (
    HostTools,
    KnownCards,
    ProbeResult,
    RunTool,
    ToolFailed,
    next_cards,
    present_vendors,
)
from koord.host.filesystem import Host, HostPaths
from koord.host.hardware import Xpu
from koord.host.io_error import IoError
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

RETRY_S = 60.0  # after a round that failed, if that is sooner than the next one


class Round(msgspec.Struct, frozen=True):
    """The result of one round: the cards by vendor, and what went wrong."""

    cards: Mapping[str, KnownCards]
    problems: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[Xpu, ...]:
        return tuple(one for known in self.cards.values() for one in known.devices)


def run_round(host: Host, run: RunTool, before: Mapping[str, KnownCards]) -> Round:
    """Ask the tool of every vendor that has a card here. One that fails takes nothing from the others."""
    vendors = present_vendors(host)
    if isinstance(vendors, IoError):
        return Round(before, (f"the PCI devices cannot be listed: {vendors}",))
    cards: dict[str, KnownCards] = {}
    problems: list[str] = []
    for vendor in vendors:
        outcome = vendor.probe(host, run)
        cards[vendor.name] = next_cards(before.get(vendor.name, KnownCards()), outcome)
        if isinstance(outcome, ToolFailed):
            problems.append(f"{vendor.name}: {outcome}")
        else:
            problems += _card_problems(vendor.name, outcome)
    return Round(cards, tuple(problems))


def _card_problems(vendor: str, outcome: ProbeResult) -> list[str]:
    return [f"{vendor}: card {one.minor}: {one.reason}" for one in outcome.failed]


def device_file(devices: tuple[Xpu, ...]) -> str:
    """Return the text of the file: a JSON array, two blanks deep."""
    return msgspec.json.format(msgspec.json.encode([to_dict(one) for one in devices]), indent=2).decode() + "\n"


class DeviceDaemon:
    """DeviceDaemon runs rounds until it is asked to stop, or once."""

    def __init__(self, settings: DeviceDaemonSettings, clock: Clock, run: RunTool | None = None) -> None:
        self._settings = settings
        self._clock = clock
        root = "" if settings.host_root == "/" else settings.host_root
        self._host = Host(HostPaths().below_root(root)) if root else Host()
        self._given_run = run
        self._run = HostTools(settings.host_root).run if run is None else run
        self._cards: Mapping[str, KnownCards] = {}

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop`, and return the exit code."""
        while True:
            done = await asyncio.to_thread(run_round, self._host, self._run, self._cards)
            self._cards = done.cards
            for problem in done.problems:
                _LOG.error("%s", problem)
            io_error = self._publish(done.devices)
            if io_error is not None:
                _LOG.error("the devices cannot be written: %s", io_error)
                return 1
            if self._settings.oneshot:
                return 1 if done.problems else 0
            wait_s = min(self._settings.sleep_s, RETRY_S) if done.problems else self._settings.sleep_s
            if await self._stopped_within(stop, wait_s):
                return 0

    def successor(self, settings: DeviceDaemonSettings) -> DeviceDaemon:
        """Return the daemon that goes on with other settings: what is known of cards is not forgotten, and the file
        stays until the next round unless it is another file.
        """
        if settings.output_file != self._settings.output_file:
            self.remove_file()
        daemon = DeviceDaemon(settings, self._clock, self._given_run)
        daemon._cards = self._cards
        return daemon

    def remove_file(self) -> None:
        """Remove the file of devices, as nobody will look after it any more; that of a single round stays."""
        if self._settings.oneshot or not self._settings.output_file:
            return
        io_error = self._host.remove_file(self._settings.output_file)
        if io_error is not None:
            _LOG.error("the file of devices stays: %s", io_error)

    def _publish(self, devices: tuple[Xpu, ...]) -> IoError | None:
        """Write the file by way of a folder, since koordlet reads every file beside it. A node without accelerators has
        no file: an empty list would make koordlet speak for a vendor that is not there.
        """
        path = self._settings.output_file
        if not path:
            sys.stdout.write(device_file(devices))
            sys.stdout.flush()
            return None
        if not devices:
            return self._host.remove_file(path)
        folder = f"{path}-tmp"
        beside = f"{folder}/{os.path.basename(path)}"
        io_error = self._host.replace_file(beside, device_file(devices)) or self._host.rename_file(beside, path)
        return io_error or self._host.remove_folder(folder)

    async def _stopped_within(self, stop: asyncio.Event, seconds: float) -> bool:
        waiting = asyncio.ensure_future(stop.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()
        return stop.is_set()
