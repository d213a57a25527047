"""The phase of a PodGroup is a function of its members."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.sigs_scheduling import PodGroupStatus
from koord.scheduler.plugins.coscheduling.controller import MemberPhase, pod_group_phase, pod_group_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def members(text: str) -> list[MemberPhase]:
    """P: pending, B: bound and still pending, R: running, S: succeeded, F: failed."""
    phases = {"P": "Pending", "B": "Pending", "R": "Running", "S": "Succeeded", "F": "Failed"}
    return [MemberPhase(phases[letter], letter != "P") for letter in text]


@pytest.mark.parametrize(
    ("minimum", "who", "phase"),
    [
        pytest.param(2, "", "Pending", id="nobody"),
        pytest.param(3, "PP", "Pending", id="too-few"),
        pytest.param(0, "PPP", "Pending", id="no-minimum"),
        pytest.param(3, "PPP", "Scheduling", id="all-there"),
        pytest.param(3, "BBP", "Scheduling", id="bound-in-part"),
        pytest.param(3, "RR", "Scheduling", id="one-was-lost"),
        pytest.param(2, "BB", "Scheduled", id="bound"),
        pytest.param(2, "BBP", "Scheduled", id="more-than-the-minimum-R15"),
        pytest.param(2, "RB", "Scheduled", id="not-all-run"),
        pytest.param(2, "RRP", "Running", id="running-R15"),
        pytest.param(2, "RS", "Running", id="one-is-done"),
        pytest.param(2, "FF", "Failed", id="all-failed"),
        pytest.param(2, "RF", "Failed", id="one-failed"),
        pytest.param(3, "FB", "Scheduling", id="one-failed-too-few-ended-or-run"),
        pytest.param(2, "SS", "Finished", id="done"),
        pytest.param(2, "SSF", "Finished", id="enough-are-done"),
    ],
)
def test_phase(minimum: int, who: str, phase: str) -> None:
    assert pod_group_phase(minimum, members(who)) == phase


@given(st.text("PBRSF", max_size=8), st.integers(0, 5), st.text("PBRSF", max_size=8))
def test_the_past_has_no_part_in_it_while_members_live_R15(who: str, minimum: int, earlier: str) -> None:
    if all(letter in "SF" for letter in who):
        who += "R"
    fresh = pod_group_status(PodGroupStatus(), minimum, members(who), NOW)
    past = pod_group_status(PodGroupStatus(), minimum, members(earlier), NOW)
    assert pod_group_status(past, minimum, members(who), NOW).phase == fresh.phase
    assert pod_group_status(fresh, minimum, members(who), NOW + timedelta(hours=1)) == fresh, (
        "once written it is settled"
    )


def test_an_end_stays_when_its_pods_are_cleaned_up_and_is_over_when_new_ones_come() -> None:
    done = pod_group_status(PodGroupStatus(), 2, members("SS"), NOW)
    assert pod_group_status(done, 2, [], NOW) == done
    assert pod_group_status(done, 2, members("S"), NOW) == done
    assert pod_group_status(done, 2, members("PP"), NOW).phase == "Scheduling"


def test_owners_and_the_start_are_noted() -> None:
    two = [MemberPhase("Pending", False, "ns/b"), MemberPhase("Pending", False, "ns/a")]
    status = pod_group_status(PodGroupStatus(), 2, two, NOW)
    assert (status.occupied_by, status.schedule_start_time) == ("ns/a,ns/b", NOW)
    assert pod_group_status(status, 2, [], NOW).schedule_start_time is None
