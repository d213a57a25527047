"""This module is the dynamic client: the same verbs over unstructured objects, for objects that are written
back whole and for kinds without a model.
"""

from __future__ import annotations

import builtins
from typing import Any

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.kube.client import request_builder
from koord.kube.client.listing import Listing, decode_unstructured_page, list_all_pages
from koord.kube.client.request_builder import FieldValidation, PatchKind, Propagation, Unstructured, VersionMatch
from koord.kube.client.retrying_caller import RetryingCaller
from koord.kube.client.watch import DynamicWatch
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest, ApiResponse


class DynamicClient:
    """DynamicClient is `Client.dynamic`. Returned objects may be shared: copy them before changing them."""

    def __init__(self, caller: RetryingCaller) -> None:
        self._caller = caller

    async def _object(self, request: ApiRequest) -> Unstructured | ApiError:
        answer = await self._caller.send(request)
        if not answer.ok:
            return error_from_response(answer)
        plain: Unstructured = answer.body.plain()
        return plain

    async def _done(self, request: ApiRequest) -> ApiError | None:
        answer = await self._caller.send(request)
        return None if answer.ok else error_from_response(answer)

    async def get(
        self,
        resource: Resource[Object],
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
    ) -> Unstructured | ApiError:
        request = request_builder.get(
            resource, name, namespace, subresource=subresource, resource_version=resource_version
        )
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
    ) -> Listing[Unstructured] | ApiError:
        """List all objects that match, in pages of `limit` (0: one page)."""
        first = request_builder.listing(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            limit=limit,
            resource_version=resource_version,
            resource_version_match=resource_version_match,
        )
        return await list_all_pages(self._caller, first, decode_unstructured_page)

    async def create(
        self,
        resource: Resource[Object],
        obj: Unstructured,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> Unstructured | ApiError:
        """Create an object. `obj` may omit apiVersion and kind, and `namespace` may be omitted when `obj` names it."""
        request = request_builder.create(
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
        obj: Unstructured,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> Unstructured | ApiError:
        request = request_builder.replace(
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
        patch: Unstructured | builtins.list[Any],
        namespace: str | None = None,
        *,
        kind: PatchKind,
        subresource: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> Unstructured | ApiError:
        """Patch an object. `uid` and `resource_version` are preconditions: a write for another object or version is
        refused.
        """
        request = request_builder.patch(
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
        obj: Unstructured,
        *,
        field_manager: str,
        force: bool = False,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Unstructured | ApiError:
        request = request_builder.apply(
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
    ) -> Unstructured | ApiError:
        """Delete an object; return the server's response: the object for some kinds, a Status for others."""
        request = request_builder.delete(
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
    ) -> ApiError | None:
        request = request_builder.delete_collection(
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
    ) -> DynamicWatch | ApiError:
        request = request_builder.watch(
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
        return error_from_response(stream) if isinstance(stream, ApiResponse) else DynamicWatch(stream)
