"""The settings of the ways in of hooks: NRI, the server for the runtime proxy, and their failure policies."""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.koordlet.nri.settings import FailurePolicy, NriSettings

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
