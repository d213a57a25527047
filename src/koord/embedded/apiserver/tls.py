"""Create the server's certificate authority and serving certificate on first use, and keep them when given a folder."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from koord.embedded.apiserver.private_files import FOLDER_MODE, DataDirectoryError
from koord.telemetry import certificates

DEFAULT_HOSTS = (
    *("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    *("kubernetes.default.svc.cluster.local", "127.0.0.1", "::1"),
)


class CertKeyPair(msgspec.Struct, frozen=True):
    """Holds a certificate and its private key in PEM."""

    certificate: bytes
    key: bytes


class ApiServerCertificates(msgspec.Struct, frozen=True):
    authority: CertKeyPair
    serving: CertKeyPair

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context of the HTTPS server: TLS 1.2 and up, HTTP/1.1 only."""
        return certificates.server_context(self.serving.certificate, self.serving.key)


def create_certificates(
    hosts: Sequence[str] = DEFAULT_HOSTS, *, now: datetime.datetime | None = None
) -> ApiServerCertificates:
    """Create a certificate authority and a serving certificate that it signed for `hosts` (names and addresses)."""
    moment = now or datetime.datetime.now(datetime.UTC)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = certificates.new_authority(authority_key, "koord-ca", moment)
    serving = certificates.sign_serving_certificate(key, "koord-apiserver", hosts, authority, authority_key, moment)
    return ApiServerCertificates(_pem(authority, authority_key), _pem(serving, key))


def load_or_create_certificates(folder: Path, hosts: Sequence[str] = DEFAULT_HOSTS) -> ApiServerCertificates:
    """Return the certificates kept in `folder`, which outlast restarts; make new ones when hosts are missing."""
    files = [folder / name for name in ("ca.crt", "ca.key", "apiserver.crt", "apiserver.key")]
    try:
        if all(file.exists() for file in files):
            found = [file.read_bytes() for file in files]
            identity = ApiServerCertificates(CertKeyPair(found[0], found[1]), CertKeyPair(found[2], found[3]))
            identity.ssl_context()  # a certificate and its key belong together
            authority, serving = (x509.load_pem_x509_certificate(found[at]) for at in (0, 2))
            serving.verify_directly_issued_by(authority)
            if set(hosts) <= set(certificate_hosts(identity.serving.certificate)):
                return identity
        identity = create_certificates(hosts)
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        pairs = (identity.authority, identity.serving)
        for file, content in zip(files, (part for pair in pairs for part in (pair.certificate, pair.key)), strict=True):
            certificates.write_private_file(file, content)
    except (ssl.SSLError, ValueError, InvalidSignature) as error:
        raise DataDirectoryError(
            f"the certificates in {folder} are damaged ({error}): remove the folder, and the next start makes new ones"
        ) from error
    except OSError as error:
        raise DataDirectoryError(f"cannot use {folder}: {error.strerror}") from error
    return identity


def load_certificates(certificate: Path, key: Path) -> ApiServerCertificates:
    """Return the certificate that a user names; its file is what clients trust. Raises DataDirectoryError."""
    try:
        pair = CertKeyPair(certificate.read_bytes(), key.read_bytes())
        made = ApiServerCertificates(CertKeyPair(pair.certificate, b""), pair)
        made.ssl_context()
    except (ssl.SSLError, ValueError) as error:
        raise DataDirectoryError(f"{certificate} and {key} are no certificate with its key: {error}") from error
    except OSError as error:
        raise DataDirectoryError(f"cannot read {error.filename}: {error.strerror}") from error
    return made


def certificate_hosts(certificate: bytes) -> list[str]:
    return certificates.hosts_of(x509.load_pem_x509_certificate(certificate))


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertKeyPair:
    return CertKeyPair(certificates.certificate_pem(certificate), certificates.key_pem(key))
