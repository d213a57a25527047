"""This module words the failures of HTTP calls as Go's client does: users search for those texts."""

from __future__ import annotations

import ssl

import aiohttp


def go_error_text(error: Exception) -> str:
    """Return the failure as Go's client words it, for the cases that people search for."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"tls: failed to verify certificate: {_go_certificate_error(error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        place = f"{error.host}:{error.port}"
        if isinstance(error.os_error, ConnectionRefusedError):
            return f"dial tcp {place}: connect: connection refused"
        return f"dial tcp {place}: {error.os_error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error)


def _go_certificate_error(error: aiohttp.ClientConnectorCertificateError) -> str:
    inner = error.certificate_error
    if isinstance(inner, ssl.SSLCertVerificationError):
        if inner.verify_code in (18, 19, 20, 21):  # self-signed, or an issuer that nobody here knows
            return "x509: certificate signed by unknown authority"
        return f"x509: {inner.verify_message}"
    return str(inner)
