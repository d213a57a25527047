"""The component server: the ports of a program for health, metrics, configuration, log level, and its own
services.

Plain HTTP and HTTPS serve the same routes; a guard may check each call first. A client that is slow, dead
or one of too many costs its own connection only: every answer has a deadline, which covers writing it,
and connections are capped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

# None when all is well, else what is wrong, as text for the log and for `?verbose` of trusted callers.
Check = Callable[[], str | None]


class Report(msgspec.Struct, frozen=True):
    ok: bool
    text: str  # for the client
    failures: tuple[str, ...] = ()  # for the log: "name: reason"


def ping() -> str | None:
    return None


def report(name: str, checks: Mapping[str, Check], *, verbose: bool = False, exclude: Sequence[str] = ()) -> Report:
    """Run all checks of `name` ("healthz", "livez", "readyz"). Reasons are withheld: the port may be open to anyone."""
    lines: list[str] = []
    failures: list[str] = []
    unused = set(exclude)
    for check, ask in checks.items():
        if check in unused:
            unused.discard(check)
            lines.append(f"[+]{check} excluded: ok")
            continue
        why = ask()
        if why is None:
            lines.append(f"[+]{check} ok")
        else:
            lines.append(f"[-]{check} failed: reason withheld")
            failures.append(f"{check}: {why}")
    if unused:
        quoted = ",".join(f'"{one}"' for one in sorted(unused))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    if failures:
        return Report(False, "\n".join([*lines, f"{name} check failed", ""]), tuple(failures))
    return Report(True, "\n".join([*lines, f"{name} check passed", ""]) if verbose else "ok")


def single(check: Check) -> Report:
    why = check()
    return Report(True, "ok") if why is None else Report(False, f"internal server error: {why}\n", (why,))
