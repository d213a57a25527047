"""Gang specs are read from pods and PodGroups."""

from __future__ import annotations

import pytest

from koord.api.koordinator.sigs_scheduling import PodGroup
from koord.api.model import convert
from koord.scheduler.plugins.coscheduling.gang_spec import (
    GangSpec,
    gang_id_of_pod,
    gang_spec_of_pod,
    gang_spec_of_pod_group,
)

LABEL = "pod-group.scheduling.sigs.k8s.io"
GD = "gang.scheduling.koordinator.sh/"


@pytest.mark.parametrize(
    ("labels", "annotations", "gang"),
    [
        pytest.param({}, {}, None, id="no-gang"),
        pytest.param({LABEL: "a", f"{LABEL}/name": "b"}, {f"{GD}name": "c"}, "ns/a", id="the-label-wins"),
        pytest.param({f"{LABEL}/name": "b"}, {f"{GD}name": "c"}, "ns/b", id="then-the-light-label"),
        pytest.param({}, {f"{GD}name": "c"}, "ns/c", id="then-the-annotation"),
    ],
)
def test_the_gang_of_a_pod(labels: dict[str, str], annotations: dict[str, str], gang: str | None) -> None:
    assert gang_id_of_pod("ns", labels, annotations) == gang


@pytest.mark.parametrize(
    ("annotations", "settings"),
    [
        pytest.param({}, None, id="says-nothing"),
        pytest.param({"min-available": "xxx"}, None, id="unreadable-minimum"),
        pytest.param(
            {"min-available": "3"}, GangSpec(min_members=3, total_members=3, gang_group=("ns/g",)), id="minimum-alone"
        ),
        pytest.param(
            {
                "min-available": "2",
                "total-number": "1",
                "mode": "Loose",
                "waiting-time": "soon",
                "groups": "ns/g,ns/x",
                "match-policy": "never",
            },
            GangSpec(min_members=2, total_members=2, gang_group=("ns/g",)),
            id="everything-else-unreadable",
        ),
        pytest.param(
            {
                "min-available": "2",
                "total-number": "5",
                "mode": "NonStrict",
                "waiting-time": "90m",
                "groups": '["ns/x","ns/g"]',
                "match-policy": "only-waiting",
            },
            GangSpec(
                min_members=2,
                total_members=5,
                strict=False,
                match_policy="only-waiting",
                wait_time_s=5400.0,
                gang_group=("ns/g", "ns/x"),
            ),
            id="all-said-and-no-ceiling-on-waiting-R20",
        ),
    ],
)
def test_annotations_of_a_pod(annotations: dict[str, str], settings: GangSpec | None) -> None:
    assert gang_spec_of_pod("ns/g", {}, {f"{GD}{name}": value for name, value in annotations.items()}) == settings


def test_the_light_label_wins_over_the_annotation() -> None:
    found = gang_spec_of_pod("ns/g", {f"{LABEL}/min-available": "4"}, {f"{GD}min-available": "2"})
    assert found is not None
    assert found.min_members == 4


@pytest.mark.parametrize(
    ("seconds", "wait_s"), [(None, None), (0, None), (-5, None), (7200, 7200.0)], ids=["none", "zero", "less", "R20"]
)
def test_a_pod_group_says_how_long_to_wait(seconds: int | None, wait_s: float | None) -> None:
    spec = {"minMember": 3} | ({} if seconds is None else {"scheduleTimeoutSeconds": seconds})
    meta = {"name": "g", "namespace": "ns", "annotations": {f"{GD}groups": '["ns/h","ns/g"]'}}
    settings = gang_spec_of_pod_group(convert({"metadata": meta, "spec": spec}, PodGroup))
    assert settings == GangSpec(min_members=3, total_members=3, wait_time_s=wait_s, gang_group=("ns/g", "ns/h"))
