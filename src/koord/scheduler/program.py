"""Assemble koord-scheduler from a client, informers and a completed configuration, and run it while it leads.

The component knows neither flags nor files nor which API server it talks to. `start` registers what is to be watched;
leading is a task of its own, so that a standby keeps its caches warm. The journey of a pod is
event_handlers -> queue -> schedule_one -> bind.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping

from koord.api.part import ObjectReference
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.malformed import Malformed
from koord.kube.recorder import Recorder
from koord.scheduler.assembly import Assembly
from koord.scheduler.duties.duty import Post
from koord.scheduler.duties.registry import DUTIES
from koord.scheduler.duties.staff import hire, work
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.scheduler.preemption.under_way import UnderWay
from koord.scheduler.queue.backoff import Settings
from koord.scheduler.queue.scheduling import SchedulingQueue
from koord.scheduler.shell.announcer import Announcer
from koord.scheduler.shell.binding import Binder
from koord.scheduler.shell.counter import ProgramCounter
from koord.scheduler.shell.eviction import Evictor
from koord.scheduler.shell.handle import LiveHandle
from koord.scheduler.shell.intake import Intake
from koord.scheduler.shell.loop import Loop
from koord.scheduler.shell.meter import Meter, Uncounted
from koord.scheduler.shell.record import Records
from koord.scheduler.shell.report import Reporter
from koord.scheduler.shell.stopwatch import Stopwatch
from koord.scheduler.shell.teller import Teller
from koord.scheduler.shell.waiting import WaitingRoom
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

_GONE = "the pod is gone"


class Scheduler:
    """Own all parts of one scheduler: call `start`, start the informers, await `wait_synced`, then `lead` while
    leading.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        assembly: Assembly,
        *,
        seed: int = 0,
        instance: str = "koord-scheduler",
        meter: Meter | None = None,
        max_unschedulable_s: float = 300.0,
    ) -> None:
        """Wire all parts together; nothing runs yet.

        `max_unschedulable_s`: after this long an unschedulable pod is tried again whatever happened meanwhile.
        """
        self._client = client
        self._clock = clock
        self._assembly = assembly
        self.state = ClusterState()
        self.handle = LiveHandle(self.state, informers, clock)
        self.room = WaitingRoom()
        self.records = Records()
        self.profiles: Mapping[str, Profile] = {p.scheduler_name: p for p in assembly.profiles(self.handle)}
        # Events carry the name of the scheduler that the pod asked for.
        self._recorders = {
            name: Recorder(client, clock, controller=name, instance=instance) for name in sorted(self.profiles)
        }
        config = assembly.config
        settings = Settings(
            initial_backoff_s=float(config.pod_initial_backoff_seconds or 0),
            max_backoff_s=float(config.pod_max_backoff_seconds or 0),
            max_unschedulable_s=max_unschedulable_s,
        )
        self.queue = SchedulingQueue(tuple(self.profiles.values()), settings)
        self.engines = {
            name: Engine(profile, self.state, seed ^ zlib.crc32(name.encode()), self.queue.nominations)
            for name, profile in self.profiles.items()
        }
        self.intake = Intake(
            informers,
            self.handle,
            self.queue,
            clock,
            schedulers=frozenset(self.profiles),
            gone=self._pod_gone,
            wake=self._wake,
        )
        meter = meter or Uncounted()
        self.reporter = Reporter(client, clock, self.intake.pods.get)
        self.announcer = Announcer(clock, self._is_busy, lambda: self.unwritten)
        teller = Teller(
            latest=self.intake.latest,
            state=self.state,
            queue=self.queue,
            recorders=self._recorders,
            reporter=self.reporter,
            announcer=self.announcer,
            meter=meter,
            clock=clock,
        )
        self.loop = Loop(
            self.state,
            self.queue,
            self.engines,
            teller,
            self.records,
            clock,
            Stopwatch(meter, clock),
            _chooser(self.profiles),
        )
        self.loop.binder = self.binder = Binder(
            client,
            clock,
            self.room,
            committed=self.queue.committed,
            bound=self.loop.bound,
            undone=self.loop.undone,
            waited=meter.permit_waited,
            took=meter.point,
        )
        self.loop.evictor = self.evictor = Evictor(
            client,
            clock,
            self._recorders,
            self.room,
            self.state.derived(UnderWay),
            failed=self._think_again,
        )
        self.handle.desk.counter = ProgramCounter(self.room, self.queue, clock, self._wake, self.reporter.report)
        recorder = next(iter(self._recorders.values()))
        self.duties = hire(
            self.profiles.values(),
            DUTIES,
            lambda plugins: Post(client, self.handle, clock, recorder, self.evictor, plugins),
        )

    @property
    def ready(self) -> bool:
        """Return whether every handler has received its first list completely."""
        return self.intake.synced

    async def start(self) -> None:
        self.intake.connect()
        for recorder in self._recorders.values():
            recorder.start()

    async def synced(self) -> None:
        await self.intake.wait_synced()

    async def lead(self) -> None:
        """Run the scheduling loop and the controllers until cancelled.

        Bindings that are in progress at that moment are left to the next leader, which learns of them from its watch.
        """
        await self.synced()
        self.reporter.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(work(self.duties, self._clock))
                group.create_task(self.loop.run())
        finally:
            await self.binder.stop()
            await self.evictor.stop()
            await self.reporter.stop()

    async def stop(self) -> None:
        await self.announcer.stop()
        await asyncio.gather(*(recorder.stop() for recorder in self._recorders.values()))

    def misread(self, what: Malformed) -> None:
        """Record a warning event on an object that cannot be decoded; everything else goes on without it."""
        about = ObjectReference(kind=what.kind, namespace=what.namespace, name=what.name, uid=what.uid)
        recorder = next(iter(self._recorders.values()))
        recorder.record(about, "Warning", "MalformedObject", f"left out of scheduling: {what.error}", action="Reading")

    # Joints ------------------------------------------------------------------------------------------------------

    @property
    def unwritten(self) -> int:
        """Return the number of events that wait to be written."""
        return sum(recorder.pending for recorder in self._recorders.values())

    def _is_busy(self) -> bool:
        """Return whether bindings are in progress or soon will be.

        While the members of a gang are tried none is in progress yet, so active pods count as well.
        """
        return self.binder.on_the_way > 0 or self.queue.counts()["active"] > 0

    def _wake(self) -> None:
        self.loop.wake()

    def _pod_gone(self, uid: str) -> None:
        self.room.refuse(uid, "", _GONE)
        self.reporter.drop(uid)

    def _think_again(self, pod: PodInfo) -> None:
        if self.queue.activate((pod.uid,), self._clock.monotonic()):
            self._wake()


def _chooser(profiles: Mapping[str, Profile]) -> Plugin | None:
    """Return the plugin that may name the next pod: the first one of all profiles that implements `next_pod`, if any.

    """
    return next((plugin for profile in profiles.values() for plugin in profile.at("next_pod")), None)


class Leading:
    """Run a scheduler without leader election, as something that is started and stopped, in a process that has no
    rival.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.scheduler.start()
        self._task = asyncio.create_task(self.scheduler.lead(), name="koord-scheduler")
        self._task.add_done_callback(_say_if_died)

    async def stop(self) -> None:
        """Stop the scheduler, and raise the exception that ended it, if there was one."""
        died: BaseException | None = None
        if self._task is not None:
            self._task.cancel()
            (end,) = await asyncio.gather(self._task, return_exceptions=True)
            died = end if isinstance(end, Exception) else None
        await self.scheduler.stop()
        if died is not None:
            raise died


def _say_if_died(task: asyncio.Task[None]) -> None:
    """Log a scheduler that ended with an exception at once.

    Otherwise nothing would be scheduled until somebody stops it, and nobody would know why.
    """
    if not task.cancelled() and task.exception() is not None:
        _LOG.critical("koord-scheduler ended and schedules nothing any more", exc_info=task.exception())
