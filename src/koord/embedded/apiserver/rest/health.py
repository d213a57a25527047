"""Paths that are not resources: version, liveness and readiness, and the paths below /koord/ that
components of the cluster serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.rest.answering import TextBody, text
from koord.kube.transport import Answer, Request

Obj = dict[str, Any]
Check = Callable[[], str]  # "" when all is well, else what is not


class Health:
    """Serves /version, /healthz, /livez and /readyz. `checks` run on every request: a server that cannot store
    must say so.
    """

    def __init__(self, release: str, checks: Mapping[str, Check]) -> None:
        self._checks = {"ping": lambda: "", **checks}
        self._version = _version(release)

    def answer(self, request: Request) -> Answer | None:
        path = request.path.rstrip("/")
        if path == "/version":
            return Answer(status=200, body=TextBody(msgspec.json.format(msgspec.json.encode(self._version), indent=2)))
        root, _, name = path.lstrip("/").partition("/")
        if root not in ("healthz", "livez", "readyz"):
            return None
        if name:
            check = self._checks.get(name)
            if check is None:
                return text(404, "404 page not found\n")
            failure = check()
            return text(500, f"internal server error: {failure}\n") if failure else text(200, "ok")
        failed = {name: failure for name, check in self._checks.items() if (failure := check())}
        if not failed and "verbose" not in request.query:
            return text(200, "ok")
        lines = [f"[-]{name} failed: {failed[name]}" if name in failed else f"[+]{name} ok" for name in self._checks]
        lines.append(f"{root} check {'failed' if failed else 'passed'}")
        return text(500 if failed else 200, "\n".join(lines) + "\n")

    def paths(self) -> list[str]:
        probes = ("healthz", "livez", "readyz")
        return (
            [f"/{probe}" for probe in probes] + [f"/{p}/{name}" for p in probes for name in self._checks] + ["/version"]
        )


def _version(release: str) -> Obj:
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
