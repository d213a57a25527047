"""The webhook server's own CA and certificate (what is valid, and what must be renewed), and their stores: a Secret
shared between replicas, or a directory of this machine.

The files of the directory are always of one generation: each is a directory of its own, `..data` links to the current
one, and the file names link through it. Renaming a new link over `..data` switches all files at once, as Kubernetes'
own volumes do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from koord.api.kubernetes.builtin_kinds import SECRETS
from koord.api.model import decode_text
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.telemetry import certificates
from koord.telemetry.clock import Clock, now
from koord.values.json_text import MalformedText

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


CURRENT_LINK = "..data"
_GENERATION_PREFIX = "..generation_"
_PARTIAL_PREFIX = "..partial_"
_PRIVATE_FILES = frozenset((CA_KEY, *KEY))


def read_cert_dir(folder: Path) -> dict[str, bytes]:
    """Return the existing files, all of one generation."""
    current = folder / CURRENT_LINK
    place = current.resolve() if current.is_symlink() else folder
    return {name: (place / name).read_bytes() for name in FILE_NAMES if (place / name).is_file()}


def write_cert_dir(folder: Path, files: dict[str, bytes]) -> bool:
    """Write the files; return whether anything changed. Keys are readable by their owner only."""
    folder.mkdir(parents=True, exist_ok=True)
    if read_cert_dir(folder) == files and all((folder / name).is_symlink() for name in files):
        return False
    generation = Path(tempfile.mkdtemp(prefix=_GENERATION_PREFIX, dir=folder))
    try:
        generation.chmod(0o755)
        for name, content in files.items():
            _write_file(generation / name, content, 0o600 if name in _PRIVATE_FILES else 0o644)
        before = os.readlink(folder / CURRENT_LINK) if (folder / CURRENT_LINK).is_symlink() else ""
        _link(folder, CURRENT_LINK, generation.name)
    except BaseException:
        shutil.rmtree(generation, ignore_errors=True)
        raise
    for name in files:
        _link(folder, name, f"{CURRENT_LINK}/{name}")
    for old in folder.glob(f"{_GENERATION_PREFIX}*"):
        # The generation before this one stays for a reader that is in the middle of it.
        if old.name not in (generation.name, before):
            shutil.rmtree(old)
    for partial in folder.glob(f"{_PARTIAL_PREFIX}*"):  # of a process that was killed
        partial.unlink(missing_ok=True)
    return True


def _write_file(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(folder: Path, name: str, target: str) -> None:
    path = folder / name
    if path.is_symlink() and os.readlink(path) == target:
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    partial = folder / f"{_PARTIAL_PREFIX}{os.getpid()}_{name.lstrip('.')}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(path)


# On the Secret: which replica serves which certificate, as JSON.
SERVING_ANNOTATION = "webhook.koordinator.sh/serving"
MAX_TRIES = 8


class CertStoreError(Exception):
    """The API server refused to store the certificate; the message has its words."""


class StoredCertificate(msgspec.Struct, frozen=True, kw_only=True):
    material: CertificateMaterial
    version: str = ""  # a write that names another version is refused
    serving: Mapping[str, str] = {}  # replica -> fingerprint of the certificate that it serves


class CertStore(Protocol):
    async def read(self) -> StoredCertificate | None: ...

    async def write(self, material: CertificateMaterial, before: StoredCertificate | None) -> bool:
        """Store the material. Return False when another replica was quicker: read again."""

    async def acknowledge(self, serving: Mapping[str, str], before: StoredCertificate) -> bool:
        """Note which replica serves which certificate. Return False as above."""


class SecretCertStore:
    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> StoredCertificate | None:
        found = await self._client.get(SECRETS, self._name, self._namespace)
        if isinstance(found, ApiError):
            if found.not_found:
                return None
            raise CertStoreError(f"cannot read Secret {self._namespace}/{self._name}: {found}")
        files = {name: _decode_base64(text) for name, text in found.data.items()}
        return StoredCertificate(
            material=material_from_files(files),
            version=found.metadata.resource_version,
            serving=_parse_serving(found.metadata.annotations.get(SERVING_ANNOTATION, "")),
        )

    async def write(self, material: CertificateMaterial, before: StoredCertificate | None) -> bool:
        data = {name: base64.b64encode(content).decode() for name, content in material.files().items()}
        if before is None:
            secret = {"metadata": {"name": self._name}, "type": "Opaque", "data": data}
            return self._settled("create", await self._client.create(SECRETS, secret, self._namespace))
        return await self._patch({"data": data}, before.version)

    async def acknowledge(self, serving: Mapping[str, str], before: StoredCertificate) -> bool:
        text = json.dumps(dict(sorted(serving.items())), separators=(",", ":"))
        return await self._patch({"metadata": {"annotations": {SERVING_ANNOTATION: text}}}, before.version)

    async def _patch(self, patch: dict[str, object], version: str) -> bool:
        answer = await self._client.patch(
            SECRETS, self._name, patch, self._namespace, kind="merge", resource_version=version
        )
        return self._settled("update", answer)

    def _settled(self, verb: str, answer: object) -> bool:
        if not isinstance(answer, ApiError):
            return True
        if answer.conflict or answer.already_exists or answer.not_found:
            return False
        raise CertStoreError(f"cannot {verb} Secret {self._namespace}/{self._name}: {answer}")


class DirectoryCertStore:
    """The store of a server outside the cluster. Replicas that share the directory agree."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._serving: dict[str, str] = {}

    async def read(self) -> StoredCertificate | None:
        files = await asyncio.to_thread(read_cert_dir, self._path)
        return StoredCertificate(material=material_from_files(files), serving=dict(self._serving)) if files else None

    async def write(self, material: CertificateMaterial, before: StoredCertificate | None) -> bool:
        await asyncio.to_thread(write_cert_dir, self._path, material.files())
        return True

    async def acknowledge(self, serving: Mapping[str, str], before: StoredCertificate) -> bool:
        self._serving = dict(serving)
        return True


async def ensure_certificate(store: CertStore, dns_name: str, clock: Clock) -> StoredCertificate:
    """Return the stored certificate, made anew where it is missing or expires soon. All replicas end with the same."""
    why = ""
    for _ in range(MAX_TRIES):
        kept = await store.read()
        why = find_problem(kept.material, dns_name, now(clock)) if kept is not None else "there is none"
        if kept is not None and not why:
            return kept
        authority = kept.material if kept is not None else CertificateMaterial()
        made = await asyncio.to_thread(generate, dns_name, now(clock), authority)
        await store.write(made, kept)  # won or lost, the next read tells what everybody serves
    raise CertStoreError(f"no certificate for {dns_name} after {MAX_TRIES} tries: {why}")


async def acknowledge_serving(
    store: CertStore, replica: str, fingerprint: str, replicas: Iterable[str]
) -> Mapping[str, str]:
    """Note that `replica` serves this certificate; notes of replicas that are gone are dropped."""
    alive = {*replicas, replica}
    for _ in range(MAX_TRIES):
        kept = await store.read()
        if kept is None or kept.material.fingerprint != fingerprint:
            return {}  # changed meanwhile: the change itself makes us look again
        wanted = {name: seen for name, seen in kept.serving.items() if name in alive} | {replica: fingerprint}
        if wanted == kept.serving or await store.acknowledge(wanted, kept):
            return wanted
    return {}


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""  # as good as missing: it is made anew


def _parse_serving(text: str) -> dict[str, str]:
    found = decode_text(text or "{}", dict[str, object])
    if isinstance(found, MalformedText):
        return {}  # only this program writes it; who is not noted is waited for
    return {name: str(seen) for name, seen in found.items()}
