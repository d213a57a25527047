"""Paths that are not resources: version, liveness, readiness, and the paths below /koord/ of components."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.rest.responses import TextBody, text_response
from koord.kube.transport.interface import ApiRequest, ApiResponse

HealthCheck = Callable[[], str]  # "" when all is well, else what is not


class HealthEndpoints:
    """Serves /version, /healthz, /livez and /readyz. `checks` run on every request."""

    def __init__(self, release: str, checks: Mapping[str, HealthCheck]) -> None:
        self._checks = {"ping": lambda: "", **checks}
        self._version = _version_document(release)

    def respond(self, request: ApiRequest) -> ApiResponse | None:
        path = request.path.rstrip("/")
        if path == "/version":
            return ApiResponse(
                status=200, body=TextBody(msgspec.json.format(msgspec.json.encode(self._version), indent=2))
            )
        root, _, name = path.lstrip("/").partition("/")
        if root not in ("healthz", "livez", "readyz"):
            return None
        if name:
            check = self._checks.get(name)
            if check is None:
                return text_response(404, "404 page not found\n")
            failure = check()
            return text_response(500, f"internal server error: {failure}\n") if failure else text_response(200, "ok")
        failed = {name: failure for name, check in self._checks.items() if (failure := check())}
        if not failed and "verbose" not in request.query:
            return text_response(200, "ok")
        lines = [f"[-]{name} failed: {failed[name]}" if name in failed else f"[+]{name} ok" for name in self._checks]
        lines.append(f"{root} check {'failed' if failed else 'passed'}")
        return text_response(500 if failed else 200, "\n".join(lines) + "\n")

    def paths(self) -> list[str]:
        probes = ("healthz", "livez", "readyz")
        return (
            [f"/{probe}" for probe in probes] + [f"/{p}/{name}" for p in probes for name in self._checks] + ["/version"]
        )


def _version_document(release: str) -> Obj:
    major, minor = release.lstrip("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": f"{release}+koord",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


COMPONENT_PREFIX = "/koord/"

ComponentHandler = Callable[
    [ApiRequest, str], Awaitable[ApiResponse]
]  # the request and its path below the component's own


class ComponentRoutes:
    def __init__(self) -> None:
        self._handlers: dict[str, ComponentHandler] = {}

    def add(self, component: str, page: ComponentHandler) -> None:
        if component in self._handlers:
            raise ValueError(f"{COMPONENT_PREFIX}{component} is taken")
        self._handlers[component] = page

    def remove(self, component: str) -> None:
        self._handlers.pop(component, None)

    async def respond(self, request: ApiRequest) -> ApiResponse | None:
        """Answer a request for a component; return None when no component serves the path."""
        if not request.path.startswith(COMPONENT_PREFIX):
            return None
        component, slash, rest = request.path[len(COMPONENT_PREFIX) :].partition("/")
        page = self._handlers.get(component)
        return None if page is None else await page(request, slash + rest)

    def paths(self) -> list[str]:
        return [f"{COMPONENT_PREFIX}{component}" for component in self._handlers]
