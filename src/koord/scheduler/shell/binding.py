"""Bind decided pods (see the top of the file)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from koord.kube.client import Client
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.scheduler.framework.verdict import Fault, Reject, Skip
from koord.scheduler.framework.work import Errand, Mark, Stand
from koord.scheduler.shell.blame import described, raised_by
from koord.scheduler.shell.bond import Bond
from koord.scheduler.shell.outcome import Failure, of_refusal
from koord.scheduler.shell.stand_in import StandIns
from koord.scheduler.shell.waiting import Guest, WaitingRoom
from koord.scheduler.state.wire import PODS
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

# Bindings on the wire at a time. More does not make an API server quicker, and decisions should not run far ahead.
AT_A_TIME = 64
# Decided pods that may queue for their turn; the loop pauses beyond that, so that decisions see a recent state.
BACKLOG = 256
_LOOK_S = (0.1, 1.0)  # first and longest interval between checks whether PreBind actions are done
_ASK_S = (0.5, 10.0)  # first and longest interval between questions to the server whether the pod is bound

Bound = Callable[[Bond], None]
Undone = Callable[[Bond, Failure], None]


class Binder:
    """Run one binding cycle per submitted pod; exactly one of `bound` and `undone` is called for each of them."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        room: WaitingRoom,
        *,
        committed: Callable[[str], None],
        bound: Bound,
        undone: Undone,
        waited: Callable[[str, float], None],
        took: Callable[[str, str, float], None],
    ) -> None:
        """Take the callbacks of the scheduling loop.

        `waited` receives the result of each wait at Permit under Kubernetes' name of it, and its duration in seconds.
        """
        self._client = client
        self._clock = clock
        self._room = room
        self._committed = committed
        self._bound = bound
        self._undone = undone
        self._waited = waited
        self._took = took  # a point of a profile, in seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Semaphore(AT_A_TIME)
        self._drained = asyncio.Event()
        self._stand_ins = StandIns(client, clock)
        self.on_the_way = 0  # past Permit, not yet answered

    def submit(self, bond: Bond) -> None:
        guest = None
        if bond.waits:
            now = self._clock.monotonic()
            guest = Guest(bond.pod, bond.node_name, {name: now + wait for name, wait in bond.waits.items()})
            self._room.enter(guest)
        else:
            self._depart(bond)
        task = asyncio.create_task(self._journey(bond, guest), name=f"bind-{bond.pod.key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def let_out(self) -> None:
        """Wait until pods just rejected at Permit have released their resources, so that the next decision sees them.

        """
        while self._room.leaving:  # noqa: ASYNC110 - a turn or two of the loop: their answer is there already
            await asyncio.sleep(0)

    @property
    def has_room(self) -> bool:
        return self.on_the_way < BACKLOG

    async def wait_for_room(self) -> None:
        while not self.has_room:
            self._drained.clear()
            await self._drained.wait()

    async def stop(self) -> None:
        """Cancel all binding cycles: nothing new is written, and requests on the wire are left to the next leader's
        watch.
        """
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The binding cycle -------------------------------------------------------------------------------------------

    async def _journey(self, bond: Bond, guest: Guest | None) -> None:
        if guest is not None:
            began = self._clock.monotonic()
            try:
                refusal = await guest.word(self._clock, bond.waits)
            finally:
                self._room.leave(bond.pod.uid)
            self._waited("Success" if refusal is None else "Unschedulable", self._clock.monotonic() - began)
            if refusal is not None:
                refused = of_refusal(refusal.plugin, "Permit", Reject((refusal.message,)))
                self._undone(bond, msgspec.structs.replace(refused, quiet=refusal.quiet))
                return
            self._depart(bond)
        try:
            async with self._turn:
                failure = await self._bind(bond)
        except Exception as error:  # noqa: BLE001 - a plugin's or our own fault: this pod fails, the scheduler lives
            _LOG.exception("binding %s failed", bond.pod.key)
            failure = Failure(message=f'running "{raised_by(error)}" plugin: {described(error)}', error=True)
        finally:
            self.on_the_way -= 1
            if self.has_room:
                self._drained.set()
        if failure is None:
            self._bound(bond)
        else:
            self._undone(bond, failure)

    def _depart(self, bond: Bond) -> None:
        self.on_the_way += 1
        self._committed(bond.pod.uid)

    async def _bind(self, bond: Bond) -> Failure | None:
        began = self._clock.monotonic()
        marks = await self._pre_bind(bond)
        self._took(bond.profile.scheduler_name, "PreBind", self._clock.monotonic() - began)
        if isinstance(marks, Failure):
            return marks
        pod, node = bond.pod, bond.node_name
        for plugin in bond.profile.at("bind"):
            work = plugin.bind(bond.cycle, pod, node)
            if isinstance(work, Skip):
                continue
            if isinstance(work, Errand):  # in place of a binding
                fault = await self._run(work)
                return None if fault is None else of_refusal(plugin.name, "Bind", fault)
            if isinstance(work, Stand):
                fault = await self._stand_ins.write(work, marks)
                return None if fault is None else of_refusal(plugin.name, "Bind", fault)
            if isinstance(work, Reject | Fault):
                return of_refusal(plugin.name, "Bind", work)
            break
        if marks is not None and marks.labels:
            failure = await self._label(bond, marks)
            if failure is not None:
                return failure
        began = self._clock.monotonic()
        failure = await self._write(bond, marks.annotations if marks is not None else None)
        self._took(bond.profile.scheduler_name, "Bind", self._clock.monotonic() - began)
        return failure

    async def _write(self, bond: Bond, annotations: Mapping[str, str] | None) -> Failure | None:
        pod, node = bond.pod, bond.node_name
        try:
            refused = await self._client.bind(pod.namespace, pod.name, node, uid=pod.uid, annotations=annotations)
        except OUTAGE as outage:
            return await self._truth(bond, f'running Bind plugin "DefaultBinder": {outage}')
        if refused is None:
            return None
        message = f'running Bind plugin "DefaultBinder": {refused.message}'
        if refused.code >= 500 or refused.conflict:  # it may be bound all the same, by this call or by a lost one
            return await self._truth(bond, message)
        return Failure(message=message, error=True)

    async def _pre_bind(self, bond: Bond) -> Mark | Failure | None:
        annotations: dict[str, str] = {}
        labels: dict[str, str] = {}
        for plugin in bond.profile.at("pre_bind"):
            work = plugin.pre_bind(bond.cycle, bond.pod, bond.node_name)
            if isinstance(work, Errand):
                fault = await self._run(work)
                if fault is not None:
                    return of_refusal(plugin.name, "PreBind", fault)
                work = work.mark
            if isinstance(work, Reject | Fault):
                return of_refusal(plugin.name, "PreBind", work)
            if work is not None:
                annotations.update(work.annotations)
                labels.update(work.labels)
        return self._agreed(bond, Mark(annotations, labels)) if annotations or labels else None

    def _agreed(self, bond: Bond, mark: Mark) -> Mark | Failure:
        """Let the ApplyPatch plugin change the combined patch of all PreBind plugins; the first that does not skip
        decides.
        """
        for plugin in bond.profile.at("apply_patch"):
            answer = plugin.apply_patch(bond.cycle, bond.pod, bond.node_name, mark)
            if isinstance(answer, Fault):
                return of_refusal(plugin.name, "PreBind", answer)
            if not isinstance(answer, Skip):
                return answer
        return mark

    async def _run(self, errand: Errand) -> Fault | None:
        for write in errand.writes:
            try:
                done = await self._client.patch(
                    write.resource, write.name, write.patch, write.namespace or None, kind="merge"
                )
            except OUTAGE as outage:
                return Fault(str(outage))
            if isinstance(done, Refused):
                return Fault(done.message)
        end = self._clock.monotonic() + errand.timeout_s
        pause, longest = _LOOK_S
        while True:
            settled = errand.settled()
            if isinstance(settled, Fault):
                return settled
            if settled:
                return None
            if self._clock.monotonic() >= end:
                return Fault("timed out waiting for the condition")
            await self._clock.sleep(pause)
            pause = min(2 * pause, longest)

    async def _label(self, bond: Bond, marks: Mark) -> Failure | None:
        """Patch the pod's labels before the binding, which can carry annotations but no labels."""
        pod = bond.pod
        patch = {"metadata": {"labels": dict(marks.labels)}}
        try:
            done = await self._client.patch(PODS, pod.name, patch, pod.namespace, kind="merge", uid=pod.uid)
        except OUTAGE as outage:
            return Failure(message=f'running PreBind plugin "DefaultPreBind": {outage}', error=True)
        if isinstance(done, Refused):
            return Failure(message=f'running PreBind plugin "DefaultPreBind": {done.message}', error=True)
        return None

    async def _truth(self, bond: Bond, message: str) -> Failure | None:
        """Ask the server until it says whether the pod is bound to the node after all; return the failure if it is
        not.
        """
        pod = bond.pod
        pause, longest = _ASK_S
        while True:
            try:
                seen = await self._client.get(PODS, pod.name, pod.namespace)
            except OUTAGE:
                seen = None
            if isinstance(seen, Refused) and seen.not_found:
                return Failure(message=message, error=True)
            if seen is not None and not isinstance(seen, Refused):
                bound = seen.metadata.uid == pod.uid and seen.spec.node_name == bond.node_name
                return None if bound else Failure(message=message, error=True)
            await self._clock.sleep(pause)
            pause = min(2 * pause, longest)
