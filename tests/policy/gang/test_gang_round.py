"""A round picks the next member, releases waiting members, and detects when it cannot succeed any more."""

from __future__ import annotations

import pytest

from koord.policy.gang import wording
from koord.policy.gang.declaration import Defaults, Member, Settings
from koord.policy.gang.register import Gangs
from koord.policy.gang.round import Round, can_succeed, may_go

DEFAULTS = Defaults()


def gangs_of(**gangs: tuple[int, int, int, int, str]) -> Gangs:
    """Build gangs of one group. Per gang: minimum, pending, waiting, bound, policy."""
    found = Gangs()
    group = tuple(f"ns/{name}" for name in sorted(gangs))
    for name, (minimum, pending, waiting, bound, policy) in gangs.items():
        settings = Settings(minimum=minimum, total=minimum, policy=policy or None, group=group)
        found.pod_group(f"ns/{name}", settings)
        for number in range(pending + waiting + bound):
            uid = f"{name}{number}"
            node = "n" if number < bound else ""
            found.seen(Member(uid=uid, key=f"ns/{uid}", gang=f"ns/{name}", labelled=True, node=node))
            if bound <= number < bound + waiting:
                found.hold(uid, "n")
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
    assert may_go(found, group, DEFAULTS) is go


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
    round_ = Round(group.id, "nobody")
    round_.attempted |= tried
    assert can_succeed(found, group, round_, DEFAULTS) is can


def test_members_are_tried_gang_by_gang_in_order_of_index_then_name() -> None:
    gangs = Gangs()
    group = ("ns/a", "ns/b")
    for gang, name, index in (("b", "x", None), ("a", "z", 2), ("a", "y", 10), ("a", "w", None), ("b", "v", 0)):
        stated = Settings(minimum=1, total=1, group=group)
        gangs.seen(Member(uid=name, key=f"ns/{name}", gang=f"ns/{gang}", stated=stated, index=index))
    (held,) = gangs.groups.values()
    round_ = Round(held.id, "z")
    line = [round_.next(gangs) for _ in range(3)]
    gangs.seen(Member(uid="late", key="ns/late", gang="ns/a", stated=Settings(minimum=1, total=1, group=group)))
    assert [*line, round_.next(gangs), round_.next(gangs), round_.next(gangs)] == ["y", "w", "v", "x", "late", None]


def test_nobody_is_next_in_a_group_that_is_gone() -> None:
    assert Round("ns/g", "a").next(Gangs()) is None


def test_words_for_what_is_missing() -> None:
    gangs = Gangs()
    group = ("ns/a", "ns/b", "ns/c")
    gangs.seen(Member(uid="p", key="ns/p", gang="ns/a", stated=Settings(minimum=2, total=2, group=group)))
    gangs.seen(Member(uid="q", key="ns/q", gang="ns/b", labelled=True))
    gang = gangs.gangs["ns/a"]
    assert wording.incomplete(gangs, gangs.group_of(gang), gang, "ns/p") == (
        "gangGroup [ns/a ns/b ns/c] basic check: memberGangs [ns/c] doesn't exists, memberGangs [ns/b] has not init, "
        "memberGangs [ns/a ns/b ns/c] child pod not collect enough, current gang: ns/a, podName: ns/p"
    )
    assert wording.failed("ns/a", "ns/p", 'no "x"', 3) == (
        'GangGroup "ns/a" gets rejected due to member Pod "ns/p" is unschedulable with reason "no \\"x\\"", '
        "alreadyWaitForBound: 3"
    )
