"""One served webhook: its place in the table and the function that decides. Turns a verdict into the answer to send."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from koord.api.admission import AdmissionRequest
from koord.manager.serving.difference import difference
from koord.manager.serving.review import Answer
from koord.manager.serving.route import Route
from koord.manager.webhooks.verdict import Denied, Verdict

Admit = Callable[[AdmissionRequest], Verdict | Awaitable[Verdict]]


class Door:
    def __init__(self, route: Route, admit: Admit) -> None:
        self.route = route
        self._admit = admit

    async def verdict(self, request: AdmissionRequest) -> Verdict:
        verdict = self._admit(request)
        return await verdict if inspect.isawaitable(verdict) else verdict

    async def answer(self, request: AdmissionRequest) -> Answer:
        verdict = await self.verdict(request)
        if isinstance(verdict, Denied):
            return Answer(allowed=False, code=verdict.code, message=verdict.message)
        if verdict.object is None or not self.route.mutates:
            return Answer()
        return Answer(patch=difference(request.object or {}, verdict.object))
