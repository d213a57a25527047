"""Sets of completion indexes as a Job's status writes them: "0-2,5". Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.core import Pod

INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"


def parse(text: str | None) -> frozenset[int]:
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def text(indexes: Iterable[int]) -> str:
    """Format indexes; two neighbours are written as a pair, three and more as a range."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and (index is None or index != run[-1] + 1):
            if len(run) > 1:
                parts.append(f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}")
            else:
                parts.append(str(run[0]))
            run = []
        if index is not None:
            run.append(index)
    return ",".join(parts)


def index_of(pod: Pod) -> int | None:
    value = pod.metadata.annotations.get(INDEX, "")
    return int(value) if value.isdecimal() else None


def failures_of(pod: Pod) -> int:
    """Return how often this pod's index had failed before the pod was created."""
    value = pod.metadata.annotations.get(FAILURES, "")
    return int(value) if value.isdecimal() else 0
