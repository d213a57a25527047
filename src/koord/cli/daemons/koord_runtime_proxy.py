"""This module is the koord-runtime-proxy program and its flags."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from koord.cli.daemons import lifecycle as process
from koord.cli.daemons.flag_set import DURATION, TEXT, Flag, FlagSet, FlagValues, parse_listen_address
from koord.cli.daemons.lifecycle import LOGGING_FLAGS, OLD_KLOG_FLAGS, set_verbosity
from koord.runtimeproxy.settings import PORT, RuntimeProxySettings
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs
from koord.telemetry.process import freeze_after_startup

_LOG = logging.getLogger("koord.cli.daemons.koord_runtime_proxy")  # by name: as a script this module is called __main__

PROGRAM = "koord-runtime-proxy"
CONTAINERD, DOCKER = "Containerd", "Docker"
_DEFAULTS = RuntimeProxySettings()
# gRPC's event engine hands each read and write of a socket to threads of its own: 32 wake-ups of the proxy for one call
# instead of 17, and each may wait for a CPU. Without it the thread that waits for completions reads and writes itself.
GRPC_POLLING = "-event_engine_client,-event_engine_listener"

PROXY_FLAGS = (
    Flag("koord-runtimeproxy-endpoint", TEXT, "Unix socket that the kubelet is pointed at", _DEFAULTS.endpoint),
    Flag("remote-runtime-service-endpoint", TEXT, "Unix socket of the container runtime", _DEFAULTS.runtime_endpoint),
    Flag(
        "backend-runtime-mode", TEXT, f"What the container runtime is; {CONTAINERD} stands for any CRI v1", CONTAINERD
    ),
    Flag("state-dir", TEXT, "Folder of the records of pods and containers", _DEFAULTS.state_dir),
    Flag("addr", TEXT, 'The address of metrics and health; "0" serves none', f":{PORT}"),
)
HOOK_FLAGS = (
    Flag("runtime-hook-server-key", TEXT, "Label of pods that are run without hooks", _DEFAULTS.opt_out_key),
    Flag("runtime-hook-server-val", TEXT, "Value of that label", _DEFAULTS.opt_out_value),
    Flag("runtime-hooks-config-path", TEXT, "Folder in which hook servers register", _DEFAULTS.hook_config_dir),
    Flag("runtime-hook-timeout", DURATION, "How long one call of a hook server may take", 2_000_000_000),
)
RUNTIME_PROXY_FLAGS = FlagSet(
    PROGRAM,
    "koord-runtime-proxy passes CRI calls from the kubelet to a container runtime and lets hook servers, such as\n"
    "koordlet's, change them. It is for runtimes without NRI.",
    {"Proxy": PROXY_FLAGS, "Hook": HOOK_FLAGS, "Logging": (*LOGGING_FLAGS, *OLD_KLOG_FLAGS)},
)


def settings_from_flags(values: FlagValues) -> RuntimeProxySettings | str:
    """Return the settings, or the one line that says what is wrong."""
    mode = values.text("backend-runtime-mode")
    if mode == DOCKER:
        return f"--backend-runtime-mode {DOCKER} is not supported: the runtime must serve CRI v1 ({CONTAINERD})"
    if mode != CONTAINERD:
        return f"--backend-runtime-mode {mode}: unknown runtime engine, it is {CONTAINERD}"
    address = parse_listen_address(values.text("addr"), PORT)
    if isinstance(address, str):
        return f"--addr: {address}"
    if values.number("runtime-hook-timeout") <= 0:
        return "--runtime-hook-timeout must be more than 0"
    paths = {}
    for name in (
        "koord-runtimeproxy-endpoint",
        "remote-runtime-service-endpoint",
        "state-dir",
        "runtime-hooks-config-path",
    ):
        paths[name] = values.text(name).removeprefix("unix://")
        if not paths[name].startswith("/"):
            return f"--{name} {values.text(name)!r} is no absolute path"
    if paths["koord-runtimeproxy-endpoint"] == paths["remote-runtime-service-endpoint"]:
        return "--koord-runtimeproxy-endpoint and --remote-runtime-service-endpoint are the same socket"
    return RuntimeProxySettings(
        endpoint=paths["koord-runtimeproxy-endpoint"],
        runtime_endpoint=paths["remote-runtime-service-endpoint"],
        hook_config_dir=paths["runtime-hooks-config-path"],
        state_dir=paths["state-dir"],
        hook_timeout_s=values.seconds("runtime-hook-timeout"),
        opt_out_key=values.text("runtime-hook-server-key"),
        opt_out_value=values.text("runtime-hook-server-val"),
        address=address,
    )


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
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_POLLING)
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
