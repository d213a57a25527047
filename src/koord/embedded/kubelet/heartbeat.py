"""Send the heartbeats of all nodes from one task: Leases on a timing wheel, and full Node statuses now and
then.

The wheel has as many slots as the period has ticks. Each node is in one slot, so writes are spread
evenly over the period. The Node status is written with every Nth turn, and soon after `report_soon` was
called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koord.api.builtin import LEASES, NODES
from koord.embedded.kubelet import machine as objects
from koord.embedded.kubelet.host import Host
from koord.kube import verb
from koord.kube.client import Client
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused, from_answer
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

# A kubelet renews its Lease every 10 s, a quarter of the Lease's duration; the node controller waits for 40 s or more.
LEASE_PERIOD_S = 10.0
STATUS_PERIOD_S = 300.0
TICK_S = 0.5
LANES = 8  # writes under way at once: they only matter where a network is between


class HeartbeatCounts(msgspec.Struct, kw_only=True):
    leases: int = 0
    statuses: int = 0
    failed: int = 0


class Heartbeats:
    def __init__(
        self, client: Client, clock: Clock, *, lease_period_s: float, status_period_s: float, tick_s: float = TICK_S
    ) -> None:
        self.counts = HeartbeatCounts()
        self._client = client
        self._clock = clock
        self._tick_s = min(tick_s, lease_period_s)
        self._slots: list[dict[str, Host]] = [{} for _ in range(max(1, round(lease_period_s / self._tick_s)))]
        self._turns_per_status = max(1, round(status_period_s / lease_period_s))
        self._turn = 0
        self._placed: dict[str, int] = {}
        self._urgent: dict[str, Host] = {}
        self._next = 0
        self._quiet = QuietLog(_LOG, clock)

    def add(self, host: Host) -> None:
        slot = self._next % len(self._slots)
        self._next += 1
        self._placed[host.name] = slot
        self._slots[slot][host.name] = host

    def remove(self, host: Host) -> None:
        slot = self._placed.pop(host.name, None)
        if slot is not None:
            del self._slots[slot][host.name]
        self._urgent.pop(host.name, None)

    def say(self, host: Host) -> None:
        """Write the Node status of the host with the next tick."""
        self._urgent[host.name] = host

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        at = 0
        due = self._clock.monotonic()
        while True:
            due += self._tick_s
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            sitting = list(self._slots[at].values())
            slot = [host for host in sitting if self._beats(host)]
            urgent, self._urgent = self._urgent, {}
            # Neighbours in a slot write their status in different turns, so that statuses are spread as well.
            loud = [h for n, h in enumerate(sitting) if (self._turn + n) % self._turns_per_status == 0]
            spoken = {h.name: h for h in (*loud, *urgent.values()) if self._beats(h)}
            await self._each(slot, self._renew)
            await self._each(list(spoken.values()), self._report)
            at += 1
            if at == len(self._slots):
                at = 0
                self._turn += 1

    def _beats(self, host: Host) -> bool:
        return host.failure is None and host.uid != ""

    async def _each(self, hosts: list[Host], write: Callable[[Host], Awaitable[None]]) -> None:
        if not hosts:
            return

        async def lane(number: int) -> None:
            for host in hosts[number::LANES]:
                await write(host)

        await asyncio.gather(*(lane(number) for number in range(min(LANES, len(hosts)))))

    async def _renew(self, host: Host) -> None:
        patch = {"spec": {"renewTime": objects.micros(self._clock.time())}}
        request = verb.patch(LEASES, host.name, patch, objects.LEASE_NAMESPACE, kind="merge")
        refused = await self._send(request, "lease", host)
        self.counts.leases += 1
        if refused is not None and refused.not_found:
            lease = objects.lease_object(host.name, host.uid, self._clock.time())
            await self._send(verb.create(LEASES, lease), "lease", host)

    async def _report(self, host: Host) -> None:
        conditions = objects.conditions(self._clock.time(), host.since, host.pressures)
        patch: dict[str, Any] = {"status": {"conditions": conditions}}
        request = verb.patch(NODES, host.name, patch, kind="strategic", subresource="status")
        await self._send(request, "status", host)
        self.counts.statuses += 1

    async def _send(self, request: Any, what: str, host: Host) -> Refused | None:
        """Send one heartbeat. A lost one is logged and counted, not retried: the next one follows."""
        try:
            answer = await self._client.raw(request)
        except OUTAGE as error:
            self.counts.failed += 1
            self._quiet.warning("%s of node %s not written: %s", what, host.name, error)
            return None
        if answer.ok:
            return None
        refused = from_answer(answer)
        self.counts.failed += 1
        self._quiet.warning("%s of node %s refused: %s", what, host.name, refused)
        return refused
