"""This module describes how to reach one API server as one user: plain values that loaders make and transports
use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

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
