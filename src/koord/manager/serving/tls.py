"""The HTTPS server of the webhooks, with a certificate that can change under open connections. It decides
nothing.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from koord.manager.serving.certificate import Material


class Identity:
    """The certificate that the server presents. `adopt` may be called at any time; later handshakes use the new
    pair.
    """

    def __init__(self) -> None:
        self.material = Material()
        self._current: ssl.SSLContext | None = None

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint; "" while nothing was adopted."""
        return self.material.fingerprint if self._current is not None else ""

    def adopt(self, material: Material) -> None:
        """Use the material from now on. Raise ssl.SSLError when the pair cannot be used; the one before stays."""
        self._current = _context(material)
        self.material = material

    def context(self) -> ssl.SSLContext:
        """Return the context of the listening socket. It has no certificate: each handshake is given the current one.

        """
        outer = _bare()
        outer.sni_callback = self._choose
        return outer

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> int | None:
        if self._current is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = self._current
        return None


def _bare() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    return made


def _context(material: Material) -> ssl.SSLContext:
    made = _bare()
    with tempfile.TemporaryDirectory() as place:  # OpenSSL loads keys from files only; the folder is the owner's alone
        cert, key = Path(place, "tls.crt"), Path(place, "tls.key")
        cert.write_bytes(material.cert)
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(material.key)
        made.load_cert_chain(cert, key)
    return made
