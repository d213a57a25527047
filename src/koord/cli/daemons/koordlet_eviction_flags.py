"""The flags that say how koordlet evicts, and their conversion to settings."""

from __future__ import annotations

from koord.cli.daemons.flag_set import BOOLEAN, DURATION, TEXT, Flag, FlagValues
from koord.host.filesystem import HostPaths
from koord.koordlet.inputs.yarn_containers import YarnCopilotSettings
from koord.koordlet.settings import MAX_GRACE_S, CriEvictionSettings
from koord.wire.yarn_copilot import SOCKET

BY_API = "only-evict-by-api"
YARN, NO_YARN = "yarn-copilot-endpoint", "none"
GRACE = "cri-stop-grace-period"
# Where runtimes listen, below the root of /var/run.
_SOCKETS = ("containerd/containerd.sock", "containerd.sock", "crio/crio.sock", "crio.sock")
_UNSUPPORTED = ("docker", "pouch")

EVICTION_FLAGS = (
    Flag(
        BY_API,
        BOOLEAN,
        "Evict through the API server, where disruption budgets hold; false: stop the containers of pods through the "
        "runtime by CRI, at once and whatever budgets say",
        True,
    ),
    Flag(
        GRACE,
        DURATION,
        f"With --{BY_API}=false: time that containers have to end before they are killed, in whole seconds up to "
        f"{MAX_GRACE_S}s",
    ),
    Flag(
        YARN,
        TEXT,
        "Unix socket of koord-yarn-copilot, by which YARN's containers are known and evicted. Default: "
        f"{SOCKET} in the root of /var/run, where there is one; {NO_YARN}: YARN is left alone",
    ),
)
ENDPOINT_FLAGS = (
    Flag(
        "containerd-endpoint",
        TEXT,
        f"With --{BY_API}=false: containerd's socket, looked at before {', '.join(_SOCKETS)} in the root of /var/run",
    ),
    *(
        Flag(f"{name}-endpoint", TEXT, "", no_effect_reason="containers are stopped by containerd or CRI-O only")
        for name in _UNSUPPORTED
    ),
)


def yarn_copilot_settings(values: FlagValues, paths: HostPaths) -> YarnCopilotSettings | str:
    """Return how YARN's containers are known, or what is wrong with the flag."""
    given = values.text(YARN).removeprefix("unix://")
    if given == NO_YARN:
        return YarnCopilotSettings()
    if given and not given.startswith("/"):
        return f"--{YARN} {given}: it is the absolute path of a Unix socket, or {NO_YARN}"
    return YarnCopilotSettings(endpoint=given or f"{paths.var_run}/{SOCKET}")


def cri_eviction_settings(values: FlagValues, paths: HostPaths) -> CriEvictionSettings | str | None:
    """Return the settings of eviction by CRI, None where the API server evicts, or what is wrong with a flag."""
    if values.switch(BY_API):
        return None
    for name in _UNSUPPORTED:
        if values.text(f"{name}-endpoint") or values.text("default-runtime-type") == name:
            return f"--{BY_API}=false: pods of {name} cannot be evicted by CRI, only those of containerd and CRI-O"
    given = values.text("containerd-endpoint").removeprefix("unix://")
    if given and not given.startswith("/"):
        return f"--containerd-endpoint {given}: it is the absolute path of a Unix socket"
    grace_s = values.seconds(GRACE)
    if grace_s != int(grace_s) or not 0 <= grace_s <= MAX_GRACE_S:
        return f"--{GRACE}: it is a whole number of seconds from 0 to {MAX_GRACE_S}"
    places = ([given] if given else []) + [f"{paths.var_run}/{socket}" for socket in _SOCKETS]
    return CriEvictionSettings(endpoints=tuple(dict.fromkeys(places)), grace_s=int(grace_s))
