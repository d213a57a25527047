"""An OCI image layout as one tar: oci-layout, index.json and blobs, with the name that containerd imports it under."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec

from tools.oci_image.tree import Entry, Tree, to_tar


class LayerArchive(msgspec.Struct, frozen=True):
    """A layer: what it is made of, and its tar."""

    title: str
    tar: bytes


class ImageArchive(msgspec.Struct, frozen=True):
    """A whole image, with the digest of its manifest and the sizes of its layers in bytes."""

    content: bytes
    digest: str
    unpacked_bytes: int
    packed_bytes: int


def pack(
    layers: Sequence[LayerArchive],
    *,
    architecture: str,
    config: Mapping[str, Any],
    names: Sequence[str],
    labels: Mapping[str, str],
    time_s: int,
) -> ImageArchive:
    """Return the image. Its bytes depend on the arguments and on the machine's zlib alone."""
    created = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    blobs: Tree = {}

    def add(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = Entry(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    with ThreadPoolExecutor() as pool:  # zlib runs without the interpreter's lock
        compressed = pool.map(lambda layer: gzip.compress(layer.tar, 6, mtime=0), layers)
        packed = [add("layer.v1.tar+gzip", content) for content in compressed]
    described = add(
        "config.v1+json",
        _json(
            {
                "created": created,
                "architecture": architecture,
                "os": "linux",
                "config": dict(config) | {"Labels": dict(labels)},
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [f"sha256:{hashlib.sha256(layer.tar).hexdigest()}" for layer in layers],
                },
                "history": [{"created": created, "created_by": layer.title} for layer in layers],
            }
        ),
    )
    manifest = add(
        "manifest.v1+json",
        _json(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": described,
                "layers": packed,
                "annotations": dict(labels),
            }
        ),
    )
    platform = {"architecture": architecture, "os": "linux"}
    named: list[dict[str, Any]] = [
        {
            **manifest,
            "platform": platform,
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        for name in names
    ]
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": named}
    files: Tree = {
        "oci-layout": Entry(_json({"imageLayoutVersion": "1.0.0"})),
        "index.json": Entry(_json(index)),
        **blobs,
    }
    return ImageArchive(
        content=to_tar(files, time_s),
        digest=manifest["digest"],
        unpacked_bytes=sum(len(layer.tar) for layer in layers),
        packed_bytes=sum(layer["size"] for layer in packed),
    )


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
