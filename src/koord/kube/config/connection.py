"""This module describes how to reach one API server as one user, in plain values that loaders make and transports use,
and chooses the proxy for a server: the config's own, or the environment's as Go programs read it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec


class BadConfig(Exception):
    """BadConfig reports a configuration that cannot work: the file, the field in it, and what to do."""

    def __init__(self, file: str, field: str, problem: str, remedy: str) -> None:
        super().__init__(": ".join(part for part in (file, field, problem) if part) + f"; {remedy}")
        self.file = file
        self.field = field
        self.problem = problem
        self.remedy = remedy


class SettingOrigin(msgspec.Struct, frozen=True):
    """SettingOrigin names the file and field of a setting, so that a later failure can point to it."""

    file: str
    field: str

    def error(self, problem: str, remedy: str) -> BadConfig:
        return BadConfig(self.file, self.field, problem, remedy)


class SecretValue(msgspec.Struct, frozen=True, kw_only=True):
    """SecretValue is the base of values that hold secrets: their repr never shows them in logs or tracebacks."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class PemSource(SecretValue, frozen=True, kw_only=True):
    """PemSource holds certificates or a key, inline or in a file that may be replaced while the program runs."""

    origin: SettingOrigin
    data: bytes | None = None
    path: str = ""


class ClientKeyPair(SecretValue, frozen=True, kw_only=True):
    certificate: PemSource
    key: PemSource


class AnonymousAuth(SecretValue, frozen=True, kw_only=True):
    pass


class TokenAuth(SecretValue, frozen=True, kw_only=True):
    token: str


class TokenFileAuth(SecretValue, frozen=True, kw_only=True):
    """TokenFileAuth reads a token from a file that someone else renews."""

    origin: SettingOrigin
    path: str
    fallback: str = ""  # the inline token beside it, used until the file can be read


class BasicAuth(SecretValue, frozen=True, kw_only=True):
    username: str
    password: str


class IdTokenAuth(SecretValue, frozen=True, kw_only=True):
    """IdTokenAuth holds the OIDC token of a legacy auth-provider entry; nobody renews it."""

    origin: SettingOrigin
    token: str
    expires_s: float


class ExecAuth(SecretValue, frozen=True, kw_only=True):
    """ExecAuth describes a credential plugin: a program that prints a token or a certificate."""

    origin: SettingOrigin
    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    install_hint: str = ""
    interactive_mode: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"
    provide_cluster_info: bool = False
    cluster_config: Any = None  # what the cluster entry holds for the plugin
    environ: Mapping[str, str] = {}  # the environment that the plugin inherits
    terminal: bool = False  # whether a person sits at standard input


Auth = AnonymousAuth | TokenAuth | TokenFileAuth | BasicAuth | IdTokenAuth | ExecAuth


class Impersonation(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    server: str  # a URL, with the path prefix of a gateway if there is one, without a trailing slash
    origin: SettingOrigin  # of the server's address
    namespace: str = "default"
    context: str = ""
    ca: PemSource | None = None  # None: the system's roots
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    compress: bool = True
    certificate: ClientKeyPair | None = None
    auth: Auth = AnonymousAuth()
    impersonate: Impersonation | None = None


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
