"""This module reads from an API server for people who may lack rights: a refusal is a value with the verb and kind."""

from __future__ import annotations

from typing import Any

from koord.api.kubernetes.resource import Resource
from koord.api.model import decode
from koord.cli.commands.doctor.facts import Obj, Objects, Unread
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import DECODE_ERRORS, TRANSIENT_ERRORS, ApiRequest

PAGE = 500  # objects of one answer
READ_ERRORS: tuple[type[Exception], ...] = (*TRANSIENT_ERRORS, UnicodeDecodeError)


async def read_list(client: Client, resource: Resource[Any], namespace: str | None = None, fields: str = "") -> Objects:
    """Return all objects of a kind, or why they cannot be listed."""
    plural = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    try:
        found = await client.dynamic.list(resource, namespace, fields=fields, limit=PAGE)
    except READ_ERRORS as error:
        return Unread(verb="list", resource=plural, namespace=namespace or "", why=str(error))
    if isinstance(found, ApiError):
        return Unread(verb="list", resource=plural, namespace=namespace or "", why=str(found), absent=found.not_found)
    return tuple(one for one in found.items if isinstance(one, dict))


async def read_path(client: Client, path: str) -> Obj | Unread:
    """Return the object at a path that is no kind's. Raise Unreachable where nobody answers."""
    try:
        answer = await client.raw(ApiRequest(method="GET", path=path))
        if answer.ok:
            found = decode(answer.body.raw(), object)
            return found if isinstance(found, dict) else Unread(verb="get", resource=path, why="it is no object")
    except DECODE_ERRORS as error:
        return Unread(verb="get", resource=path, why=str(error))
    refused = error_from_response(answer)
    return Unread(verb="get", resource=path, why=str(refused), absent=refused.not_found)
