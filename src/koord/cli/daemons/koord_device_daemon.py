"""This module is the koord-device-daemon program."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import msgspec

from koord.cli.daemons import lifecycle as process
from koord.cli.daemons.device_daemon_flags import DEVICE_DAEMON_FLAGS, PROGRAM, settle_settings
from koord.cli.daemons.flag_set import FlagValues
from koord.devicedaemon.program import DeviceDaemon
from koord.devicedaemon.settings import DeviceDaemonSettings
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs

_LOG = logging.getLogger("koord.cli.daemons.koord_device_daemon")  # by name: as a script this module is called __main__


def main() -> None:
    """Run the console script."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    return process.run_program(DEVICE_DAEMON_FLAGS, argv, lambda values, logs: run_daemon(values, logs, environ))


def run_daemon(values: FlagValues, logs: Logs, environ: Mapping[str, str]) -> int:
    settings = settle_settings(values, environ)
    if isinstance(settings, str):
        return process.report_errors(PROGRAM, [settings])
    for name, why in DEVICE_DAEMON_FLAGS.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    return process.run_event_loop(lambda stop: serve(settings, values, environ, stop))


async def serve(
    settings: DeviceDaemonSettings, values: FlagValues, environ: Mapping[str, str], stop: asyncio.Event
) -> int:
    """Run the daemon until `stop`. SIGHUP settles the configuration anew; one that is wrong changes nothing."""
    loop = asyncio.get_running_loop()
    daemon = DeviceDaemon(settings, WallClock())
    while True:
        _LOG.info("settings: %s", msgspec.json.encode(settings).decode())
        ended = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, ended.set)
        stopping = asyncio.create_task(_set_after(stop, ended))
        try:
            code = await daemon.run(ended)
        finally:
            stopping.cancel()
        if stop.is_set() or not ended.is_set() or code != 0:
            daemon.remove_file()
            return code
        changed = settle_settings(values, environ)
        if isinstance(changed, str):
            _LOG.error("the settings stay as they are: %s", changed)
            continue
        daemon, settings = daemon.successor(changed), changed


async def _set_after(first: asyncio.Event, then: asyncio.Event) -> None:
    await first.wait()
    then.set()


if __name__ == "__main__":
    main()
