"""A story is a list of requests played in order against a server; its answers are what two servers must agree on."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


@dataclass(frozen=True)
class Step:
    id: str
    method: str
    path: str
    body: Any = None
    query: dict[str, str] = field(default_factory=dict)
    content_type: str = JSON
    accept: str = JSON
    # A watch is read until this many lines came; everything else is one answer.
    watch_lines: int = 0
    # Paths of the answer that are compared; empty means the whole body.
    only: tuple[str, ...] = ()
    until_established: bool = False  # a CRD is served a moment after it was made, on any server


@dataclass(frozen=True)
class Story:
    id: str
    steps: tuple[Step, ...]


@dataclass
class Answered:
    status: int
    body: Any
    warnings: tuple[str, ...] = ()


_REFERENCE = re.compile(r"\$\{([a-z0-9-]+)\.([A-Za-z0-9_.\[\]]+)\}")


def _lookup(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def _fill(value: Any, ns: str, answers: dict[str, Answered]) -> Any:
    """Replace {ns} and ${step-id.path.in.body} anywhere in a request."""
    if isinstance(value, str):
        value = value.replace("{ns}", ns)
        return _REFERENCE.sub(lambda m: str(_lookup(answers[m[1]].body, m[2])), value)
    if isinstance(value, dict):
        return {_fill(k, ns, answers): _fill(v, ns, answers) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, ns, answers) for v in value]
    return value


async def play(story: Story, session: aiohttp.ClientSession, url: str, ns: str) -> dict[str, Answered]:
    """Play all steps; the namespace is made before and removed after by the caller."""
    answers: dict[str, Answered] = {}
    for step in story.steps:
        answers[step.id] = await _send(step, session, url, ns, answers)
        if step.until_established:
            async with asyncio.timeout(20):
                while not _established(answers[step.id].body):
                    await asyncio.sleep(0.05)
                    answers[step.id] = await _send(step, session, url, ns, answers)
            await asyncio.sleep(1)  # the real server's handlers follow the condition with a delay
    return answers


def _established(body: Any) -> bool:
    conditions = body.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def _send(
    step: Step, session: aiohttp.ClientSession, url: str, ns: str, answers: dict[str, Answered]
) -> Answered:
    body = _fill(step.body, ns, answers)
    data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
    if isinstance(data, bytes) and isinstance(step.body, bytes):
        data = data.replace(b"{ns}", ns.encode())
    headers = {"Accept": step.accept}
    if data is not None:
        headers["Content-Type"] = step.content_type
    query = {k: _fill(v, ns, answers) for k, v in step.query.items()}
    async with session.request(
        step.method, url + _fill(step.path, ns, answers), data=data, params=query, headers=headers
    ) as answer:
        if step.watch_lines and answer.status == 200:
            lines = []
            async for line in answer.content:
                lines.append(msgspec.json.decode(line))
                if len(lines) >= step.watch_lines:
                    break
            return Answered(answer.status, lines)
        raw = await answer.read()
        try:
            parsed = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            parsed = raw.decode(errors="replace")
        return Answered(answer.status, parsed, tuple(answer.headers.getall("Warning", ())))


# Short words for the common steps ----------------------------------------------------------------------------------


def get(id: str, path: str, **more: Any) -> Step:
    return Step(id, "GET", path, **more)


def post(id: str, path: str, body: Any, **more: Any) -> Step:
    return Step(id, "POST", path, body, **more)


def put(id: str, path: str, body: Any, **more: Any) -> Step:
    return Step(id, "PUT", path, body, **more)


def delete(id: str, path: str, body: Any = None, **more: Any) -> Step:
    return Step(id, "DELETE", path, body, **more)


def merge(id: str, path: str, body: Any, **more: Any) -> Step:
    return Step(id, "PATCH", path, body, content_type=MERGE, **more)


def strategic(id: str, path: str, body: Any, **more: Any) -> Step:
    return Step(id, "PATCH", path, body, content_type=STRATEGIC, **more)


def json_patch(id: str, path: str, body: Any, **more: Any) -> Step:
    return Step(id, "PATCH", path, body, content_type=JSON_PATCH, **more)


def apply(id: str, path: str, body: Any, manager: str = "tester", force: bool = False, **more: Any) -> Step:
    query = {"fieldManager": manager, **({"force": "true"} if force else {}), **more.pop("query", {})}
    return Step(id, "PATCH", path, body, content_type=APPLY, query=query, **more)


def watch(id: str, path: str, lines: int, **query: str) -> Step:
    return Step(id, "GET", path, query={"watch": "true", "timeoutSeconds": "5", **query}, watch_lines=lines)
