"""The settings of the proxy, with the defaults of Koordinator's."""

from __future__ import annotations

import msgspec

PORT = 9318
HOOK_CONFIG_DIR = "/etc/runtime/hookserver.d"


class RuntimeProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: str = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    runtime_endpoint: str = "/var/run/containerd/containerd.sock"
    hook_config_dir: str = HOOK_CONFIG_DIR
    state_dir: str = "/var/lib/koord-runtimeproxy"
    hook_timeout_s: float = 2.0
    opt_out_key: str = "runtimeproxy.koordinator.sh/skip-hookserver"  # a label of pods, and its value
    opt_out_value: str = "true"
    address: tuple[str, int] | None = ("", PORT)  # of metrics and health; None serves none
