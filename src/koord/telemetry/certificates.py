"""X.509 certificates for serving: authorities, certificates that they sign, their PEM, and TLS contexts."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable
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
