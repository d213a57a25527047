"""A round picks the next member, releases waiting members, and detects when it cannot succeed any more."""

from __future__ import annotations

import pytest

from koord.scheduler.plugins.coscheduling import messages
from koord.scheduler.plugins.coscheduling.gang_cache import GangCache
from koord.scheduler.plugins.coscheduling.gang_manager import GangRound, can_release_group, can_succeed
from koord.scheduler.plugins.coscheduling.gang_spec import GangDefaults, GangMember, GangSpec

DEFAULTS = GangDefaults()


def gangs_of(**gangs: tuple[int, int, int, int, str]) -> GangCache:
    """Build gangs of one group. Per gang: minimum, pending, waiting, bound, policy."""
    found = GangCache()
    group = tuple(f"ns/{name}" for name in sorted(gangs))
    for name, (minimum, pending, waiting, bound, policy) in gangs.items():
        settings = GangSpec(min_members=minimum, total_members=minimum, match_policy=policy or None, gang_group=group)
        found.update_pod_group(f"ns/{name}", settings)
        for number in range(pending + waiting + bound):
            uid = f"{name}{number}"
            node = "n" if number < bound else ""
            found.update_member(
                GangMember(uid=uid, key=f"ns/{uid}", gang=f"ns/{name}", names_pod_group=True, node=node)
            )
            if bound <= number < bound + waiting:
                found.mark_waiting(uid, "n")
    return found


@pytest.mark.parametrize(
    ("gangs", "go"),
    [
        pytest.param({"g": (3, 0, 2, 0, "")}, False, id="two-of-three"),
        pytest.param({"g": (3, 0, 3, 0, "")}, True, id="three-of-three"),
        pytest.param({"g": (3, 0, 1, 1, "")}, True, id="once-satisfied"),
        pytest.param({"g": (3, 0, 1, 1, "only-waiting")}, False, id="only-waiting-forgets-the-bound"),
        pytest.param({"g": (3, 0, 2, 1, "waiting-and-running")}, True, id="waiting-and-running"),
        pytest.param({"g": (3, 0, 2, 1, "only-waiting")}, False, id="only-waiting"),
        pytest.param({"c": (2, 0, 2, 0, ""), "d": (2, 1, 1, 0, "")}, False, id="one-gang-of-the-group-short"),
        pytest.param({"e": (2, 0, 2, 0, ""), "f": (3, 0, 3, 0, "")}, True, id="both-gangs-enough"),
    ],
)
def test_those_who_wait_may_go(gangs: dict[str, tuple[int, int, int, int, str]], go: bool) -> None:
    found = gangs_of(**gangs)
    (group,) = found.groups.values()
    assert can_release_group(found, group, DEFAULTS) is go


@pytest.mark.parametrize(
    ("gangs", "tried", "can"),
    [
        pytest.param({"g": (3, 1, 2, 0, "")}, {"g2"}, False, id="the-last-needed-does-not-fit"),
        pytest.param({"g": (3, 2, 2, 0, "")}, {"g2"}, True, id="another-may"),
        pytest.param({"g": (3, 3, 0, 0, "")}, {"g0"}, False, id="the-first-does-not-fit"),
        pytest.param({"g": (2, 2, 0, 1, "waiting-and-running")}, {"g1"}, True, id="bound-ones-help"),
        pytest.param({"a": (2, 0, 2, 0, ""), "b": (1, 1, 0, 0, "")}, {"b0"}, False, id="the-partner-is-lost"),
    ],
)
def test_a_round_goes_on_only_while_it_can_succeed(
    gangs: dict[str, tuple[int, int, int, int, str]], tried: set[str], can: bool
) -> None:
    found = gangs_of(**gangs)
    (group,) = found.groups.values()
    round_ = GangRound(group.id, "nobody")
    round_.attempted |= tried
    assert can_succeed(found, group, round_, DEFAULTS) is can


def test_members_are_tried_gang_by_gang_in_order_of_index_then_name() -> None:
    gangs = GangCache()
    group = ("ns/a", "ns/b")
    for gang, name, index in (("b", "x", None), ("a", "z", 2), ("a", "y", 10), ("a", "w", None), ("b", "v", 0)):
        stated = GangSpec(min_members=1, total_members=1, gang_group=group)
        gangs.update_member(GangMember(uid=name, key=f"ns/{name}", gang=f"ns/{gang}", spec=stated, index=index))
    (held,) = gangs.groups.values()
    round_ = GangRound(held.id, "z")
    line = [round_.next_member(gangs) for _ in range(3)]
    gangs.update_member(
        GangMember(
            uid="late", key="ns/late", gang="ns/a", spec=GangSpec(min_members=1, total_members=1, gang_group=group)
        )
    )
    assert [*line, round_.next_member(gangs), round_.next_member(gangs), round_.next_member(gangs)] == [
        "y",
        "w",
        "v",
        "x",
        "late",
        None,
    ]


def test_nobody_is_next_in_a_group_that_is_gone() -> None:
    assert GangRound("ns/g", "a").next_member(GangCache()) is None


def test_words_for_what_is_missing() -> None:
    gangs = GangCache()
    group = ("ns/a", "ns/b", "ns/c")
    gangs.update_member(
        GangMember(uid="p", key="ns/p", gang="ns/a", spec=GangSpec(min_members=2, total_members=2, gang_group=group))
    )
    gangs.update_member(GangMember(uid="q", key="ns/q", gang="ns/b", names_pod_group=True))
    gang = gangs.gangs["ns/a"]
    assert messages.group_incomplete(gangs, gangs.group_of_gang(gang), gang, "ns/p") == (
        "gangGroup [ns/a ns/b ns/c] basic check: memberGangs [ns/c] doesn't exists, memberGangs [ns/b] has not init, "
        "memberGangs [ns/a ns/b ns/c] child pod not collect enough, current gang: ns/a, podName: ns/p"
    )
    assert messages.group_rejected("ns/a", "ns/p", 'no "x"', 3) == (
        'GangGroup "ns/a" gets rejected due to member Pod "ns/p" is unschedulable with reason "no \\"x\\"", '
        "alreadyWaitForBound: 3"
    )
