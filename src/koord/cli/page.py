"""This module serves an endpoint of a program as a page of the embedded API server."""

from __future__ import annotations

from koord.embedded.apiserver.rest.page import Page
from koord.kube.transport import Answer, BytesBody, Request
from koord.telemetry.endpoint import Endpoint
from koord.telemetry.routing import Call


def page_of(endpoint: Endpoint) -> Page:
    async def answer(request: Request, path: str) -> Answer:
        reply = await endpoint.answer(_call(request, path))
        return Answer(status=reply.status, body=BytesBody(reply.body), content_type=reply.content_type)

    return answer


def _call(request: Request, path: str) -> Call:
    return Call(method=request.method, path=path, query={name: (value,) for name, value in request.query.items()})
