"""Whatever happens to the Secret and to replicas, in whatever order: nobody serves what API servers do not trust."""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import PODS, SECRETS
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext
from koord.manager.webhook_server.cert_rotator import SECRET_NAME, SETTLE_S
from koord.telemetry.clock import ManualClock
from tests.manager.webhook_server.replica_fixture import Replica, add_pod, bundle, cluster_context

STEPS = st.one_of(
    st.tuples(st.just("look"), st.integers(0, 2)),
    st.tuples(st.just("pass"), st.sampled_from((1, 6, 11, 700))),
    st.tuples(st.sampled_from(("delete", "empty")), st.just(0)),
    st.tuples(st.sampled_from(("restart", "leave")), st.integers(0, 2)),
)


class History:
    def __init__(self, context: ManagerContext) -> None:
        self.clock = ManualClock(context.clock.time())
        self.context = msgspec.structs.replace(context, clock=self.clock)
        self.replicas: dict[str, Replica] = {}
        self.bundles: list[tuple[float, bytes]] = []
        self.made = 0

    async def join(self) -> None:
        self.made += 1
        name = f"r{self.made}"
        await add_pod(self.context.client, name)
        self.replicas[name] = Replica(self.context, name)

    async def step(self, what: str, number: int) -> None:
        names = sorted(self.replicas)
        name = names[number % len(names)]
        if what == "look":
            await self.look(self.replicas[name])
        elif what == "pass":
            self.clock.advance(number)
        elif what == "delete":
            await self.context.client.delete(SECRETS, SECRET_NAME, NAMESPACE)
        elif what == "empty":
            answer = await self.context.client.patch(SECRETS, SECRET_NAME, {"data": None}, NAMESPACE, kind="merge")
            assert not isinstance(answer, ApiError) or answer.not_found
        elif what == "restart":  # the process is new, the pod is the same
            self.replicas[name] = Replica(self.context, name)
        elif what == "leave":
            unwrap(await self.context.client.delete(PODS, name, NAMESPACE, grace_seconds=0))
            del self.replicas[name]
            await self.join()

    async def look(self, replica: Replica) -> None:
        before = replica.identity.material.ca_cert
        await replica.look()
        self.bundles.append((self.clock.monotonic(), await bundle(self.context.client)))
        after = replica.identity.material.ca_cert
        if before and after != before:
            self.check_adoption(after)

    def check_adoption(self, authority: bytes) -> None:
        """What is newly served was trusted by every configuration of the last seconds, and by one from before them."""
        since = self.clock.monotonic() - SETTLE_S
        recent = [pem for moment, pem in self.bundles if moment > since]
        earlier = [pem for moment, pem in self.bundles if moment <= since][-1:]
        assert earlier, "served at once"
        assert all(authority in pem for pem in (*earlier, *recent))

    async def check(self) -> None:
        trusted = await bundle(self.context.client)
        for replica in self.replicas.values():
            assert replica.identity.material.ca_cert in trusted, replica.name


async def play(steps: list[tuple[str, int]]) -> None:
    async with cluster_context() as context:
        history = History(context)
        for _ in range(2):
            await history.join()
        await history.look(history.replicas["r1"])
        for what, number in steps:
            await history.step(what, number)
            await history.check()
        for _ in range(4):  # left alone, all end with one certificate and one authority
            for replica in list(history.replicas.values()):
                await history.look(replica)
                await history.check()
            history.clock.advance(700)
        served = {replica.identity.material for replica in history.replicas.values()}
        assert len(served) == 1
        assert await bundle(context.client) == next(iter(served)).ca_cert


@settings(max_examples=8, deadline=None)
@given(st.lists(STEPS, min_size=4, max_size=14))
def test_every_replica_is_trusted_at_every_moment(steps: list[tuple[str, int]]) -> None:
    asyncio.run(play(steps))
