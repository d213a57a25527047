"""The files of a server's data directory: only their owner may read them, and its certificate authority and serving
certificate are created on first use."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from koord.telemetry import certificates

# Files that only their owner may read: the data directory of a cluster and everything in it.
#
# Modes are given when a file is made, so that there is no moment in which others can open it.

log = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077
LOCK_FILE = "lock"


class DataDirectoryError(Exception):
    """Raised when a data directory cannot be used; the message says why and what to do."""


def prepare_data_directory(folder: Path) -> None:
    """Make the folder with mode 0700, or take away what others may do in an older one.

    A folder that holds other things than a cluster's is left alone: its mode is not ours to change.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid():
            raise DataDirectoryError(
                f"data directory {folder} belongs to uid {found.st_uid}, who could read its Secrets, and not to uid "
                f"{os.geteuid()}: give it to this user with chown, or name another --data-dir"
            )
        if not stat.S_IMODE(found.st_mode) & _OTHERS:
            return
        if any(folder.iterdir()) and not (folder / LOCK_FILE).exists():
            raise DataDirectoryError(
                f"data directory {folder} is open to others and holds files that are not koord's: "
                "name a new folder with --data-dir"
            )
        os.chmod(folder, FOLDER_MODE)
        for path in folder.rglob("*"):
            if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & _OTHERS:
                os.chmod(path, FOLDER_MODE if path.is_dir() else FILE_MODE)
    except OSError as error:
        raise DataDirectoryError(f"cannot use data directory {folder}: {error.strerror}") from error
    log.warning(
        "data directory %s was open to others (mode %04o); its mode is 0700 now, that of its files 0600: rotate the "
        "token if others have accounts on this machine",
        folder,
        stat.S_IMODE(found.st_mode),
    )


def create_private(path: Path) -> None:
    """Make an empty file for its owner alone, unless the file is there."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


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
