"""This module reads the objects that a dry run decides on, from files or from a live cluster, and saves them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from koord.api.kubernetes.resource import Resource
from koord.cli import cluster_access
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.scheduler.explain.what_if import objects_of_documents

ManifestObject = dict[str, Any]


def read_objects(file: str) -> list[ManifestObject]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        cluster_access.fail(f"cannot read {file}: {error.strerror}")
    return parse_objects(text, file)


def parse_objects(text: str, file: str) -> list[ManifestObject]:
    """Parse the documents of a text; `file` is what it is called where it is wrong."""
    try:
        found = objects_of_documents(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        cluster_access.fail(f"{file}: not YAML: {' '.join(str(error).split())}")
    if isinstance(found, str):
        cluster_access.fail(f"{file}: {found}")
    return found


async def list_live_objects(client: Client, resources: Sequence[Resource[Any]]) -> list[ManifestObject]:
    async def listed(resource: Resource[Any]) -> list[ManifestObject]:
        answer = await client.dynamic.list(resource)
        if isinstance(answer, ApiError):
            if answer.not_found:  # a kind that this server does not have: there can be none of it
                return []
            cluster_access.fail(f"cannot list {resource.plural}: {answer.message}")
        return [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in answer.items]

    lists = await asyncio.gather(*map(listed, resources))
    return [item for items in lists for item in items]


def save_objects(objects: Sequence[ManifestObject], file: str) -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": objects}, sort_keys=False)
    try:
        Path(file).write_text(text)
    except OSError as error:
        cluster_access.fail(f"--save {file}: {error.strerror}")
