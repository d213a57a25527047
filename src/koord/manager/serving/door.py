"""One served webhook: its route and its admission function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from koord.api.admission import AdmissionRequest
from koord.manager.serving.difference import difference
from koord.manager.serving.review import Answer
from koord.manager.serving.route import Route
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict

Admit = Callable[[AdmissionRequest], Verdict | Awaitable[Verdict]]


class Door:
    """One served webhook: its route and its admission function. It turns a decision into the answer to send."""
    def __init__(self, route: Route, admit: Admit) -> None:
        self.route = route
        self._admit = admit

    def is_about(self, request: AdmissionRequest) -> bool:
        asked = request.resource.resource + (f"/{request.sub_resource}" if request.sub_resource else "")
        return any(asked in entry.resources and request.resource.group == entry.group for entry in self.route.entries)

    async def verdict(self, request: AdmissionRequest) -> Verdict:
        """Decide on the request. One about another resource, which no rule of ours sends, is allowed."""
        if not self.is_about(request):
            return Allowed()
        verdict = self._admit(request)
        return await verdict if inspect.isawaitable(verdict) else verdict

    async def answer(self, request: AdmissionRequest) -> Answer:
        verdict = await self.verdict(request)
        if isinstance(verdict, Denied):
            return Answer(allowed=False, code=verdict.code, message=verdict.message)
        if verdict.object is None or not self.route.mutates:
            return Answer()
        return Answer(patch=difference(request.object or {}, verdict.object))
