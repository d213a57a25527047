"""This module holds the flags of koord-device-daemon, and settles them with the environment and the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from koord.cli.daemons.flag_set import Flag, FlagSet, FlagValues
from koord.cli.daemons.flag_types import BOOLEAN, DURATION, TEXT
from koord.cli.daemons.lifecycle import LOGGING_FLAGS, OLD_KLOG_FLAGS
from koord.devicedaemon.settings import (
    HOST_ROOT,
    OUTPUT_FILE,
    SLEEP_S,
    DeviceDaemonSettings,
    environment_texts,
    file_texts,
    settings_from_texts,
)
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
