"""Create the server's certificate authority and serving certificate on first use, and keep them when given a folder."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koord.embedded.apiserver.private_files import FOLDER_MODE, DataDirectoryError, write_private

VALID_DAYS = 3650
DEFAULT_HOSTS = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "::1",
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
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.set_alpn_protocols(["http/1.1"])
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL loads keys from files only
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(self.serving.certificate)
            write_private(key, self.serving.key)
            made.load_cert_chain(certificate, key)
        return made


def create_certificates(
    hosts: Sequence[str] = DEFAULT_HOSTS, *, now: datetime.datetime | None = None
) -> ApiServerCertificates:
    """Create a certificate authority and a serving certificate that it signed for `hosts` (names and addresses)."""
    start = (now or datetime.datetime.now(datetime.UTC)) - datetime.timedelta(hours=1)  # clocks differ
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "koord-ca")])
    authority = (
        _certificate_builder(authority_name, authority_name, authority_key.public_key(), start)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "koord-apiserver")])
    serving = (
        _certificate_builder(name, authority_name, key.public_key(), start)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_subject_alternative_name(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
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
            write_private(file, content)
    except (ssl.SSLError, ValueError, InvalidSignature) as error:
        raise DataDirectoryError(
            f"the certificates in {folder} are damaged ({error}): remove the folder, and the next start makes new ones"
        ) from error
    except OSError as error:
        raise DataDirectoryError(f"cannot use {folder}: {error.strerror}") from error
    return identity


def load_certificates(certificate: Path, key: Path) -> ApiServerCertificates:
    """Return a certificate that a user names. Clients trust what its file holds: a chain should end in its authority.

    Raises DataDirectoryError.
    """
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
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=VALID_DAYS))
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject_alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertKeyPair:
    return CertKeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
