"""This module is the koord-device-daemon program, and its flags, settled with the environment and the file."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from koord.cli.daemons import lifecycle as process
from koord.cli.daemons.flag_set import BOOLEAN, DURATION, TEXT, Flag, FlagSet, FlagValues
from koord.cli.daemons.lifecycle import LOGGING_FLAGS, OLD_KLOG_FLAGS
from koord.devicedaemon.program import DeviceDaemon
from koord.devicedaemon.settings import (
    HOST_ROOT,
    OUTPUT_FILE,
    SLEEP_S,
    DeviceDaemonSettings,
    environment_texts,
    file_texts,
    settings_from_texts,
)
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs
from koord.values import duration

PROGRAM = "koord-device-daemon"
DAEMON_FLAGS = (
    Flag("oneshot", BOOLEAN, "Look once, leave the file and end (KDD_ONESHOT)"),
    Flag("sleep-interval", DURATION, "Between two looks (KDD_SLEEP_INTERVAL)", int(SLEEP_S * 1e9)),
    Flag(
        "prints-output-file",
        TEXT,
        "File of devices that koordlet reads; empty: standard output (KDD_PRINTS_OUTPUT_FILE)",
        OUTPUT_FILE,
    ),
    Flag("config-file", TEXT, "File with the same settings as YAML, read again at SIGHUP (KDD_CONFIG_FILE)"),
    Flag("host-root", TEXT, "Where the machine's root directory is mounted; / on the machine itself", HOST_ROOT),
    Flag("no-timestamp", BOOLEAN, "No label with the time", no_effect_reason="nothing is labelled"),
)
DEVICE_DAEMON_FLAGS = FlagSet(
    PROGRAM,
    "koord-device-daemon asks the tools of accelerator vendors (Huawei, Cambricon, Kunlun, MetaX) what a node has,\n"
    "and writes it to a file that koordlet reads. NVIDIA's cards are found by koordlet itself.",
    {"Daemon": DAEMON_FLAGS, "Logging": (*LOGGING_FLAGS, *OLD_KLOG_FLAGS)},
)


def settle_settings(values: FlagValues, environ: Mapping[str, str]) -> DeviceDaemonSettings | str:
    """Return the settings, flags before environment before file, or the one line that says what is wrong."""
    stated = environment_texts(environ)
    given = _given_texts(values)
    path = given.get("config-file", stated.get("config-file", ""))
    from_file: dict[str, str] = {}
    if path:
        try:
            found = file_texts(Path(path).read_text())
        except (OSError, UnicodeDecodeError) as error:
            return f"the configuration file {path} cannot be read: {error}"
        if isinstance(found, str):
            return f"the configuration file {path}: {found}"
        from_file = found
    return settings_from_texts({**from_file, **stated, **given}, values.text("host-root"))


def _given_texts(values: FlagValues) -> dict[str, str]:
    texts = {name: values.text(name) for name in ("prints-output-file", "config-file") if values.is_set(name)}
    if values.is_set("oneshot"):
        texts["oneshot"] = "true" if values.switch("oneshot") else "false"
    if values.is_set("sleep-interval"):
        texts["sleep-interval"] = duration.text(values.number("sleep-interval"))
    return texts


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
