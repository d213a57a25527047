"""This module runs exec credential plugins and caches what they print until it expires or is rejected.

The protocol is client.authentication.k8s.io v1 and v1beta1: a request in the environment variable
KUBERNETES_EXEC_INFO, an ExecCredential on standard output.
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
from typing import Any

import msgspec

from koord.api.model import Model, encode
from koord.kube.connection import Connection, Exec, KeyPair, Origin, Pem
from koord.kube.grant import Grant
from koord.kube.transport import UNREADABLE, Unreachable
from koord.telemetry.clock import Clock

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0  # of a plugin that nobody types to
SKEW_S = 60.0  # renew this long before the end, so that no request arrives with a token that just ended
_SHOWN = 300


class NoCredentials(Unreachable):
    """ExecPluginFailed means that the plugin failed this time and the next try may succeed. Nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class _Status(Model, frozen=True, kw_only=True):
    expiration_timestamp: datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _Credential(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """ExecCredential is what a plugin printed, and until when it is valid."""

    grant: Grant
    expires_s: float | None


def request_info(spec: Exec, connection: Connection, ca: bytes | None) -> str:
    """Return the value of KUBERNETES_EXEC_INFO."""
    asked: dict[str, Any] = {"interactive": interactive(spec)}
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


def interactive(spec: Exec) -> bool:
    return spec.terminal and spec.interactive_mode != "Never"


def read_credential(spec: Exec, connection: Connection, output: bytes) -> Printed:
    """Parse a plugin's standard output. Raise BadConfig on errors, as they would repeat every time."""
    remedy = "update the plugin, or correct exec.apiVersion"
    try:
        printed = msgspec.json.decode(output, type=_Credential)
    except UNREADABLE as wrong:
        raise spec.origin.bad(f"{spec.command} did not print an ExecCredential ({wrong})", remedy) from None
    if printed.kind != "ExecCredential" or printed.api_version != spec.api_version:
        problem = (
            f'{spec.command} printed "{printed.api_version} {printed.kind}", not {spec.api_version} ExecCredential'
        )
        raise spec.origin.bad(problem, remedy)
    status = printed.status or _Status()
    if not status.token and not status.client_certificate_data and not status.client_key_data:
        raise spec.origin.bad(f"{spec.command} printed neither a token nor a certificate", remedy)
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise spec.origin.bad(f"{spec.command} printed a certificate or a key without the other", remedy)
    certificate = connection.certificate
    if status.client_certificate_data:
        certificate = KeyPair(
            certificate=_printed_pem(spec, "clientCertificateData", status.client_certificate_data),
            key=_printed_pem(spec, "clientKeyData", status.client_key_data),
        )
    authorization = f"Bearer {status.token}" if status.token else ""
    ends = status.expiration_timestamp
    if ends is not None and ends.tzinfo is None:
        ends = ends.replace(tzinfo=UTC)
    grant = Grant(authorization=authorization, certificate=certificate)
    return Printed(grant=grant, expires_s=None if ends is None else ends.timestamp())


def _printed_pem(spec: Exec, field: str, text: str) -> Pem:
    return Pem(origin=Origin(spec.origin.file, f"{spec.origin.field} ({field})"), data=text.encode())


class ExecCredentials:
    """ExecCredentialSource caches one plugin's credential for all requests of a transport; the plugin runs at most
    once at a time.
    """

    def __init__(self, spec: Exec, connection: Connection, clock: Clock) -> None:
        self._spec = spec
        self._connection = connection
        self._clock = clock
        self._turn = asyncio.Lock()
        self._held: Printed | None = None
        self._renew_s: float | None = None

    async def grant(self) -> Grant:
        if self._fresh():
            assert self._held is not None
            return self._held.grant
        async with self._turn:
            if not self._fresh():  # another request may have renewed it while this one waited
                await self._renew()
            assert self._held is not None
            return self._held.grant

    def rejected(self, grant: Grant) -> bool:
        if self._held is not None and self._held.grant is grant:
            self._held = None
        return True

    def _fresh(self) -> bool:
        return self._held is not None and (self._renew_s is None or self._clock.time() < self._renew_s)

    async def _renew(self) -> None:
        try:
            printed = read_credential(self._spec, self._connection, await self._run())
        except NoCredentials as failure:
            held = self._held
            if held is None or held.expires_s is None or self._clock.time() >= held.expires_s:
                raise
            log.warning("%s; the credentials at hand hold for a while yet", failure)
            return
        self._held = printed
        self._renew_s = None
        if printed.expires_s is not None:
            life = max(0.0, printed.expires_s - self._clock.time())
            self._renew_s = printed.expires_s - min(SKEW_S, life / 5)  # a short life must leave time for work

    async def _run(self) -> bytes:
        spec = self._spec
        if spec.interactive_mode == "Always" and not spec.terminal:
            raise spec.origin.bad(f"{spec.command} needs a person at the terminal", "log in from a terminal first")
        environ = {**spec.environ, **spec.env}
        command = shutil.which(spec.command, path=environ.get("PATH", os.defpath))
        if command is None:
            hint = "".join(c for c in spec.install_hint if c.isprintable() or c == "\n").strip()
            raise spec.origin.bad(f"there is no program {spec.command}", hint or "install the credential plugin")
        environ["KUBERNETES_EXEC_INFO"] = request_info(spec, self._connection, self._ca())
        talks = interactive(spec)
        process = await asyncio.create_subprocess_exec(
            command,
            *spec.args,
            env=environ,
            stdin=None if talks else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if talks else asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(None if talks else TIMEOUT_S):
                output, errors = await process.communicate()
        except TimeoutError:
            raise NoCredentials(f"{spec.command} printed nothing within {TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:  # timed out or cancelled: nobody else would end it
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            said = (errors or b"")[-_SHOWN:].decode(errors="replace").strip()
            raise NoCredentials(f"{spec.command} ended with {process.returncode}: {said}")
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
            raise ca.origin.bad(f"{ca.path} cannot be read ({failure.strerror})", "check the path") from None
