"""This module is the koord-yarn-copilot program and its flags."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from koord.api.koordinator.yarn import COPILOT_PROGRAM
from koord.cli.daemons import lifecycle as process
from koord.cli.daemons.flag_set import BOOLEAN, DURATION, TEXT, Flag, FlagSet, FlagValues, parse_listen_address
from koord.cli.daemons.lifecycle import LOGGING_FLAGS, OLD_KLOG_FLAGS, set_verbosity
from koord.telemetry.clock import WallClock
from koord.telemetry.http_routing import HttpCall, HttpReply, text_reply
from koord.telemetry.logs import Logs
from koord.telemetry.process import freeze_after_startup
from koord.yarn.copilot.node_manager import Address
from koord.yarn.copilot.program import DEFAULT_GROUP, PORT, CopilotNotStarted, CopilotSettings, YarnCopilot

_LOG = logging.getLogger("koord.cli.daemons.koord_yarn_copilot")  # by name: as a script this module is called __main__
PROGRAM = COPILOT_PROGRAM
_DEFAULTS = CopilotSettings()

COPILOT_FLAGS = (
    Flag("server-endpoint", TEXT, "Unix socket of the API that koordlet calls", _DEFAULTS.endpoint),
    Flag(
        "yarn-container-cgroup-path",
        TEXT,
        "The cgroup of all containers, below the cgroup root. Where it is not given and the kubelet uses systemd, the "
        "same group in that naming",
        DEFAULT_GROUP,
    ),
    Flag(
        "node-manager-endpoint",
        TEXT,
        "Host and port of the NodeManager's web services. Where it is not given and does not answer, the NodeManager's "
        "pod is searched for",
        f"{_DEFAULTS.node_manager[0]}:{_DEFAULTS.node_manager[1]}",
    ),
    Flag(
        "kubelet-endpoint",
        TEXT,
        "The kubelet's read-only port, asked for the NodeManager's pod; \"\" asks nobody",
        "127.0.0.1:10255",
    ),
    Flag(
        "sync-memory-cgroup",
        BOOLEAN,
        "Limit each container's memory by a memory cgroup, which NodeManagers of Hadoop 2 do not make",
    ),
    Flag("sync-cgroup-period", DURATION, "Between two looks at the groups of containers", 10_000_000_000),
    Flag("cgroup-root-dir", TEXT, "Root of cgroups", f"{_DEFAULTS.cgroup_root}/"),
    Flag("addr", TEXT, 'The address of metrics and health; "0" serves none', f":{PORT}"),
)
YARN_COPILOT_FLAGS = FlagSet(
    PROGRAM,
    "koord-yarn-copilot runs beside a NodeManager of Hadoop YARN. It tells koordlet which containers YARN runs on the\n"
    "node, and kills those that koordlet evicts.",
    {"Copilot": COPILOT_FLAGS, "Logging": (*LOGGING_FLAGS, *OLD_KLOG_FLAGS)},
)


def main() -> None:
    """Run the console script."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    return process.run_program(YARN_COPILOT_FLAGS, argv, run_copilot)


def run_copilot(values: FlagValues, logs: Logs) -> int:
    settings = settings_from_flags(values)
    if isinstance(settings, str):
        return process.report_errors(PROGRAM, [settings])
    for name, why in YARN_COPILOT_FLAGS.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    return process.run_event_loop(lambda stop: serve(settings, logs, stop))


async def serve(settings: CopilotSettings, logs: Logs, stop: asyncio.Event) -> int:
    """Serve until `stop`. Containers run on without the copilot."""
    copilot = await YarnCopilot.start(settings, WallClock())
    if isinstance(copilot, CopilotNotStarted):
        return process.report_errors(PROGRAM, [copilot.reason])
    copilot.endpoint.routes.add("PUT", "/debug/flags/v", lambda call: _put_verbosity(logs, call))
    freeze_after_startup()
    await stop.wait()
    _LOG.info("ending; containers run on")
    await copilot.stop()
    return 0


def settings_from_flags(values: FlagValues) -> CopilotSettings | str:
    """Return the settings, or the one line that says what is wrong."""
    endpoint = values.text("server-endpoint").removeprefix("unix://")
    for name, path in (("server-endpoint", endpoint), ("cgroup-root-dir", values.text("cgroup-root-dir"))):
        if not path.startswith("/"):
            return f"--{name} {path!r} is no absolute path"
    group = values.text("yarn-container-cgroup-path").strip("/")
    if not group or ".." in group.split("/"):
        return f"--yarn-container-cgroup-path {group!r} is no group below the cgroup root"
    if values.number("sync-cgroup-period") < 1_000_000_000:
        return "--sync-cgroup-period must be at least 1s"
    address = parse_listen_address(values.text("addr"), PORT)
    if isinstance(address, str):
        return f"--addr: {address}"
    peers: dict[str, Address | None] = {}
    for name in ("node-manager-endpoint", "kubelet-endpoint"):
        found = _peer(values.text(name))
        if isinstance(found, str):
            return f"--{name}: {found}"
        peers[name] = found
    node_manager = peers["node-manager-endpoint"]
    if node_manager is None:
        return "--node-manager-endpoint is empty"
    return CopilotSettings(
        endpoint=endpoint,
        group=group if values.is_set("yarn-container-cgroup-path") else "",
        node_manager=node_manager,
        kubelet=None if values.is_set("node-manager-endpoint") else peers["kubelet-endpoint"],
        sync_memory=values.switch("sync-memory-cgroup"),
        sync_s=values.seconds("sync-cgroup-period"),
        cgroup_root=values.text("cgroup-root-dir").rstrip("/") or "/",
        address=address,
    )


def _peer(text: str) -> Address | str | None:
    """Return host and port, None for no text, or what is wrong."""
    if not text:
        return None
    host, _, port = text.removeprefix("http://").rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        return f"{text!r} is no host:port"
    return host.strip("[]"), int(port)


def _put_verbosity(logs: Logs, call: HttpCall) -> HttpReply:
    try:
        return text_reply(set_verbosity(logs, call.body.decode()) + "\n")
    except ValueError as wrong:
        return text_reply(f"{wrong}\n", 400)


if __name__ == "__main__":
    main()
