"""This module is the dynamic client: the same verbs over unstructured objects, for objects that are written
back whole and for kinds without a model.
"""

from __future__ import annotations

import builtins
from typing import Any

from koord.api.meta import Object
from koord.api.resource import Resource
from koord.kube import verb
from koord.kube.caller import Caller
from koord.kube.listing import Listing, plain_page
from koord.kube.paging import collect
from koord.kube.refused import Refused, from_answer
from koord.kube.transport import Answer, Request
from koord.kube.verb import FieldValidation, PatchKind, Plain, Propagation, VersionMatch
from koord.kube.watch import PlainWatch


class PlainClient:
    """DynamicClient is `Client.dynamic`. Returned objects may be shared: copy them before changing them."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def _object(self, request: Request) -> Plain | Refused:
        answer = await self._caller.send(request)
        if not answer.ok:
            return from_answer(answer)
        plain: Plain = answer.body.plain()
        return plain

    async def _done(self, request: Request) -> Refused | None:
        answer = await self._caller.send(request)
        return None if answer.ok else from_answer(answer)

    async def get(
        self,
        resource: Resource[Object],
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
    ) -> Plain | Refused:
        request = verb.get(resource, name, namespace, subresource=subresource, resource_version=resource_version)
        return await self._object(request)

    async def list(
        self,
        resource: Resource[Object],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        resource_version: str | None = None,
        resource_version_match: VersionMatch | None = None,
    ) -> Listing[Plain] | Refused:
        """List all objects that match, in pages of `limit` (0: one page)."""
        first = verb.listing(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            limit=limit,
            resource_version=resource_version,
            resource_version_match=resource_version_match,
        )
        return await collect(self._caller, first, plain_page)

    async def create(
        self,
        resource: Resource[Object],
        obj: Plain,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> Plain | Refused:
        """Create an object. `obj` may omit apiVersion and kind, and `namespace` may be omitted when `obj` names it."""
        request = verb.create(
            resource,
            obj,
            namespace,
            name=name,
            subresource=subresource,
            dry_run=dry_run,
            field_manager=field_manager,
            field_validation=field_validation,
        )
        return await self._object(request)

    async def replace(
        self,
        resource: Resource[Object],
        obj: Plain,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> Plain | Refused:
        request = verb.replace(
            resource,
            obj,
            namespace,
            name=name,
            subresource=subresource,
            dry_run=dry_run,
            field_manager=field_manager,
            field_validation=field_validation,
        )
        return await self._object(request)

    async def patch(
        self,
        resource: Resource[Object],
        name: str,
        patch: Plain | builtins.list[Any],
        namespace: str | None = None,
        *,
        kind: PatchKind,
        subresource: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> Plain | Refused:
        """Patch an object. `uid` and `resource_version` are preconditions: a write for another object or version is
        refused.
        """
        request = verb.patch(
            resource,
            name,
            patch,
            namespace,
            kind=kind,
            subresource=subresource,
            uid=uid,
            resource_version=resource_version,
            dry_run=dry_run,
            field_manager=field_manager,
            field_validation=field_validation,
        )
        return await self._object(request)

    async def apply(
        self,
        resource: Resource[Object],
        obj: Plain,
        *,
        field_manager: str,
        force: bool = False,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Plain | Refused:
        request = verb.apply(
            resource,
            obj,
            field_manager=field_manager,
            force=force,
            namespace=namespace,
            subresource=subresource,
            dry_run=dry_run,
        )
        return await self._object(request)

    async def delete(
        self,
        resource: Resource[Object],
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
    ) -> Plain | Refused:
        """Delete an object; return the server's response: the object for some kinds, a Status for others."""
        request = verb.delete(
            resource,
            name,
            namespace,
            uid=uid,
            resource_version=resource_version,
            grace_seconds=grace_seconds,
            propagation=propagation,
            dry_run=dry_run,
        )
        return await self._object(request)

    async def delete_collection(
        self,
        resource: Resource[Object],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
    ) -> Refused | None:
        request = verb.delete_collection(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            grace_seconds=grace_seconds,
            propagation=propagation,
            dry_run=dry_run,
        )
        return await self._done(request)

    async def watch(
        self,
        resource: Resource[Object],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        send_initial_events: bool = False,
        timeout_s: int | None = None,
    ) -> PlainWatch | Refused:
        request = verb.watch(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            resource_version=resource_version,
            bookmarks=bookmarks,
            send_initial_events=send_initial_events,
            timeout_s=timeout_s,
        )
        stream = await self._caller.watch(request)
        return from_answer(stream) if isinstance(stream, Answer) else PlainWatch(stream)
