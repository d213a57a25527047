"""Where the certificate is kept between restarts and shared between replicas: a Secret, or a folder of this machine."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from koord.api.builtin import SECRETS
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.manager.serving import certificate, folder
from koord.manager.serving.certificate import Material
from koord.telemetry.clock import Clock, now

# On the Secret: which replica serves which certificate, as JSON.
SERVING = "webhook.koordinator.sh/serving"
TRIES = 8


class KeepRefused(Exception):
    """The API server refused to store the certificate; the message has its words."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    material: Material
    version: str = ""  # a write that names another version is refused
    serving: Mapping[str, str] = {}  # replica -> fingerprint of the certificate that it serves


class Keep(Protocol):
    async def read(self) -> Kept | None: ...

    async def write(self, material: Material, before: Kept | None) -> bool:
        """Store the material. Return False when another replica was quicker: read again."""
        ...

    async def acknowledge(self, serving: Mapping[str, str], before: Kept) -> bool:
        """Note which replica serves which certificate. Return False as above."""
        ...


class SecretKeep:
    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> Kept | None:
        found = await self._client.get(SECRETS, self._name, self._namespace)
        if isinstance(found, Refused):
            if found.not_found:
                return None
            raise KeepRefused(f"cannot read Secret {self._namespace}/{self._name}: {found}")
        files = {name: _decoded(text) for name, text in found.data.items()}
        return Kept(
            material=certificate.from_files(files),
            version=found.metadata.resource_version,
            serving=_acknowledged(found.metadata.annotations.get(SERVING, "")),
        )

    async def write(self, material: Material, before: Kept | None) -> bool:
        data = {name: base64.b64encode(content).decode() for name, content in material.files().items()}
        if before is None:
            secret = {"metadata": {"name": self._name}, "type": "Opaque", "data": data}
            return self._settled("create", await self._client.create(SECRETS, secret, self._namespace))
        return await self._patch({"data": data}, before.version)

    async def acknowledge(self, serving: Mapping[str, str], before: Kept) -> bool:
        text = json.dumps(dict(sorted(serving.items())), separators=(",", ":"))
        return await self._patch({"metadata": {"annotations": {SERVING: text}}}, before.version)

    async def _patch(self, patch: dict[str, object], version: str) -> bool:
        answer = await self._client.patch(
            SECRETS, self._name, patch, self._namespace, kind="merge", resource_version=version
        )
        return self._settled("update", answer)

    def _settled(self, verb: str, answer: object) -> bool:
        if not isinstance(answer, Refused):
            return True
        if answer.conflict or answer.already_exists or answer.not_found:
            return False
        raise KeepRefused(f"cannot {verb} Secret {self._namespace}/{self._name}: {answer}")


class FolderKeep:
    """The store of a server outside the cluster. Replicas that share the directory agree."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._serving: dict[str, str] = {}

    async def read(self) -> Kept | None:
        files = await asyncio.to_thread(folder.read, self._path)
        return Kept(material=certificate.from_files(files), serving=dict(self._serving)) if files else None

    async def write(self, material: Material, before: Kept | None) -> bool:
        await asyncio.to_thread(folder.write, self._path, material.files())
        return True

    async def acknowledge(self, serving: Mapping[str, str], before: Kept) -> bool:
        self._serving = dict(serving)
        return True


async def ensured(keep: Keep, dns_name: str, clock: Clock) -> Kept:
    """Return the stored certificate, generated anew where it is missing or expires soon. All replicas end with the
    same.
    """
    why = ""
    for _ in range(TRIES):
        kept = await keep.read()
        why = certificate.problem(kept.material, dns_name, now(clock)) if kept is not None else "there is none"
        if kept is not None and not why:
            return kept
        authority = kept.material if kept is not None else Material()
        made = await asyncio.to_thread(certificate.generate, dns_name, now(clock), authority)
        await keep.write(made, kept)  # won or lost, the next read tells what everybody serves
    raise KeepRefused(f"no certificate for {dns_name} after {TRIES} tries: {why}")


async def acknowledged(keep: Keep, replica: str, fingerprint: str, replicas: Iterable[str]) -> Mapping[str, str]:
    """Note that `replica` serves this certificate; notes of replicas that are gone are dropped."""
    alive = {*replicas, replica}
    for _ in range(TRIES):
        kept = await keep.read()
        if kept is None or kept.material.fingerprint != fingerprint:
            return {}  # changed meanwhile: the change itself makes us look again
        wanted = {name: seen for name, seen in kept.serving.items() if name in alive} | {replica: fingerprint}
        if wanted == kept.serving or await keep.acknowledge(wanted, kept):
            return wanted
    return {}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""  # as good as missing: it is made anew


def _acknowledged(text: str) -> dict[str, str]:
    try:
        found = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}  # only this program writes it; who is not noted is waited for
    return {str(name): str(seen) for name, seen in found.items()} if isinstance(found, dict) else {}
