"""Make pods from templates: the body to create, the hash that names a template, random name suffixes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol

import msgspec

from koord.api.model import RawTemplate
from koord.kube.client.request_builder import Unstructured
from koord.values.names import SAFE_NAME_ALPHABET

_SUFFIX_LENGTH = 5
_MAX_BASE_LENGTH = 63 - _SUFFIX_LENGTH

POD_TEMPLATE_HASH = "pod-template-hash"


class _ReplicatedSpec(Protocol):
    @property
    def replicas(self) -> int | None: ...


class _ReplicatedObject(Protocol):
    @property
    def spec(self) -> _ReplicatedSpec: ...


def desired_replicas(owner: _ReplicatedObject) -> int:
    replicas = owner.spec.replicas
    return 1 if replicas is None else replicas


def name_suffix(rng: Random) -> str:
    return "".join(rng.choices(SAFE_NAME_ALPHABET, k=_SUFFIX_LENGTH))


def generate_name(base: str, rng: Random) -> str:
    """Return a name as the server generates it from `base`, cut so that it stays a label."""
    return base[:_MAX_BASE_LENGTH] + name_suffix(rng)


def safe_encode(text: str) -> str:
    """Encode text in the alphabet of generated names."""
    return "".join(SAFE_NAME_ALPHABET[ord(letter) % len(SAFE_NAME_ALPHABET)] for letter in text)


def template_hash(template: Any, collisions: int | None = None) -> str:
    """Return a short hash of the content; `collisions` gives another one after a collision."""
    digest = hashlib.blake2b(msgspec.json.encode(template, order="deterministic"), digest_size=4)
    if collisions is not None:
        digest.update(collisions.to_bytes(4, "little"))
    return safe_encode(str(int.from_bytes(digest.digest(), "big")))


def template_labels(template: RawTemplate) -> dict[str, str]:
    return dict((template.get("metadata") or {}).get("labels") or {})


def same_template(one: RawTemplate, other: RawTemplate) -> bool:
    """Return whether two templates are equal but for the hash label that a Deployment adds to its ReplicaSets."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: RawTemplate) -> RawTemplate:
    meta = {k: v for k, v in (template.get("metadata") or {}).items() if v is not None}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != POD_TEMPLATE_HASH}
    meta.pop("labels", None)
    return {"metadata": {**meta, "labels": labels}, "spec": template.get("spec") or {}}


def pod_from_template(
    template: RawTemplate,
    *,
    name: str,
    namespace: str,
    owner: Unstructured,
    generate_name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    spec: Unstructured | None = None,
) -> Unstructured:
    """Return the pod to create. Parts are shared with the template: whoever sends it must not change it."""
    given = template.get("metadata") or {}
    meta: Unstructured = {"name": name, "namespace": namespace}
    if generate_name:
        meta["generateName"] = generate_name
    for key, extra in (("labels", labels), ("annotations", annotations)):
        merged = {**(given.get(key) or {}), **(extra or {})}
        if merged:
            meta[key] = merged
    held = [*(given.get("finalizers") or ()), *finalizers]
    if held:
        meta["finalizers"] = list(dict.fromkeys(held))
    meta["ownerReferences"] = [owner]
    return {"metadata": meta, "spec": {**(template.get("spec") or {}), **(spec or {})}}
