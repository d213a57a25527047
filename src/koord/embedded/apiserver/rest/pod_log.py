"""The log of a simulated container: one line for each state that its status tells of, and a stream of them.

No process runs, so nothing else is known. Errors are those of a kubelet: a container that is not part of the pod, one
that has not started, and a run before this one that never was.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import bad_request
from koord.embedded.apiserver.rest.options import ListOptions, query_bool, query_int
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps
from koord.embedded.apiserver.rest.watch import WatchEncoding, open_watch
from koord.values import timestamp

_LISTS = (
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
)


class LogLine(msgspec.Struct, frozen=True):
    time: str
    text: str


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """LogOptions is the query of a log request."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_seconds: int | None = None
    since_time: str = ""
    tail_lines: int | None = None
    limit_bytes: int | None = None


def read_log_options(query: Mapping[str, str]) -> LogOptions:
    return LogOptions(
        container=query.get("container", ""),
        follow=bool(query_bool(query, "follow")),
        previous=bool(query_bool(query, "previous")),
        timestamps=bool(query_bool(query, "timestamps")),
        since_seconds=query_int(query, "sinceSeconds"),
        since_time=query.get("sinceTime", ""),
        tail_lines=query_int(query, "tailLines"),
        limit_bytes=query_int(query, "limitBytes"),
    )


def choose_container(pod: Obj, asked: str) -> str:
    """Return the container that is meant. Raises where the pod has none of that name, or several and none is named."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    if asked:
        if not any(one["name"] == asked for listed, _ in _LISTS for one in spec.get(listed) or ()):
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    names = [one["name"] for one in spec.get("containers") or ()]
    if len(names) != 1:
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
    return str(names[0])


def container_log(pod: Obj, container: str, *, previous: bool) -> list[LogLine]:
    """Return the lines of a container's run, or of the one before. Raises where there is no such run."""
    name = pod["metadata"]["name"]
    status = _container_status(pod, container)
    state = status.get("lastState" if previous else "state") or {}
    if "waiting" in state and "terminated" in (status.get("lastState") or {}):
        state = status["lastState"]  # between two runs the last one is shown
    if previous and "terminated" not in state:
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    if "running" not in state and "terminated" not in state:
        reason = (state.get("waiting") or {}).get("reason", "ContainerCreating")
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason}')
    ended = state.get("terminated") or {}
    began = ended.get("startedAt") or (state.get("running") or {}).get("startedAt") or ""
    node, image = pod["spec"].get("nodeName", ""), status.get("image", "")
    lines = [LogLine(began, f"{container} ({image}) started on {node}: a simulated container, which runs no process")]
    if not ended and status.get("ready"):
        since = next(
            (
                one.get("lastTransitionTime") or began
                for one in pod["status"].get("conditions") or ()
                if one.get("type") == "ContainersReady" and one.get("status") == "True"
            ),
            began,
        )
        lines.append(LogLine(max(since, began), f"{container} is ready"))
    if ended:
        text = f"{container} ended with exit code {ended.get('exitCode', 0)}: {ended.get('reason', 'Completed')}"
        message = f", {ended['message']}" if ended.get("message") else ""
        lines.append(LogLine(ended.get("finishedAt") or began, f"{text}{message}"))
    return lines


def _container_status(pod: Obj, container: str) -> Obj:
    status = pod.get("status") or {}
    listed = (one for _, field in _LISTS for one in status.get(field) or ())
    return next((one for one in listed if one["name"] == container), {})


def format_log(lines: list[LogLine], options: LogOptions, now: datetime) -> bytes:
    """Return the text of those lines that the options ask for. Every line begins with its time."""
    since = options.since_time
    if options.since_seconds is not None:
        since = timestamp.text(now - timedelta(seconds=options.since_seconds))
    kept = [line for line in lines if line.time >= since]
    if options.tail_lines is not None:
        kept = kept[len(kept) - min(options.tail_lines, len(kept)) :]
    prefix = "{0.time} " if options.timestamps else ""
    text = "".join(f"{prefix.format(line)}{line.time} {line.text}\n" for line in kept).encode()
    return text if options.limit_bytes is None else text[: options.limit_bytes]


def _now(deps: ServerDeps) -> datetime:
    return datetime.fromtimestamp(deps.clock.time(), UTC)


def read_log(pod: Obj, options: LogOptions, deps: ServerDeps) -> bytes:
    """Return what there is now. Raises StatusError where there is no such container or run."""
    container = choose_container(pod, options.container)
    return format_log(container_log(pod, container, previous=options.previous), options, _now(deps))


async def follow_log(
    context: RequestContext, deps: ServerDeps, options: LogOptions, encoding: WatchEncoding
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a container as its pod's status changes, until the container has ended or its pod is gone."""
    stream = open_watch(context, deps, ListOptions(), encoding)
    shown: set[LogLine] = set()
    try:
        async for frame in stream:
            pod = frame.body.plain()
            if frame.type not in ("ADDED", "MODIFIED", "DELETED") or "spec" not in pod:
                return
            state = _container_status(pod, options.container).get("state") or {}
            if "running" in state or "terminated" in state:
                lines = container_log(pod, options.container, previous=False)
                if not shown:
                    yield format_log(lines, options, _now(deps))
                else:
                    plain = msgspec.structs.replace(options, tail_lines=None, since_seconds=None, since_time="")
                    new = [line for line in lines if line not in shown]
                    yield format_log(new, plain, _now(deps))
                shown.update(lines)
            if "terminated" in state or frame.type == "DELETED":
                return
    finally:
        stream.close_now()
