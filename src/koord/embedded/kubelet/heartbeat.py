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

from koord.api.kubernetes.builtin_kinds import LEASES, NODES
from koord.embedded.kubelet import node_objects as objects
from koord.embedded.kubelet.simulated_host import SimulatedHost
from koord.kube.client import request_builder
from koord.kube.client.typed_client import Client
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock
from koord.values import timestamp

_LOG = logging.getLogger(__name__)

# A kubelet renews its Lease every 10 s, a quarter of the Lease's duration; the node controller waits for 40 s or more.
LEASE_PERIOD_S = 10.0
STATUS_PERIOD_S = 300.0
HEARTBEAT_TICK_S = 0.5
CONCURRENT_WRITES = 8  # writes under way at once: they only matter where a network is between


class HeartbeatCounts(msgspec.Struct, kw_only=True):
    leases: int = 0
    statuses: int = 0
    failed: int = 0


class HeartbeatLoop:
    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        lease_period_s: float,
        status_period_s: float,
        tick_s: float = HEARTBEAT_TICK_S,
    ) -> None:
        self.counts = HeartbeatCounts()
        self._client = client
        self._clock = clock
        self._tick_s = min(tick_s, lease_period_s)
        self._slots: list[dict[str, SimulatedHost]] = [{} for _ in range(max(1, round(lease_period_s / self._tick_s)))]
        self._turns_per_status = max(1, round(status_period_s / lease_period_s))
        self._turn = 0
        self._slot_of: dict[str, int] = {}
        self._urgent: dict[str, SimulatedHost] = {}
        self._next = 0
        self._limited_log = RateLimitedLog(_LOG, clock)

    def add(self, host: SimulatedHost) -> None:
        slot = self._next % len(self._slots)
        self._next += 1
        self._slot_of[host.name] = slot
        self._slots[slot][host.name] = host

    def remove(self, host: SimulatedHost) -> None:
        slot = self._slot_of.pop(host.name, None)
        if slot is not None:
            del self._slots[slot][host.name]
        self._urgent.pop(host.name, None)

    def report_soon(self, host: SimulatedHost) -> None:
        """Write the Node status of the host with the next tick."""
        self._urgent[host.name] = host

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        at = 0
        due = self._clock.monotonic()
        while True:
            due += self._tick_s
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            in_slot = list(self._slots[at].values())
            slot = [host for host in in_slot if self._is_reporting(host)]
            urgent, self._urgent = self._urgent, {}
            # Neighbours in a slot write their status in different turns, so that statuses are spread as well.
            status_due = [h for n, h in enumerate(in_slot) if (self._turn + n) % self._turns_per_status == 0]
            reporting = {h.name: h for h in (*status_due, *urgent.values()) if self._is_reporting(h)}
            await self._write_concurrently(slot, self._renew)
            await self._write_concurrently(list(reporting.values()), self._write_status)
            at += 1
            if at == len(self._slots):
                at = 0
                self._turn += 1

    def _is_reporting(self, host: SimulatedHost) -> bool:
        return host.failure is None and host.uid != ""

    async def _write_concurrently(
        self, hosts: list[SimulatedHost], write: Callable[[SimulatedHost], Awaitable[None]]
    ) -> None:
        if not hosts:
            return

        async def lane(number: int) -> None:
            for host in hosts[number::CONCURRENT_WRITES]:
                await write(host)

        await asyncio.gather(*(lane(number) for number in range(min(CONCURRENT_WRITES, len(hosts)))))

    async def _renew(self, host: SimulatedHost) -> None:
        patch = {"spec": {"renewTime": timestamp.unix_micro_text(self._clock.time())}}
        request = request_builder.patch(LEASES, host.name, patch, objects.LEASE_NAMESPACE, kind="merge")
        refused = await self._send(request, "lease", host)
        self.counts.leases += 1
        if refused is not None and refused.not_found:
            lease = objects.lease_object(host.name, host.uid, self._clock.time())
            await self._send(request_builder.create(LEASES, lease), "lease", host)

    async def _write_status(self, host: SimulatedHost) -> None:
        conditions = objects.node_conditions(self._clock.time(), host.kubelet_started_at, host.pressures)
        patch: dict[str, Any] = {"status": {"conditions": conditions}}
        if host.extended_changes:
            patch["status"]["allocatable"] = host.extended_changes
        request = request_builder.patch(NODES, host.name, patch, kind="strategic", subresource="status")
        await self._send(request, "status", host)
        self.counts.statuses += 1

    async def _send(self, request: Any, what: str, host: SimulatedHost) -> ApiError | None:
        """Send one heartbeat. A lost one is logged and counted, not retried: the next one follows."""
        try:
            answer = await self._client.raw(request)
        except TRANSIENT_ERRORS as error:
            self.counts.failed += 1
            self._limited_log.warning("%s of node %s not written: %s", what, host.name, error)
            return None
        if answer.ok:
            return None
        refused = error_from_response(answer)
        self.counts.failed += 1
        self._limited_log.warning("%s of node %s refused: %s", what, host.name, refused)
        return refused
