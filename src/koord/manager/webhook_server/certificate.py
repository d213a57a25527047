"""The webhook server's own CA and certificate: what is valid, and what must be renewed. No files, no clock."""

from __future__ import annotations

import datetime
import functools
import hashlib

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from koord.telemetry import certificates

AUTHORITY_NAME = "webhook-cert-ca"
KEY_BITS = 2048
CERTIFICATE_RENEW_BEFORE = datetime.timedelta(days=182)  # a certificate that ends earlier than this from now is renewed
AUTHORITY_RENEW_BEFORE = datetime.timedelta(days=365)

# Where each part is found in the Secret and in the folder. Two parts have two names, for readers of either.
CA_KEY, CA_CERT = "ca-key.pem", "ca-cert.pem"
CERT, KEY = ("tls.crt", "cert.pem"), ("tls.key", "key.pem")
FILE_NAMES = (CA_KEY, CA_CERT, *CERT, *KEY)

_CERTIFICATE_ERRORS = (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound)


class CertificateMaterial(msgspec.Struct, frozen=True, kw_only=True):
    """A CA and a certificate that it signed, as PEM. Empty parts are missing."""

    ca_key: bytes = b""
    ca_cert: bytes = b""
    cert: bytes = b""
    key: bytes = b""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.cert).hexdigest()[:32]

    def files(self) -> dict[str, bytes]:
        return {
            CA_KEY: self.ca_key,
            CA_CERT: self.ca_cert,
            **dict.fromkeys(CERT, self.cert),
            **dict.fromkeys(KEY, self.key),
        }


def material_from_files(files: dict[str, bytes]) -> CertificateMaterial:
    return CertificateMaterial(
        ca_key=files.get(CA_KEY, b""),
        ca_cert=files.get(CA_CERT, b""),
        cert=files.get(CERT[0]) or files.get(CERT[1], b""),
        key=files.get(KEY[0]) or files.get(KEY[1], b""),
    )


def find_problem(material: CertificateMaterial, dns_name: str, now: datetime.datetime) -> str:
    """Return why this must not be served any longer; "" when it is good for another half year."""
    if not all((material.ca_key, material.ca_cert, material.cert, material.key)):
        return "it is not complete"
    at = now + CERTIFICATE_RENEW_BEFORE
    try:
        authority = x509.load_pem_x509_certificate(material.ca_cert)
        certificate = x509.load_pem_x509_certificate(material.cert)
        if not _is_key_pair(certificate, material.key):
            return "the certificate does not belong to the key"
        certificate.verify_directly_issued_by(authority)
        for what, one in (("the certificate", certificate), ("its authority", authority)):
            if not one.not_valid_before_utc <= at <= one.not_valid_after_utc:
                return f"{what} is valid from {one.not_valid_before_utc:%F} to {one.not_valid_after_utc:%F} only"
        if dns_name.lower() not in (known.lower() for known in certificates.hosts_of(certificate)):
            return f"the certificate is not for {dns_name}"
    except _CERTIFICATE_ERRORS as error:
        return f"it cannot be verified: {type(error).__name__}: {error}"
    return ""


def generate(
    dns_name: str,
    now: datetime.datetime,
    kept: CertificateMaterial = CertificateMaterial(),  # noqa: B008 - frozen
) -> CertificateMaterial:
    """Generate a certificate, signed by the CA in `kept` if that is good for another year, else by a new CA."""
    ca_cert, ca_key = _reusable_authority(kept, now) or _new_authority(now)
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    made = certificates.sign_serving_certificate(key, dns_name, ("localhost", dns_name), ca_cert, ca_key, now)
    return CertificateMaterial(
        ca_key=certificates.key_pem(ca_key),
        ca_cert=certificates.certificate_pem(ca_cert),
        cert=certificates.certificate_pem(made),
        key=certificates.key_pem(key),
    )


def not_after(certificate: bytes) -> datetime.datetime:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def parse_authorities(bundle: bytes) -> list[x509.Certificate]:
    """Return the certificates of a caBundle; none when it cannot be read, since it verifies nothing then."""
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def _reusable_authority(
    kept: CertificateMaterial, now: datetime.datetime
) -> tuple[x509.Certificate, rsa.RSAPrivateKey] | None:
    try:
        certificate = x509.load_pem_x509_certificate(kept.ca_cert)
        key = serialization.load_pem_private_key(kept.ca_key, password=None)
        certificate.verify_directly_issued_by(certificate)
        signs = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _CERTIFICATE_ERRORS:
        return None
    if not isinstance(key, rsa.RSAPrivateKey) or not signs or not _is_key_pair(certificate, kept.ca_key):
        return None
    good = certificate.not_valid_before_utc <= now and now + AUTHORITY_RENEW_BEFORE <= certificate.not_valid_after_utc
    return (certificate, key) if good else None


def _new_authority(now: datetime.datetime) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    return certificates.new_authority(key, AUTHORITY_NAME, now), key


def _is_key_pair(certificate: x509.Certificate, key: bytes) -> bool:
    return _public_key(key) == certificate.public_key()


@functools.lru_cache(maxsize=4)
def _public_key(key: bytes) -> object:
    """Return the public key. Parsing takes 50 ms in which no webhook is answered, so it is cached."""
    return serialization.load_pem_private_key(key, password=None).public_key()
