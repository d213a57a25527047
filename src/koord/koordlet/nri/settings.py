"""This module holds the settings of the ways in of hooks: NRI, with the pauses and deadlines that follow, and the
server for the runtime proxy.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FailurePolicy = Literal["Ignore", "Fail"]

DEFAULT_REQUEST_TIMEOUT_S = 2.0  # of runtimes that do not tell theirs
_HANDLER_SHARE = 0.75  # of the runtime's timeout; the rest is for the way there and back


class NriSettings(msgspec.Struct, frozen=True, kw_only=True):
    """NriSettings states how the plugin connects and how long it may take.

    The runtime orders plugins by `plugin_index`, two digits. `connect_timeout_s` is the time from the dial to the end
    of the first Synchronize. `backoff_steps` is how many times the pause between two dials grows.
    """

    socket_path: str = "/var/run/nri/nri.sock"
    plugin_name: str = "koordlet_nri"
    plugin_index: str = "00"
    connect_timeout_s: float = 6.0
    register_timeout_s: float = 5.0
    backoff_s: float = 1.0
    backoff_cap_s: float = 60.0
    backoff_factor: float = 2.0
    backoff_steps: int = (1 << 31) - 1
    backoff_jitter: float = 0.1
    max_handler_s: float = 1.5
    failure_policy: FailurePolicy = "Ignore"
    lock_path: str = "/var/run/koordlet/nri.lock"


def backoff_delay_s(settings: NriSettings, failures: int) -> float:
    """Return the pause before the next dial after `failures` dials in a row that failed, without jitter."""
    delay = settings.backoff_s
    for _ in range(min(failures - 1, settings.backoff_steps)):
        delay *= settings.backoff_factor
        if delay >= settings.backoff_cap_s or settings.backoff_factor <= 1:
            break
    return min(delay, settings.backoff_cap_s)


def handler_deadline_s(settings: NriSettings, request_timeout_s: float, caller_timeout_s: float) -> float:
    """Return how long a handler may take for a call.

    `request_timeout_s` is what the runtime told at Configure, `caller_timeout_s` what the call itself carries; 0 or
    less means that it does not tell.
    """
    told = [timeout for timeout in (request_timeout_s, caller_timeout_s) if timeout > 0]
    return min(settings.max_handler_s, _HANDLER_SHARE * min(told, default=DEFAULT_REQUEST_TIMEOUT_S))


ServerMode = Literal["auto", "on", "off"]


class HookServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`nri` is None where NRI is not to be used. The server for the proxy runs in mode auto where the proxy's folder of
    registrations exists.

    `address` is the server's socket as the agent sees it, `endpoint` the same socket as the proxy sees it. With
    `plugin_failure_policy` Fail a hook that fails is a failure for the runtime; `failure_policy` is what the proxy is
    told to do when the server does not answer.
    """

    nri: NriSettings | None = None
    server: ServerMode = "off"
    address: str = "/host-var-run-koordlet/koordlet.sock"
    endpoint: str = "/var/run/koordlet/koordlet.sock"
    registrations: str = "/etc/runtime/hookserver.d"
    failure_policy: FailurePolicy = "Ignore"
    plugin_failure_policy: FailurePolicy = "Ignore"
    disabled_stages: frozenset[str] = frozenset()
    runtime: str = "containerd"
