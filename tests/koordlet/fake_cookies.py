"""A kernel with core scheduling in memory: processes, their cookies, and the errors that the kernel gives."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Sequence

from koord.host.io_error import OPEN, IoError, unsupported


class FakeCookies:
    """`cookies` has the cookie of every living process. `stubborn` processes refuse every change."""

    def __init__(self) -> None:
        self.cookies: dict[int, int] = {}
        self.stubborn: set[int] = set()
        self.missing = False
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self._next = itertools.count(1001)

    def supported(self) -> IoError | None:
        return unsupported("prctl", "none here") if self.missing else None

    def cookie(self, process: int) -> int | IoError:
        return self.cookies.get(process, IoError(f"{process}", OPEN, errno.ESRCH))

    def create(self, process: int) -> IoError | None:
        self.calls.append(("create", (process,)))
        problem = self._problem(process)
        if problem is None:
            self.cookies[process] = next(self._next)
        return problem

    def assign(self, source: int, targets: Sequence[int]) -> dict[int, IoError]:
        self.calls.append(("assign", (source, *targets)))
        cookie = self.cookie(source)
        return {source: cookie} if isinstance(cookie, IoError) else self._set(cookie, targets)

    def clear(self, targets: Sequence[int]) -> dict[int, IoError]:
        self.calls.append(("clear", tuple(targets)))
        return self._set(0, targets)

    def _set(self, cookie: int, targets: Sequence[int]) -> dict[int, IoError]:
        problems = {target: self._problem(target) for target in targets}
        self.cookies.update({target: cookie for target, problem in problems.items() if problem is None})
        return {target: problem for target, problem in problems.items() if problem is not None}

    def _problem(self, process: int) -> IoError | None:
        if process not in self.cookies:
            return IoError(f"{process}", OPEN, errno.ESRCH)
        return IoError(f"{process}", OPEN, errno.EPERM) if process in self.stubborn else None
