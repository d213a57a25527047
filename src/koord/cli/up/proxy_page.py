"""This module serves an endpoint of a program as a page of the embedded API server."""

from __future__ import annotations

from koord.embedded.apiserver.rest.non_resource_paths import ComponentHandler
from koord.kube.transport.interface import ApiRequest, ApiResponse, BytesResponseBody
from koord.telemetry.component_server import ComponentServer
from koord.telemetry.http_routing import HttpCall


def proxy_page(endpoint: ComponentServer) -> ComponentHandler:
    async def answer(request: ApiRequest, path: str) -> ApiResponse:
        reply = await endpoint.answer(_call(request, path))
        return ApiResponse(status=reply.status, body=BytesResponseBody(reply.body), content_type=reply.content_type)

    return answer


def _call(request: ApiRequest, path: str) -> HttpCall:
    return HttpCall(method=request.method, path=path, query={name: (value,) for name, value in request.query.items()})
