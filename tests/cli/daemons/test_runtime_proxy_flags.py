"""The flags of koord-runtime-proxy: Koordinator's names and defaults, and one line for what cannot be."""

from __future__ import annotations

import pytest

from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_runtime_proxy import RUNTIME_PROXY_FLAGS, settings_from_flags
from koord.runtimeproxy.settings import RuntimeProxySettings


def settings(*argv: str) -> RuntimeProxySettings | str:
    values = RUNTIME_PROXY_FLAGS.parse(argv)
    assert isinstance(values, FlagValues), values
    return settings_from_flags(values)


def test_the_defaults_are_koordinators() -> None:
    assert settings() == RuntimeProxySettings(
        endpoint="/var/run/koord-runtimeproxy/runtimeproxy.sock",
        runtime_endpoint="/var/run/containerd/containerd.sock",
        hook_config_dir="/etc/runtime/hookserver.d",
        state_dir="/var/lib/koord-runtimeproxy",
        hook_timeout_s=2.0,
        opt_out_key="runtimeproxy.koordinator.sh/skip-hookserver",
        opt_out_value="true",
        address=("", 9318),
    )


def test_every_flag_is_heard() -> None:
    assert settings(
        "--koord-runtimeproxy-endpoint=unix:///a.sock",
        "--remote-runtime-service-endpoint=/b.sock",
        "--backend-runtime-mode=Containerd",
        "--runtime-hooks-config-path=/c",
        "--state-dir=/d",
        "--runtime-hook-timeout=300ms",
        "--runtime-hook-server-key=k",
        "--runtime-hook-server-val=v",
        "--addr=0",
    ) == RuntimeProxySettings(
        endpoint="/a.sock",
        runtime_endpoint="/b.sock",
        hook_config_dir="/c",
        state_dir="/d",
        hook_timeout_s=0.3,
        opt_out_key="k",
        opt_out_value="v",
        address=None,
    )


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--backend-runtime-mode=Docker", "--backend-runtime-mode Docker is not supported"),
        ("--backend-runtime-mode=podman", "unknown runtime engine"),
        ("--addr=nonsense", "--addr"),
        ("--runtime-hook-timeout=0s", "must be more than 0"),
        ("--state-dir=relative", "--state-dir 'relative' is no absolute path"),
        ("--koord-runtimeproxy-endpoint=tcp://1.2.3.4:5", "is no absolute path"),
        ("--koord-runtimeproxy-endpoint=/var/run/containerd/containerd.sock", "are the same socket"),
    ],
)
def test_what_cannot_be_is_one_line(flag: str, said: str) -> None:
    found = settings(flag)
    assert isinstance(found, str)
    assert said in found
    assert "\n" not in found
