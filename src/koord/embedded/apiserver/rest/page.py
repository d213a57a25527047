"""Route the paths below /koord/ to components, which a real cluster reaches through the proxy of a pod."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from koord.kube.transport import Answer, Request

PREFIX = "/koord/"

Page = Callable[[Request, str], Awaitable[Answer]]  # the request and its path below the component's own


class Pages:
    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}

    def add(self, component: str, page: Page) -> None:
        if component in self._pages:
            raise ValueError(f"{PREFIX}{component} is taken")
        self._pages[component] = page

    def remove(self, component: str) -> None:
        self._pages.pop(component, None)

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request for a component; return None when no component serves the path."""
        if not request.path.startswith(PREFIX):
            return None
        component, slash, rest = request.path[len(PREFIX) :].partition("/")
        page = self._pages.get(component)
        return None if page is None else await page(request, slash + rest)

    def paths(self) -> list[str]:
        return [f"{PREFIX}{component}" for component in self._pages]
