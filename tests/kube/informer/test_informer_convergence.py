"""For any story of writes and failures, the informer ends where the server is, and its handlers saw a way there."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.kube.transport.interface import Unreachable
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted_server import THINGS, ScriptedServer, Thing, api_response, failure_status

State = dict[tuple[str, str], tuple[str, str]]


def shown(things: list[Thing]) -> State:
    return {(t.metadata.namespace, t.metadata.name): (t.metadata.uid, t.metadata.resource_version) for t in things}


class Replayer:
    """Rebuilds the state from changes alone, and refuses a change that does not follow from what it was told before."""

    def __init__(self, informer: Informer[Thing]) -> None:
        self.things: dict[tuple[str, str], Thing] = {}
        self.began_full = informer.has_synced
        self.ended_initial = False
        self.tombstones = 0
        self._informer = informer

    def __call__(self, change: ObjectChange[Thing]) -> None:
        key = (change.object.metadata.namespace, change.object.metadata.name)
        known = self.things.get(key)
        if change.initial:
            assert change.kind == "added"
            assert not self.ended_initial, "an initial add after something else"
        else:
            self.ended_initial = True
        if change.kind == "added":
            assert known is None
            assert change.old is None
            self.things[key] = change.object
            return
        assert known is not None
        assert change.old is known
        assert change.object.metadata.uid == known.metadata.uid
        self.tombstones += change.final_unknown
        if change.kind == "updated":
            assert self._informer.get(*key) is not None
            self.things[key] = change.object
        else:
            assert not change.final_unknown or change.object is known
            del self.things[key]

    def state(self) -> State:
        return shown(list(self.things.values()))


names = st.sampled_from(["a", "b", "c", "d"])
steps = st.one_of(
    st.tuples(st.just("create"), names),
    st.tuples(st.just("update"), names),
    st.tuples(st.just("update"), names),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("recreate"), names),
    st.tuples(st.sampled_from(["bookmark", "cut", "end", "compact", "expire", "internal", "handler"])),
    st.tuples(st.sampled_from(["down", "up", "refuse-list", "refuse-watch", "lose-watch"])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.0, 0.1, 3.0, 40.0, 700.0])),
)


def act(server: ScriptedServer, informer: Informer[Thing], handlers: list[Replayer], step: tuple[Any, ...]) -> None:
    match step:
        case ("create", name) if ("ns", name) not in server.state():
            server.create("ns", name)
        case ("update", name) if ("ns", name) in server.state():
            server.update("ns", name)
        case ("delete", name) if ("ns", name) in server.state():
            server.delete("ns", name)
        case ("recreate", name) if ("ns", name) in server.state():
            server.delete("ns", name)
            server.create("ns", name)
        case ("bookmark",):
            server.bookmark()
        case ("cut",):
            server.cut(clean=False)
        case ("end",):
            server.cut(clean=True)
        case ("compact",):
            server.compact()
        case ("expire",):
            server.compact()
            server.error(410, "Expired")
        case ("internal",):
            server.error(500, "InternalError")
        case ("down",):
            server.down = True
            server.cut(clean=False)
        case ("up",):
            server.down = False
        case ("refuse-list",):
            server.faults.append(api_response(403, failure_status(403, "Forbidden")))
        case ("refuse-watch",):
            server.watch_faults.append(api_response(404, failure_status(404, "NotFound")))
        case ("lose-watch",):
            server.watch_faults.append(Unreachable("reset"))
        case ("handler",):
            handlers.append(Replayer(informer))
            informer.add_event_handler(handlers[-1])


@settings(max_examples=250, deadline=None)
@given(script=st.lists(steps, max_size=40), seed=st.integers(0, 9))
def test_cache_and_handlers_end_where_the_server_is(script: list[tuple[Any, ...]], seed: int) -> None:
    async def scenario(clock: LoopClock) -> None:
        server = ScriptedServer()
        server.create("ns", "a")
        async with InformerFactory(Client(server, clock=clock, burst=0), clock, seed=seed) as informers:
            informer = informers.for_resource(THINGS)
            informer.add_index("uid", lambda thing: [thing.metadata.uid])
            handlers = [Replayer(informer)]
            informer.add_event_handler(handlers[0])
            for step in script:
                act(server, informer, handlers, step)
                if step[0] == "wait":
                    await asyncio.sleep(step[1])
                for handler in handlers:
                    assert handler.state() == shown(informer.list())
            server.down = False
            server.faults.clear()
            server.watch_faults.clear()
            await asyncio.sleep(1000)
            assert informer.has_synced
            assert shown(informer.list()) == server.state()
            assert informer.handler_errors == 0
            for handler in handlers:
                assert handler.state() == server.state()
            uids = {uid for uid, _ in server.state().values()}
            assert set(informer.index_values("uid")) == uids
            assert all(len(informer.by_index("uid", uid)) == 1 for uid in uids)
            assert len(informer) == len(uids)
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"
        assert not server.streams, "a watch was left open"

    run_virtual(scenario)
