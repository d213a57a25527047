"""This module supplies the credentials that a client presents: static ones, token files that someone renews,
OIDC tokens, and exec credential plugins.

The plugin protocol is client.authentication.k8s.io v1 and v1beta1: a request in the environment variable
KUBERNETES_EXEC_INFO, an ExecCredential on standard output. What a plugin prints is cached until it expires
or is rejected.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from koord.api.model import Model, decode_text, encode
from koord.kube.config.connection import (
    BadConfig,
    BasicAuth,
    ClientKeyPair,
    Connection,
    ExecAuth,
    IdTokenAuth,
    PemSource,
    SecretValue,
    SettingOrigin,
    TokenAuth,
    TokenFileAuth,
)
from koord.kube.transport.interface import Unreachable
from koord.telemetry.clock import Clock
from koord.values.json_text import MalformedText


class Credential(SecretValue, frozen=True, kw_only=True, eq=False):
    """Credential is one set of credentials. Credentials are compared by identity: a renewed one is another one."""

    authorization: str = ""
    certificate: ClientKeyPair | None = None


class CredentialSource(Protocol):
    """CredentialSource supplies the credential that a transport presents."""

    async def credential(self) -> Credential:
        """Return the credential to present now. Raise BadConfig without any way to it, Unreachable if it may come."""

    def rejected(self, credential: Credential) -> bool:
        """Record that the server responded 401 to `credential`; return whether another one may be available."""


_LOG = logging.getLogger(__name__)

EXEC_TIMEOUT_S = 60.0  # of a plugin that nobody types to
EXPIRY_SKEW_S = 60.0  # renew this long before the end, so that no request arrives with a token that just ended
_MAX_SHOWN_STDERR = 300


class ExecPluginFailed(Unreachable):
    """ExecPluginFailed means that the plugin failed this time and the next try may succeed. Nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class _ExecCredentialStatus(Model, frozen=True, kw_only=True):
    expiration_timestamp: datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredentialDocument(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    status: _ExecCredentialStatus | None = None


class ExecCredential(msgspec.Struct, frozen=True, kw_only=True):
    """ExecCredential is what a plugin printed, and until when it is valid."""

    credential: Credential
    expires_s: float | None


def exec_info_json(spec: ExecAuth, connection: Connection, ca: bytes | None) -> str:
    """Return the value of KUBERNETES_EXEC_INFO."""
    asked: dict[str, Any] = {"interactive": is_interactive(spec)}
    if spec.provide_cluster_info:
        cluster = {
            "server": connection.server,
            "tls-server-name": connection.tls_server_name,
            "insecure-skip-tls-verify": connection.insecure,
            "certificate-authority-data": base64.b64encode(ca).decode() if ca else "",
            "proxy-url": connection.proxy_url,
            "config": spec.cluster_config,
        }
        asked["cluster"] = {key: value for key, value in cluster.items() if value}
    info = {"apiVersion": spec.api_version, "kind": "ExecCredential", "spec": asked}
    return encode(info).decode()


def is_interactive(spec: ExecAuth) -> bool:
    return spec.terminal and spec.interactive_mode != "Never"


def parse_exec_credential(spec: ExecAuth, connection: Connection, output: bytes) -> ExecCredential:
    """Parse a plugin's standard output. Raise BadConfig on errors, as they would repeat every time."""
    remedy = "update the plugin, or correct exec.apiVersion"
    printed = decode_text(output, _ExecCredentialDocument)
    if isinstance(printed, MalformedText):
        raise spec.origin.error(f"{spec.command} did not print an ExecCredential ({printed})", remedy)
    if printed.kind != "ExecCredential" or printed.api_version != spec.api_version:
        problem = (
            f'{spec.command} printed "{printed.api_version} {printed.kind}", not {spec.api_version} ExecCredential'
        )
        raise spec.origin.error(problem, remedy)
    status = printed.status or _ExecCredentialStatus()
    if not status.token and not status.client_certificate_data and not status.client_key_data:
        raise spec.origin.error(f"{spec.command} printed neither a token nor a certificate", remedy)
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise spec.origin.error(f"{spec.command} printed a certificate or a key without the other", remedy)
    certificate = connection.certificate
    if status.client_certificate_data:
        certificate = ClientKeyPair(
            certificate=_inline_pem(spec, "clientCertificateData", status.client_certificate_data),
            key=_inline_pem(spec, "clientKeyData", status.client_key_data),
        )
    authorization = f"Bearer {status.token}" if status.token else ""
    ends = status.expiration_timestamp
    if ends is not None and ends.tzinfo is None:
        ends = ends.replace(tzinfo=UTC)
    credential = Credential(authorization=authorization, certificate=certificate)
    return ExecCredential(credential=credential, expires_s=None if ends is None else ends.timestamp())


def _inline_pem(spec: ExecAuth, field: str, text: str) -> PemSource:
    return PemSource(origin=SettingOrigin(spec.origin.file, f"{spec.origin.field} ({field})"), data=text.encode())


class ExecCredentialSource:
    """ExecCredentialSource caches one plugin's credential for all requests of a transport, run once at a time."""

    def __init__(self, spec: ExecAuth, connection: Connection, clock: Clock) -> None:
        self._spec = spec
        self._connection = connection
        self._clock = clock
        self._renew_lock = asyncio.Lock()
        self._held: ExecCredential | None = None
        self._renew_at_s: float | None = None

    async def credential(self) -> Credential:
        if self._fresh():
            assert self._held is not None
            return self._held.credential
        async with self._renew_lock:
            if not self._fresh():  # another request may have renewed it while this one waited
                await self._renew()
            assert self._held is not None
            return self._held.credential

    def rejected(self, credential: Credential) -> bool:
        if self._held is not None and self._held.credential is credential:
            self._held = None
        return True

    def _fresh(self) -> bool:
        return self._held is not None and (self._renew_at_s is None or self._clock.time() < self._renew_at_s)

    async def _renew(self) -> None:
        try:
            printed = parse_exec_credential(self._spec, self._connection, await self._run())
        except ExecPluginFailed as failure:
            held = self._held
            if held is None or held.expires_s is None or self._clock.time() >= held.expires_s:
                raise
            _LOG.warning("%s; the credentials at hand hold for a while yet", failure)
            return
        self._held = printed
        self._renew_at_s = None
        if printed.expires_s is not None:
            life = max(0.0, printed.expires_s - self._clock.time())
            self._renew_at_s = printed.expires_s - min(EXPIRY_SKEW_S, life / 5)  # a short life must leave time for work

    async def _run(self) -> bytes:
        spec = self._spec
        if spec.interactive_mode == "Always" and not spec.terminal:
            raise spec.origin.error(f"{spec.command} needs a person at the terminal", "log in from a terminal first")
        environ = {**spec.environ, **spec.env}
        command = shutil.which(spec.command, path=environ.get("PATH", os.defpath))
        if command is None:
            hint = "".join(c for c in spec.install_hint if c.isprintable() or c == "\n").strip()
            raise spec.origin.error(f"there is no program {spec.command}", hint or "install the credential plugin")
        environ["KUBERNETES_EXEC_INFO"] = exec_info_json(spec, self._connection, self._ca())
        interactive_run = is_interactive(spec)
        process = await asyncio.create_subprocess_exec(
            command,
            *spec.args,
            env=environ,
            stdin=None if interactive_run else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if interactive_run else asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(None if interactive_run else EXEC_TIMEOUT_S):
                output, errors = await process.communicate()
        except TimeoutError:
            raise ExecPluginFailed(f"{spec.command} printed nothing within {EXEC_TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:  # timed out or cancelled: nobody else would end it
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            said = (errors or b"")[-_MAX_SHOWN_STDERR:].decode(errors="replace").strip()
            raise ExecPluginFailed(f"{spec.command} ended with {process.returncode}: {said}")
        return output

    def _ca(self) -> bytes | None:
        ca = self._connection.ca
        if ca is None or not self._spec.provide_cluster_info:
            return None
        if ca.data is not None:
            return ca.data
        try:
            return Path(ca.path).read_bytes()
        except OSError as failure:
            raise ca.origin.error(f"{ca.path} cannot be read ({failure.strerror})", "check the path") from None


def credential_source(connection: Connection, clock: Clock) -> CredentialSource:
    auth, certificate = connection.auth, connection.certificate
    match auth:
        case TokenAuth():
            return StaticCredentialSource(Credential(authorization=_bearer(auth.token), certificate=certificate))
        case TokenFileAuth():
            return TokenFileCredentialSource(auth, certificate)
        case BasicAuth():
            pair = f"{auth.username}:{auth.password}".encode()
            basic = f"Basic {base64.b64encode(pair).decode()}"
            return StaticCredentialSource(Credential(authorization=basic, certificate=certificate))
        case IdTokenAuth():
            return IdTokenCredentialSource(auth, certificate, clock)
        case ExecAuth():
            return ExecCredentialSource(auth, connection, clock)
        case _:
            return StaticCredentialSource(Credential(certificate=certificate))


class StaticCredentialSource:
    """StaticCredentialSource always returns the same credential."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def credential(self) -> Credential:
        return self._credential

    def rejected(self, credential: Credential) -> bool:
        return False


class IdTokenCredentialSource:
    """IdTokenCredentialSource returns a token that expires and that nobody renews."""

    def __init__(self, auth: IdTokenAuth, certificate: ClientKeyPair | None, clock: Clock) -> None:
        self._auth = auth
        self._clock = clock
        self._credential = Credential(authorization=_bearer(auth.token), certificate=certificate)

    async def credential(self) -> Credential:
        if self._clock.time() >= self._auth.expires_s:
            remedy = "log in through an exec credential plugin for OIDC"
            raise self._auth.origin.error("its id-token has expired", remedy)
        return self._credential

    def rejected(self, credential: Credential) -> bool:
        return False


class TokenFileCredentialSource:
    """TokenFileCredentialSource reads its token again whenever the file changes, as tokens are renewed in place."""

    def __init__(self, auth: TokenFileAuth, certificate: ClientKeyPair | None) -> None:
        self._auth = auth
        self._certificate = certificate
        self._stamp: tuple[int, int, int] | None = None
        self._credential: Credential | None = None
        self._token = ""
        if auth.fallback:
            self._set_token(auth.fallback)

    async def credential(self) -> Credential:
        try:
            stamp = _stamp(self._auth.path)
            if stamp != self._stamp:
                self._set_token(self._read())
                self._stamp = stamp
        except (OSError, ValueError) as failure:
            if self._credential is None:
                raise self._unreadable(failure) from None
            # A file being replaced is away for a moment; the last token read is still our best one.
            _LOG.warning("token file %s cannot be read, the last token is used: %s", self._auth.path, failure)
        assert self._credential is not None
        return self._credential

    def rejected(self, credential: Credential) -> bool:
        self._stamp = None  # read again, even if the file's times did not change
        try:
            return credential is not self._credential or self._read() != self._token
        except (OSError, ValueError):
            return False

    def _set_token(self, token: str) -> None:
        if self._credential is None or token != self._token:
            self._token = token
            self._credential = Credential(authorization=_bearer(token), certificate=self._certificate)

    def _read(self) -> str:
        token = Path(self._auth.path).read_text().strip()
        if not token or not token.isprintable():
            raise ValueError("it holds no token")
        return token

    def _unreadable(self, failure: Exception) -> BadConfig:
        origin = self._auth.origin
        return origin.error(f"no token can be read from {self._auth.path} ({failure})", "check the file and its rights")


def _stamp(path: str) -> tuple[int, int, int]:
    seen = os.stat(path)
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _bearer(token: str) -> str:
    return f"Bearer {token}"
