"""The daemon's settings: flags before environment before file, as Koordinator's daemon takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from koord.values import duration, go_format

OUTPUT_FILE = "/var/run/koordlet/xpu-device-infos/ic-device"
HOST_ROOT = "/hostfs"
SLEEP_S = 900.0
# By setting: the environment variables that state it, the first that is there counts.
ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "oneshot": ("KDD_ONESHOT",),
    "sleep-interval": ("KDD_SLEEP_INTERVAL",),
    "prints-output-file": ("KDD_PRINTS_OUTPUT_FILE", "PRINTS_OUTPUT_FILE"),
    "config-file": ("KDD_CONFIG_FILE", "CONFIG_FILE"),
}
_FILE_KEYS = {"oneshot": "oneshot", "sleepInterval": "sleep-interval", "printsOutputFile": "prints-output-file"}
_VERSION = "v1"


class DeviceDaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An empty `output_file` means standard output. `host_root` is where the machine's own root directory is seen."""

    oneshot: bool = False
    sleep_s: float = SLEEP_S
    output_file: str = OUTPUT_FILE
    host_root: str = HOST_ROOT


def environment_texts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the environment states."""
    return {
        setting: environ[stated[0]]
        for setting, names in ENVIRONMENT.items()
        if (stated := [name for name in names if name in environ])
    }


def file_texts(text: str) -> dict[str, str] | str:
    """Return the settings that a configuration file states, or what is wrong with it."""
    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        return f"it is no YAML: {str(error).splitlines()[0]}"
    if not isinstance(document, dict):
        return "it is no mapping"
    if document.get("version") != _VERSION:
        return f"unknown version: {document.get('version')}"
    flags = document.get("flags") or {}
    stated = flags.get("kdd") or {} if isinstance(flags, dict) else None
    if not isinstance(stated, dict):
        return "flags.kdd is no mapping"
    unknown = sorted(map(str, stated.keys() - _FILE_KEYS.keys()))
    if unknown:
        return f"flags.kdd has no field {unknown[0]}"
    return {_FILE_KEYS[key]: _text(value) for key, value in stated.items() if value is not None}


def settings_from_texts(texts: Mapping[str, str], host_root: str) -> DeviceDaemonSettings | str:
    """Return the settings, or what is wrong with one of them."""
    oneshot = go_format.parse_bool(texts.get("oneshot", "false"))
    if oneshot is None:
        return f"oneshot: {texts['oneshot']!r} is neither true nor false"
    try:
        sleep_s = duration.parse(texts["sleep-interval"]) / 1e9 if "sleep-interval" in texts else SLEEP_S
    except duration.DurationError as error:
        return f"sleep-interval: {error}"
    if sleep_s <= 0:
        return "sleep-interval: it must be more than 0"
    output = texts.get("prints-output-file", OUTPUT_FILE)
    if output and not output.startswith("/"):
        return f"prints-output-file: {output!r} is no absolute path"
    if not host_root.startswith("/"):
        return f"host-root: {host_root!r} is no absolute path"
    return DeviceDaemonSettings(
        oneshot=oneshot, sleep_s=sleep_s, output_file=output, host_root=host_root.rstrip("/") or "/"
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
