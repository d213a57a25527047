"""This module supplies credentials: static ones, token files that someone renews, OIDC tokens, and exec
plugins.
"""

from __future__ import annotations

import base64
import logging
import os
from pathlib import Path

from koord.kube.connection import BadConfig, Basic, Connection, Exec, IdToken, KeyPair, Token, TokenFile
from koord.kube.exec_plugin import ExecCredentials
from koord.kube.grant import Credentials, Grant
from koord.telemetry.clock import Clock

log = logging.getLogger(__name__)


def credentials_for(connection: Connection, clock: Clock) -> Credentials:
    auth, certificate = connection.auth, connection.certificate
    match auth:
        case Token():
            return Fixed(Grant(authorization=_bearer(auth.token), certificate=certificate))
        case TokenFile():
            return FromFile(auth, certificate)
        case Basic():
            pair = f"{auth.username}:{auth.password}".encode()
            basic = f"Basic {base64.b64encode(pair).decode()}"
            return Fixed(Grant(authorization=basic, certificate=certificate))
        case IdToken():
            return Unrenewed(auth, certificate, clock)
        case Exec():
            return ExecCredentials(auth, connection, clock)
        case _:
            return Fixed(Grant(certificate=certificate))


class Fixed:
    """StaticCredentialSource always returns the same credential."""

    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    async def grant(self) -> Grant:
        return self._grant

    def rejected(self, grant: Grant) -> bool:
        return False


class Unrenewed:
    """IdTokenCredentialSource returns a token that expires and that nobody renews."""

    def __init__(self, auth: IdToken, certificate: KeyPair | None, clock: Clock) -> None:
        self._auth = auth
        self._clock = clock
        self._grant = Grant(authorization=_bearer(auth.token), certificate=certificate)

    async def grant(self) -> Grant:
        if self._clock.time() >= self._auth.expires_s:
            remedy = "log in through an exec credential plugin for OIDC"
            raise self._auth.origin.bad("its id-token has expired", remedy)
        return self._grant

    def rejected(self, grant: Grant) -> bool:
        return False


class FromFile:
    """TokenFileCredentialSource reads its token again whenever the file changes: service account tokens are
    renewed in place.
    """

    def __init__(self, auth: TokenFile, certificate: KeyPair | None) -> None:
        self._auth = auth
        self._certificate = certificate
        self._stamp: tuple[int, int, int] | None = None
        self._grant: Grant | None = None
        self._token = ""
        if auth.fallback:
            self._keep(auth.fallback)

    async def grant(self) -> Grant:
        try:
            stamp = _stamp(self._auth.path)
            if stamp != self._stamp:
                self._keep(self._read())
                self._stamp = stamp
        except (OSError, ValueError) as failure:
            if self._grant is None:
                raise self._unreadable(failure) from None
            # A file being replaced is away for a moment; the last token read is still our best one.
            log.warning("token file %s cannot be read, the last token is used: %s", self._auth.path, failure)
        assert self._grant is not None
        return self._grant

    def rejected(self, grant: Grant) -> bool:
        self._stamp = None  # read again, even if the file's times did not change
        try:
            return grant is not self._grant or self._read() != self._token
        except (OSError, ValueError):
            return False

    def _keep(self, token: str) -> None:
        if self._grant is None or token != self._token:
            self._token = token
            self._grant = Grant(authorization=_bearer(token), certificate=self._certificate)

    def _read(self) -> str:
        token = Path(self._auth.path).read_text().strip()
        if not token or not token.isprintable():
            raise ValueError("it holds no token")
        return token

    def _unreadable(self, failure: Exception) -> BadConfig:
        origin = self._auth.origin
        return origin.bad(f"no token can be read from {self._auth.path} ({failure})", "check the file and its rights")


def _stamp(path: str) -> tuple[int, int, int]:
    seen = os.stat(path)
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _bearer(token: str) -> str:
    return f"Bearer {token}"
