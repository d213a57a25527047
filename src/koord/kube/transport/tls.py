"""This module builds the TLS contexts of a connection, again when the files behind them change. It opens no socket."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator

from koord.kube.config.connection import ClientKeyPair, Connection, PemSource

FileStamp = tuple[object, ...]


class TlsContexts:
    """TlsContexts returns the context to use with a client certificate, or with none. A new one: new connections."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stamp: FileStamp | None = None
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: ClientKeyPair | None) -> ssl.SSLContext:
        parts = [self._connection.ca] if self._connection.ca else []
        if certificate is not None:
            parts += [certificate.certificate, certificate.key]
        stamp = tuple(_stamp(pem) for pem in parts)
        if self._context is None or stamp != self._stamp:
            self._context = _build(self._connection, certificate)
            self._stamp = stamp
        return self._context


def _stamp(pem: PemSource) -> FileStamp:
    if pem.data is not None:
        return (pem.data,)
    try:
        seen = os.stat(pem.path)
    except OSError as failure:
        raise pem.origin.error(
            f"{pem.path} cannot be read ({failure.strerror})", "check the path and its rights"
        ) from None
    return (pem.path, seen.st_mtime_ns, seen.st_size, seen.st_ino)


def _build(connection: Connection, certificate: ClientKeyPair | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif connection.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, connection.ca)
    if certificate is not None:
        _load_pair(context, certificate)
    return context


def _load_ca(context: ssl.SSLContext, ca: PemSource) -> None:
    try:
        if ca.data is not None:
            context.load_verify_locations(cadata=ca.data.decode("ascii"))
        else:
            context.load_verify_locations(cafile=ca.path)
    except (ssl.SSLError, ValueError, OSError) as wrong:
        raise ca.origin.error(f"it holds no certificate ({wrong})", "give a PEM certificate") from None


def _load_pair(context: ssl.SSLContext, pair: ClientKeyPair) -> None:
    try:
        with _file(pair.certificate) as certificate, _file(pair.key) as key:
            # A password prompt on a daemon's terminal would hang it: an encrypted key is an error.
            context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError, OSError) as wrong:
        problem = f"the client certificate and key cannot be used ({wrong})"
        raise pair.certificate.origin.error(problem, "give a PEM certificate with its own unencrypted key") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


@contextlib.contextmanager
def _file(pem: PemSource) -> Iterator[str]:
    """Yield a path for OpenSSL, which takes no bytes. Inline keys stay in memory where the system supports it."""
    if pem.data is None:
        yield pem.path
    elif hasattr(os, "memfd_create"):
        handle = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(handle, pem.data)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(pem.data)
            file.flush()
            yield file.name
