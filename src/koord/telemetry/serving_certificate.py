"""The certificate of a program's HTTPS port: from files that may be renewed while it runs, or self-signed.

It stands apart from `certificates`, which needs the library cryptography: node agents serve HTTPS without it.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

TLS_VERSIONS = {
    "VersionTLS10": ssl.TLSVersion.TLSv1,
    "VersionTLS11": ssl.TLSVersion.TLSv1_1,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
_YEAR = dt.timedelta(days=365)


class ServingCertificateError(Exception):
    """The certificate files cannot be served. The message names them."""


class ServingCertificate:
    """An SSL context over two files; `refresh` loads renewed files for connections made from then on."""

    def __init__(self, certificate: str, key: str, *, minimum: str = "", client_ca: str = "") -> None:
        """Load the files. `client_ca` names the authorities of client certificates, which are optional."""
        self._files: tuple[str, ...] = (certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = TLS_VERSIONS[minimum or "VersionTLS12"]
        if client_ca:
            try:
                self.context.load_verify_locations(cafile=client_ca)
            except OSError as error:
                raise ServingCertificateError(f"{client_ca}: {error.strerror or error}") from None
            self.context.verify_mode = ssl.CERT_OPTIONAL
        self._seen: tuple[int, ...] = ()
        self.refresh()

    @property
    def is_static(self) -> bool:
        """Return whether the files were deleted on purpose, so that there is nothing to renew from."""
        return not self._files

    def make_static(self) -> None:
        self._files = ()

    def refresh(self) -> bool:
        """Reload changed files and return whether any were. Raises BadCertificate and keeps serving the old."""
        if self.is_static:
            return False
        try:
            seen = tuple(os.stat(file).st_mtime_ns for file in self._files)
            if seen == self._seen:
                return False
            # A pair is tried on a context of its own first: a bad one must not half replace the good one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
        except OSError as error:  # ssl.SSLError is one
            raise ServingCertificateError(f"{' and '.join(self._files)}: {error.strerror or error}") from None
        self._seen = seen
        return True


def self_signed(
    name: str, addresses: Sequence[str], folder: str = "", *, minimum: str = "", client_ca: str = ""
) -> ServingCertificate:
    """Create or load a certificate for `name` and `addresses`, kept in `folder` as <name>.crt and <name>.key.

    Without a folder it lives in memory only and is another one after a restart.
    """
    if folder:
        certificate, key = Path(folder) / f"{name}.crt", Path(folder) / f"{name}.key"
        try:
            if not (certificate.exists() and key.exists()):
                Path(folder).mkdir(parents=True, exist_ok=True)
                _write(certificate, key, name, addresses)
        except OSError as error:
            raise ServingCertificateError(f"{folder}: {error.strerror or error}") from None
        return ServingCertificate(str(certificate), str(key), minimum=minimum, client_ca=client_ca)
    # OpenSSL reads only files. They are gone as soon as they have been read.
    with tempfile.TemporaryDirectory() as place:
        certificate, key = Path(place) / "tls.crt", Path(place) / "tls.key"
        _write(certificate, key, name, addresses)
        made = ServingCertificate(str(certificate), str(key), minimum=minimum, client_ca=client_ca)
        made.make_static()
        return made


def _write(certificate: Path, key: Path, name: str, addresses: Sequence[str]) -> None:
    # A heavy library, needed only by who has no certificate.
    from cryptography.hazmat.primitives.asymmetric import ec

    from koord.telemetry import certificates

    private = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    made = certificates.self_signed_serving_certificate(
        private, name, [*addresses, "localhost"], now - certificates.CLOCK_SKEW, now + _YEAR
    )
    certificates.write_private_file(key, certificates.key_pem(private))
    certificate.write_bytes(certificates.certificate_pem(made))
