"""Any events in any order leave the gang cache equal to one built from the present objects."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koord.scheduler.plugins.coscheduling.gang_cache import GangCache
from koord.scheduler.plugins.coscheduling.gang_spec import GangMember, GangSpec
from tests.soak_budget import soak_events, soak_runs

GANGS = tuple(f"ns/{letter}" for letter in "abc")
UIDS = tuple(f"p{number}" for number in range(7))


def stated(group: tuple[str, ...], minimum: int) -> GangSpec:
    return GangSpec(min_members=minimum, total_members=minimum, gang_group=group)


said = st.none() | st.builds(stated, st.sampled_from([(), ("ns/b",), ("ns/b", "ns/c"), ("ns/x",)]), st.integers(0, 3))


def of_gang(settings_: GangSpec | None, gang: str) -> GangSpec | None:
    """Every gang is in its own group."""
    if settings_ is None:
        return None
    return stated(tuple(sorted({gang, *settings_.gang_group})), settings_.min_members)


pods = st.fixed_dictionaries(
    {
        "gang": st.sampled_from(GANGS),
        "names_pod_group": st.booleans(),
        "spec": said,
        "node": st.sampled_from(["", "", "", "n"]),
        "is_schedulable": st.sampled_from([True, True, True, False]),
        "ended": st.sampled_from([False, False, False, True]),
        "created": st.integers(0, 3).map(float),
    }
)


def picture(gangs: GangCache) -> dict[str, Any]:
    """Return all state that does not depend on this scheduler's own actions."""
    return {
        "gangs": {
            g.id: (g.spec, g.spec_author, sorted(g.members), sorted([*g.held, *g.deleting]), g.collected_members)
            for g in gangs.gangs.values()
        },
        "groups": {g.id: (g.gangs, g.ready, g.joined_gangs) for g in gangs.groups.values()},
    }


class Register(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.gangs = GangCache()
        self.live: dict[str, GangMember] = {}
        self.pod_groups: dict[str, GangSpec] = {}

    @rule(uid=st.sampled_from(UIDS), how=pods)
    def pod_is_seen(self, uid: str, how: dict[str, Any]) -> None:
        before = self.live.get(uid)
        if before is not None and before.node:  # nobody loses a node that the server has shown
            how = {**how, "node": before.node, "gang": before.gang}
        if before is not None and before.ended:
            how = {**how, "ended": True}
        how = {**how, "spec": of_gang(how["spec"], how["gang"])}
        member = GangMember(uid=uid, key=f"ns/{uid}", **how)
        self.live[uid] = member
        self._hear(self.gangs.update_member(member))

    @rule(uid=st.sampled_from(UIDS))
    def pod_is_gone(self, uid: str) -> None:
        self.live.pop(uid, None)
        self._hear(self.gangs.remove_member(uid))

    @rule(gang=st.sampled_from(GANGS), settings_=said)
    def pod_group_is_seen(self, gang: str, settings_: GangSpec | None) -> None:
        settings_ = of_gang(settings_, gang)
        if settings_ is None:
            self.pod_groups.pop(gang, None)
        else:
            self.pod_groups[gang] = settings_
        self._hear(self.gangs.update_pod_group(gang, settings_))

    @rule(uid=st.sampled_from(UIDS))
    def member_waits(self, uid: str) -> None:
        gang = self.gangs.gang_of_pod(uid)
        pending = gang is not None and uid in gang.pending
        assert self.gangs.mark_waiting(uid, "n") is pending

    @rule(uid=st.sampled_from(UIDS))
    def member_gives_back(self, uid: str) -> None:
        self.gangs.mark_pending(uid)

    @rule(uid=st.sampled_from(UIDS))
    def member_is_bound(self, uid: str) -> None:
        gang = self.gangs.gang_of_pod(uid)
        if gang is not None and uid in gang.waiting:
            self._hear(self.gangs.mark_bound(uid, "n"))
            self.live[uid] = GangMember(
                **{f: getattr(self.live[uid], f) for f in GangMember.__struct_fields__} | {"node": "n"}
            )

    @rule(uid=st.sampled_from(UIDS))
    def member_queues_for_all(self, uid: str) -> None:
        gang = self.gangs.gang_of_pod(uid)
        if gang is not None and uid in gang.pending:
            self.gangs.group_of_gang(gang).representative = uid

    def _hear(self, news: Any) -> None:
        for item in news:
            group = self.gangs.groups.get(item.group)
            if group is not None and item.what == "ready":
                assert group.ready

    @invariant()
    def it_equals_one_made_anew(self) -> None:
        fresh = GangCache()
        for gang, settings_ in reversed(self.pod_groups.items()):
            fresh.update_pod_group(gang, settings_)
        for member in reversed(self.live.values()):
            fresh.update_member(member)
        assert picture(self.gangs) == picture(fresh)
        for group in fresh.groups.values():
            assert not group.satisfied or self.gangs.groups[group.id].satisfied, "what has started has started"

    @invariant()
    def every_member_is_in_one_place(self) -> None:
        for gang in self.gangs.gangs.values():
            places = [*gang.pending, *gang.held, *gang.waiting, *gang.bound]
            living = [uid for uid, member in gang.members.items() if not member.ended]
            assert sorted(places) == sorted(living)
            assert gang.deleting <= gang.waiting.keys()
            assert gang.members or gang.pod_group is not None, "nothing is kept of a gang that is gone"
        for group in self.gangs.groups.values():
            if group.representative:
                speaks_for = self.gangs.gang_of_pod(group.representative)
                assert speaks_for is not None
                assert group.representative in speaks_for.pending
                assert self.gangs.group_of_gang(speaks_for) is group


TestRegister = Register.TestCase
TestRegister.settings = settings(max_examples=soak_runs(60, 50), stateful_step_count=50, deadline=None)


# A long life in one piece --------------------------------------------------------------------------------------------

LOOK = 20  # events between two comparisons with a register made anew; where everyone is, is looked at each time


def some_settings(chance: random.Random) -> GangSpec | None:
    group = chance.choice([(), ("ns/b",), ("ns/b", "ns/c"), ("ns/x",)])
    return None if chance.random() < 0.3 else stated(group, chance.randrange(4))


def some_pod(chance: random.Random) -> dict[str, Any]:
    return {
        "gang": chance.choice(GANGS),
        "names_pod_group": chance.random() < 0.5,
        "spec": some_settings(chance),
        "node": chance.choice(["", "", "", "n"]),
        "is_schedulable": chance.random() < 0.75,
        "ended": chance.random() < 0.25,
        "created": float(chance.randrange(4)),
    }


def test_a_long_life_of_gangs() -> None:
    """Bound and ended pods stay so, so they are taken away often enough that there is always something going on."""
    chance, machine = random.Random(20), Register()
    for number in range(soak_events(100_000)):
        uid, pick = chance.choice(UIDS), chance.random()
        if pick < 0.3:
            machine.pod_is_seen(uid, some_pod(chance))
        elif pick < 0.45:
            machine.pod_is_gone(uid)
        elif pick < 0.55:
            machine.pod_group_is_seen(chance.choice(GANGS), some_settings(chance))
        elif pick < 0.75:
            machine.member_waits(uid)
        elif pick < 0.82:
            machine.member_gives_back(uid)
        elif pick < 0.92:
            machine.member_is_bound(uid)
        else:
            machine.member_queues_for_all(uid)
        machine.every_member_is_in_one_place()
        if number % LOOK == 0:
            machine.it_equals_one_made_anew()
    machine.it_equals_one_made_anew()
