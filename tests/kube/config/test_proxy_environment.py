"""Proxies from the environment, as Go programs read it."""

from __future__ import annotations

import pytest

from koord.kube.config.connection import BadConfig, proxy_from_environment

P = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        pytest.param("https://api:6443", {}, "", id="none-set"),
        pytest.param("https://api:6443", {"HTTPS_PROXY": P}, P, id="https"),
        pytest.param("https://api:6443", {"https_proxy": P}, P, id="lower-case"),
        pytest.param("https://api", {"HTTP_PROXY": P}, "", id="http-proxy-is-for-http"),
        pytest.param("http://api", {"HTTP_PROXY": "proxy:3128"}, P, id="scheme-is-optional"),
        pytest.param("https://localhost:6443", {"HTTPS_PROXY": P}, "", id="localhost-never"),
        pytest.param("https://127.1.2.3", {"HTTPS_PROXY": P}, "", id="loopback-never"),
        pytest.param("https://[::1]", {"HTTPS_PROXY": P}, "", id="loopback-six-never"),
        pytest.param("https://a.b", {"HTTPS_PROXY": P, "NO_PROXY": "*"}, "", id="star"),
        pytest.param("https://a.b", {"HTTPS_PROXY": P, "NO_PROXY": "x, B"}, "", id="domain-and-below"),
        pytest.param("https://b", {"HTTPS_PROXY": P, "NO_PROXY": "b"}, "", id="domain-itself"),
        pytest.param("https://b", {"HTTPS_PROXY": P, "NO_PROXY": ".b"}, P, id="dot-is-only-below"),
        pytest.param("https://a.b", {"HTTPS_PROXY": P, "NO_PROXY": ".b"}, "", id="dot-below"),
        pytest.param("https://ab", {"HTTPS_PROXY": P, "NO_PROXY": "b"}, P, id="not-a-suffix-of-letters"),
        pytest.param("https://b:1", {"HTTPS_PROXY": P, "NO_PROXY": "b:2"}, P, id="other-port"),
        pytest.param("https://b:2", {"HTTPS_PROXY": P, "NO_PROXY": "b:2"}, "", id="same-port"),
        pytest.param("https://b", {"HTTPS_PROXY": P, "NO_PROXY": "b:443"}, "", id="default-port"),
        pytest.param("https://10.1.2.3", {"HTTPS_PROXY": P, "NO_PROXY": "10.0.0.0/8"}, "", id="network"),
        pytest.param("https://11.1.2.3", {"HTTPS_PROXY": P, "NO_PROXY": "10.0.0.0/8"}, P, id="other-network"),
        pytest.param("https://10.1.2.3", {"HTTPS_PROXY": P, "NO_PROXY": "10.1.2.3"}, "", id="address"),
        pytest.param("https://[fd00::1]:1", {"HTTPS_PROXY": P, "NO_PROXY": "fd00::1"}, "", id="six"),
        pytest.param("https://[fd00::1]:1", {"HTTPS_PROXY": P, "NO_PROXY": "[fd00::1]:1"}, "", id="six-with-port"),
        pytest.param("https://[fd00::1]:1", {"HTTPS_PROXY": P, "NO_PROXY": "[fd00::1]:2"}, P, id="six-other-port"),
        pytest.param("https://b", {"HTTPS_PROXY": P, "NO_PROXY": "10.0.0.0/99,,"}, P, id="nonsense-rule"),
    ],
)
def test_proxy(server: str, environ: dict[str, str], proxy: str) -> None:
    assert proxy_from_environment(server, environ) == proxy


def test_a_socks_proxy_in_the_environment_is_told() -> None:
    with pytest.raises(BadConfig, match="environment: HTTPS_PROXY: socks5 proxies are not supported"):
        proxy_from_environment("https://a", {"HTTPS_PROXY": "socks5://p:1"})
