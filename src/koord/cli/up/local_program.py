"""This module runs a program inside `koord up`, and serves its routes below /koord of the embedded API server."""

from __future__ import annotations

from typing import Generic

from koord.embedded.apiserver.rest.discovery import ComponentHandler
from koord.embedded.cluster import ComponentContext
from koord.kube.controller.process import P, StandaloneProgram
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


class LocalProgram(Generic[P]):
    """LocalProgram is a program in this process: always the leader, with its routes as a page of the API server."""

    def __init__(self, context: ComponentContext, name: str, program: P, endpoint: ComponentServer) -> None:
        self.program = program
        self._name = name
        self._standalone = StandaloneProgram(name, program)
        self._pages = context.component_routes
        self._endpoint = endpoint

    async def start(self) -> None:
        await self._standalone.start()
        self._pages.add(self._name, proxy_page(self._endpoint))

    async def stop(self) -> None:
        """Stop the program; raise what it died of, if it did."""
        self._pages.remove(self._name)
        await self._standalone.stop()
