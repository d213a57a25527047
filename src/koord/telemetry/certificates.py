"""X.509 certificates for serving: authorities, certificates that they sign, their PEM, and TLS contexts.

The certificate of a program's HTTPS port comes from files that may be renewed while it runs, or self-signed.
"""

from __future__ import annotations

import datetime
import datetime as dt
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

VALIDITY = datetime.timedelta(days=3650)
CLOCK_SKEW = datetime.timedelta(hours=1)  # clocks of other machines may be behind ours


def new_authority(key: PrivateKey, name: str, now: datetime.datetime) -> x509.Certificate:
    """Return a self-signed certificate that may sign others."""
    # Two authorities of one name in a bundle are told apart by their key identifiers, which verifiers look at.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        _builder(common_name(name), common_name(name), key, now - CLOCK_SKEW, now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(key, signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def sign_serving_certificate(
    key: PrivateKey,
    name: str,
    hosts: Iterable[str],
    authority: x509.Certificate,
    authority_key: PrivateKey,
    now: datetime.datetime,
) -> x509.Certificate:
    """Return a certificate for the server names and addresses `hosts`, valid from the beginning of its authority on."""
    return (
        _builder(common_name(name), authority.subject, key, authority.not_valid_before_utc, now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(key, signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_alternative_names(hosts), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def self_signed_serving_certificate(
    key: PrivateKey, name: str, hosts: Iterable[str], start: datetime.datetime, end: datetime.datetime
) -> x509.Certificate:
    """Return a serving certificate that is its own authority: whoever trusts this very file can verify it."""
    return (
        _builder(common_name(name), common_name(name), key, start, end)
        .add_extension(_alternative_names(hosts), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that the certificate proves. Raise x509.ExtensionNotFound."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    """Return the key unencrypted: PKCS #1 for RSA, PKCS #8 otherwise."""
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    form = serialization.PrivateFormat.TraditionalOpenSSL if is_rsa else serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def server_context(certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
    """Return a TLS context for HTTP/1.1 that serves the pair, or none yet."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    if certificate:
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL loads keys from files only
            files = Path(folder, "tls.crt"), Path(folder, "tls.key")
            files[0].write_bytes(certificate)
            write_private_file(files[1], key)
            made.load_cert_chain(*files)
    return made


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read from the first byte on, whole or not at all, also over an older one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)  # of a process that had this number and was killed
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def common_name(text: str) -> x509.Name:
    # The field holds 64 characters; names are proven by the alternatives, so a cut one does no harm.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, start: datetime.datetime, end: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _key_usage(key: PrivateKey, *, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=isinstance(key, rsa.RSAPrivateKey),
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    found: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(found)


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

    private = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    made = self_signed_serving_certificate(private, name, [*addresses, "localhost"], now - CLOCK_SKEW, now + _YEAR)
    write_private_file(key, key_pem(private))
    certificate.write_bytes(certificate_pem(made))
