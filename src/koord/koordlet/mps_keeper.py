"""Keep a daemon of CUDA MPS for each GPU: start it, ask it now and then, start it again when it does not answer.

Each card is looked after alone, so that a card or a daemon that hangs keeps no other waiting. Daemons run on when the
agent stops, since containers are their clients; the next agent finds them by their pipes. Where the gate is off, what
an earlier agent started is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from koord.gpu.mps import MpsControl, MpsServers, end_daemons
from koord.host.gpu import GpuCard
from koord.koordlet.problem_log import ProblemLog
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

CHECK_S = 5.0
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 60.0
_NOT_STARTED = "it was not started yet"

ProblemCallback = Callable[[str, str], None]  # reason and message


class MpsDaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon of one card. `problem` is "" while it answers; `starts` counts how often this agent started it."""

    minor: int
    uuid: str
    problem: str
    starts: int
    servers: tuple[int, ...]
    since_s: float  # when it began to work, or to fail


class _Daemon:
    def __init__(self, card: GpuCard, now_s: float) -> None:
        self.card = card
        self.problem = _NOT_STARTED
        self.starts = 0
        self.servers: tuple[int, ...] = ()
        self.since_s = now_s
        self.next_start_s = 0.0
        self.backoff_s = FIRST_BACKOFF_S
        self.log = ProblemLog(
            _LOG,
            f"the MPS daemon of GPU {card.minor}",
            f"the MPS daemon of GPU {card.minor} works",
            begins_unknown=True,
        )


class MpsKeeper:
    """MpsKeeper keeps the daemons of the cards that `cards` returns, None until they are known."""

    def __init__(
        self,
        control: MpsControl,
        clock: Clock,
        cards: Callable[[], Sequence[GpuCard] | None],
        on_problem: ProblemCallback,
        *,
        enabled: bool,
    ) -> None:
        self._control = control
        self._clock = clock
        self._cards = cards
        self._on_problem = on_problem
        self._enabled = enabled
        self._daemons: dict[int, _Daemon] = {}

    @property
    def problems(self) -> Mapping[int, str]:
        """Return what is wrong with each daemon, "" for nothing, by the card's minor."""
        return {minor: daemon.problem for minor, daemon in self._daemons.items()}

    def statuses(self) -> list[MpsDaemonStatus]:
        return [
            MpsDaemonStatus(
                minor=minor,
                uuid=one.card.uuid,
                problem=one.problem,
                starts=one.starts,
                servers=one.servers,
                since_s=one.since_s,
            )
            for minor, one in sorted(self._daemons.items())
        ]

    async def run(self) -> None:
        if not self._enabled:
            for problem in await end_daemons(self._control):
                _LOG.warning("%s", problem)
            return
        while True:
            await self.check()
            await self._clock.sleep(CHECK_S)

    async def check(self) -> None:
        """Look after all cards once, each by itself."""
        for card in self._cards() or ():
            known = self._daemons.get(card.minor)
            if known is None or known.card.uuid != card.uuid:
                self._daemons[card.minor] = _Daemon(card, self._clock.time())
        await asyncio.gather(*(self._check(daemon) for daemon in self._daemons.values()))

    async def _check(self, daemon: _Daemon) -> None:
        minor = daemon.card.minor
        found = await self._control.servers(minor)
        if isinstance(found, str) and self._clock.monotonic() >= daemon.next_start_s:
            problem = await self._control.start(minor, daemon.card.uuid)
            daemon.starts += 1
            found = problem or await self._control.servers(minor)
            daemon.next_start_s = self._clock.monotonic() + daemon.backoff_s
            daemon.backoff_s = min(2 * daemon.backoff_s, MOST_BACKOFF_S)
        self._note(daemon, found)

    def _note(self, daemon: _Daemon, found: MpsServers | str) -> None:
        problem = found if isinstance(found, str) else ""
        if bool(problem) != bool(daemon.problem):
            daemon.since_s = self._clock.time()
        if problem and (not daemon.problem or daemon.problem == _NOT_STARTED):
            minor = daemon.card.minor
            self._on_problem(
                "MPSDaemonFailed",
                f"shares of GPU {minor} are not limited by MPS: {problem}; other GPUs are not affected",
            )
        daemon.problem = problem
        if isinstance(found, MpsServers):
            daemon.servers, daemon.backoff_s, daemon.next_start_s = found.pids, FIRST_BACKOFF_S, 0.0
            daemon.log.works()
        else:
            daemon.servers = ()
            daemon.log.fails(problem)
