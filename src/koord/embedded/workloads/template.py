"""Make pods from templates: the body to create, the hash that names a template, and names with a random
suffix. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from koord.api.core import RawTemplate
from koord.kube.verb import Plain

# No vowels and nothing that looks alike, so that random names spell no words. Kubernetes' own alphabet.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_LONGEST_BASE = 63 - _SUFFIX

POD_TEMPLATE_HASH = "pod-template-hash"


def suffix(chance: Random) -> str:
    return "".join(chance.choices(_LETTERS, k=_SUFFIX))


def generated(base: str, chance: Random) -> str:
    """Return a name as the server generates it from `base`, cut so that it stays a label."""
    return base[:_LONGEST_BASE] + suffix(chance)


def safe(text: str) -> str:
    """Encode text in the alphabet of generated names."""
    return "".join(_LETTERS[ord(letter) % len(_LETTERS)] for letter in text)


def template_hash(template: Any, collisions: int | None = None) -> str:
    """Return a short hash of the content; `collisions` gives another one after a collision."""
    digest = hashlib.blake2b(msgspec.json.encode(template, order="deterministic"), digest_size=4)
    if collisions is not None:
        digest.update(collisions.to_bytes(4, "little"))
    return safe(str(int.from_bytes(digest.digest(), "big")))


def labels_of(template: RawTemplate) -> dict[str, str]:
    return dict((template.get("metadata") or {}).get("labels") or {})


def same_template(one: RawTemplate, other: RawTemplate) -> bool:
    """Return whether two templates are equal but for the hash label that a Deployment adds to its ReplicaSets."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: RawTemplate) -> RawTemplate:
    meta = {k: v for k, v in (template.get("metadata") or {}).items() if v is not None}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != POD_TEMPLATE_HASH}
    meta.pop("labels", None)
    return {"metadata": {**meta, "labels": labels}, "spec": template.get("spec") or {}}


def pod_from(
    template: RawTemplate,
    *,
    name: str,
    namespace: str,
    owner: Plain,
    generate_name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    spec: Plain | None = None,
) -> Plain:
    """Return the pod to create. Parts are shared with the template: whoever sends it must not change it."""
    given = template.get("metadata") or {}
    meta: Plain = {"name": name, "namespace": namespace}
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
