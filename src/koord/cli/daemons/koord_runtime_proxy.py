"""This module is the koord-runtime-proxy program."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from koord.cli.daemons import lifecycle as process
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.lifecycle import set_verbosity
from koord.cli.daemons.runtime_proxy_flags import PROGRAM, RUNTIME_PROXY_FLAGS, settings_from_flags
from koord.runtimeproxy.settings import RuntimeProxySettings
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs
from koord.telemetry.process import freeze_after_startup

_LOG = logging.getLogger("koord.cli.daemons.koord_runtime_proxy")  # by name: as a script this module is called __main__


def main() -> None:
    """Run the console script."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    return process.run_program(RUNTIME_PROXY_FLAGS, argv, run_proxy)


def run_proxy(values: FlagValues, logs: Logs) -> int:
    settings = settings_from_flags(values)
    if isinstance(settings, str):
        return process.report_errors(PROGRAM, [settings])
    for name, why in RUNTIME_PROXY_FLAGS.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    return process.run_event_loop(lambda stop: serve(settings, logs, stop))


async def serve(settings: RuntimeProxySettings, logs: Logs, stop: asyncio.Event) -> int:
    """Serve until `stop`. What is running on the node runs on without the proxy."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its notes about connections are not of the log's form
    # gRPC is an extra of this program; its help and its refusals of flags need none of it.
    try:
        from koord.runtimeproxy.program import RuntimeProxy, StartRefused
    except ModuleNotFoundError as missing:
        return process.report_errors(PROGRAM, [f"{missing}: install koord with its extra runtimeproxy"])

    proxy = await RuntimeProxy.start(settings, WallClock())
    if isinstance(proxy, StartRefused):
        return process.report_errors(PROGRAM, [proxy.reason])
    proxy.endpoint.flag("v", lambda text: set_verbosity(logs, text))
    freeze_after_startup()
    await stop.wait()
    _LOG.info("ending; pods run on, and their records stay")
    await proxy.stop()
    return 0


if __name__ == "__main__":
    main()
