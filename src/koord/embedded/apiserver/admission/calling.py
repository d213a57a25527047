"""Call webhooks over HTTPS: find them, verify their certificates, and report failures in Go's words."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from koord.embedded.apiserver.admission.registration import Endpoint, Webhook

Obj = dict[str, Any]
# (namespace, name, port) of a service -> host and port where it is served; None when nothing is known of it.
Resolver = Callable[[str, str, int], tuple[str, int] | None]

MAX_ANSWER_BYTES = 8 << 20


class CallFailed(Exception):
    """Raised when a webhook gave no answer; the message says why."""


def no_services(namespace: str, name: str, port: int) -> tuple[str, int] | None:
    return None


class Caller:
    def __init__(self, resolver: Resolver = no_services) -> None:
        self.resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def call(self, webhook: Webhook, review: Obj) -> Any:
        """Post the review and return the decoded answer. Raises WebhookCallError."""
        address, server_name = self._address(webhook)
        shown = f"{webhook.endpoint.shown}?timeout={webhook.timeout_s}s"
        try:
            async with asyncio.timeout(webhook.timeout_s):
                async with self._open().post(
                    f"{address}?timeout={webhook.timeout_s}s",
                    data=msgspec.json.encode(review),
                    headers={"Content-Type": "application/json", "Accept": "application/json"},
                    ssl=_context(webhook.endpoint.ca_bundle),
                    server_hostname=server_name,
                    allow_redirects=False,
                ) as answer:
                    raw = await answer.content.read(MAX_ANSWER_BYTES)
                    while not answer.content.at_eof() and len(raw) < MAX_ANSWER_BYTES:
                        raw += await answer.content.read(MAX_ANSWER_BYTES - len(raw))
                    return _body(answer.status, raw)
        except TimeoutError:
            raise _failed(f'Post "{shown}": context deadline exceeded') from None
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise _failed(f'Post "{shown}": {_words(error)}') from error

    def _address(self, webhook: Webhook) -> tuple[str, str | None]:
        """Return the URL to connect to, and the name that the certificate must prove when it is not the host of
        the URL.
        """
        endpoint = webhook.endpoint
        if endpoint.url:
            return endpoint.url, None
        found = self.resolver(endpoint.namespace, endpoint.service, endpoint.port)
        if found is None:
            shown = f"{endpoint.shown}?timeout={webhook.timeout_s}s"
            raise _failed(f'Post "{shown}": service "{endpoint.service}" not found')
        host, port = found
        return f"https://{host}:{port}{urlsplit(endpoint.shown).path}", _service_name(endpoint)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=True, trust_env=False)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _service_name(endpoint: Endpoint) -> str:
    return f"{endpoint.service}.{endpoint.namespace}.svc"


@functools.lru_cache(maxsize=256)
def _context(ca_bundle: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the bundle alone when there is one, else what the machine trusts."""
    return ssl.create_default_context(cadata=ca_bundle or None)


def _failed(why: str) -> CallFailed:
    return CallFailed(f"failed to call webhook: {why}")


def _body(status: int, raw: bytes) -> Any:
    if status == 404:
        raise _failed("the server could not find the requested resource")
    if status >= 400:
        text = raw.decode("utf-8", "replace")
        if status >= 500:
            raise _failed(f'an error on the server ("{text}") has prevented the request from succeeding')
        raise _failed(f"the server rejected our request for an unknown reason: {status}")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A body that is no JSON is tried as YAML, where nearly everything is a string.
        return raw.decode("utf-8", "replace")


def _words(error: Exception) -> str:
    """Return the failure as Go's client words it, for the cases that people search for."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"tls: failed to verify certificate: {_certificate_words(error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        place = f"{error.host}:{error.port}"
        if isinstance(error.os_error, ConnectionRefusedError):
            return f"dial tcp {place}: connect: connection refused"
        return f"dial tcp {place}: {error.os_error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error)


def _certificate_words(error: aiohttp.ClientConnectorCertificateError) -> str:
    inner = error.certificate_error
    if isinstance(inner, ssl.SSLCertVerificationError):
        if inner.verify_code in (18, 19, 20, 21):  # self-signed, or an issuer that nobody here knows
            return "x509: certificate signed by unknown authority"
        return f"x509: {inner.verify_message}"
    return str(inner)
