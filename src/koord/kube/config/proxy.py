"""This module chooses the proxy for a server: the config's own, or the environment's as Go programs read it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from koord.kube.config.connection import SettingOrigin


def validate_proxy_url(url: str, origin: SettingOrigin) -> str:
    """Return the configured proxy URL, or raise an error that says what is wrong with it."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme.startswith("socks"):
        raise origin.error(f"{parts.scheme} proxies are not supported", "use an http or https proxy")
    if parts.scheme not in ("http", "https") or not host:
        raise origin.error(f'"{url}" is not a proxy address', "write it like http://proxy:3128")
    return url


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str:
    """Read HTTPS_PROXY, HTTP_PROXY and NO_PROXY, upper case first. Loopback is never proxied."""
    parts = urlsplit(server)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    names = ("HTTPS_PROXY", "https_proxy") if parts.scheme == "https" else ("HTTP_PROXY", "http_proxy")
    url = next((environ[name] for name in names if environ.get(name)), "")
    if not url or _loopback(host):
        return ""
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if any(_matches_no_proxy_rule(rule.strip().lower(), host, port) for rule in excluded.split(",")):
        return ""
    url = url if "://" in url else f"http://{url}"
    return validate_proxy_url(url, SettingOrigin("environment", names[0]))


def _loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _matches_no_proxy_rule(rule: str, host: str, port: int) -> bool:
    if not rule:
        return False
    if rule == "*":
        return True
    address = _address(host)
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name, wanted_port = _split_port(rule)
    if wanted_port and wanted_port != str(port):
        return False
    if address is not None:
        return _address(name) == address
    if name.startswith(("*.", ".")):  # only names below it
        return host.endswith(name.lstrip("*"))
    return host == name or host.endswith(f".{name}")


def _split_port(rule: str) -> tuple[str, str]:
    """Split `host`, `host:port`, `[v6]`, `[v6]:port` or a bare v6 address into name and port."""
    if rule.startswith("["):
        name, _, rest = rule[1:].partition("]")
        return name, rest.removeprefix(":")
    if rule.count(":") == 1:
        name, _, wanted = rule.partition(":")
        return name, wanted
    return rule, ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
