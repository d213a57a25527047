"""What came of attempts is written to the log for who asked, in the forms that Koordinator's users know."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from koord.scheduler.explain import http
from koord.scheduler.framework.decision import AttemptError, ChosenNode, NodeRejections, ScoredNode, Unschedulable
from koord.scheduler.framework.verdict import reject, unresolvable
from koord.scheduler.scheduler_monitor import AttemptDump, diagnosis, filter_lines, score_table
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.http_routing import HttpCall
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.faulty_cluster import faulty_cluster

CHOSEN = ChosenNode("n1", 2, 150, {"Fit": 100, "Load": 50}, (ScoredNode("n2", 90, {"Fit": 90}),))
NONE_FITS = Unschedulable(
    14,
    (
        NodeRejections("Fit", reject("Insufficient cpu"), 12, ("n1", "n2")),
        NodeRejections("Affinity", unresolvable("did not match"), 2, ("n3", "n4")),
    ),
    post_filter="preemption: no",
)


def test_scores_are_a_table_of_the_best_nodes() -> None:
    assert score_table("default/a", CHOSEN, 5).splitlines() == [
        "| # | Pod | Node | Score | Fit | Load |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| 0 | default/a | n1 | 150 | 100 | 50 |",
        "| 1 | default/a | n2 | 90 | 90 | 0 |",
    ]
    assert len(score_table("default/a", CHOSEN, 1).splitlines()) == 3


def test_rejections_are_told_node_by_node_as_far_as_names_are_kept() -> None:
    assert filter_lines("default/a", NONE_FITS) == [
        'Failed to filter for Pod "default/a" on Node "n1", failedPlugin: Fit, reason: Insufficient cpu',
        'Failed to filter for Pod "default/a" on Node "n2", failedPlugin: Fit, reason: Insufficient cpu',
        'Failed to filter for Pod "default/a" on 10 more nodes, failedPlugin: Fit, reason: Insufficient cpu',
        'Failed to filter for Pod "default/a" on Node "n3", failedPlugin: Affinity, reason: did not match',
        'Failed to filter for Pod "default/a" on Node "n4", failedPlugin: Affinity, reason: did not match',
    ]


def test_a_diagnosis_has_the_keys_of_koordinator() -> None:
    labels = {"scheduling.koordinator.sh/topology-key-to-explain": "zone"}
    pod = make_state([make_node("n1")]).pod_info(make_pod("a", labels=labels))
    found = diagnosis(pod, NONE_FITS, 0.0)
    assert (found["questionedKey"], found["topologyKeyToExplain"], found["timestamp"]) == (
        pod.key,
        "zone",
        "1970-01-01T00:00:00Z",
    )
    assert [
        (one["failedPlugin"], one["preemptMightHelp"]) for one in found["scheduleDiagnosis"]["nodeFailedDetails"]
    ] == [
        ("Affinity", False),
        ("Fit", True),
    ]
    assert found["preemptionDiagnosis"] == {"failedMessage": "preemption: no"}
    assert diagnosis(pod, AttemptError("X", "broken"), 0.0)["failedMessage"] == "broken"


@pytest.mark.parametrize(
    ("put", "text", "answer"),
    [
        ("put_top_scores", "100", "successfully set debugTopNScores to 100"),
        ("put_filters", "true\n", "successfully set debugFilterFailure to true"),
        ("put_diagnosis", "false", "successfully set debugDiagnosis to false"),
        ("put_blocking", "true", "successfully set debugDiagnosisBlocking to true"),
    ],
)
def test_flags_are_changed_while_it_runs(put: str, text: str, answer: str) -> None:
    assert getattr(AttemptDump(), put)(text) == answer


@pytest.mark.parametrize(
    ("put", "text"),
    [("put_top_scores", "many"), ("put_top_scores", "-1"), ("put_filters", "yes"), ("put_blocking", "false")],
)
def test_a_value_that_cannot_be_is_refused(put: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot be"):
        getattr(AttemptDump(), put)(text)


def test_a_running_scheduler_writes_what_is_switched_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            dump = world.scheduler.dump
            dump.put_top_scores("2")
            dump.put_filters("true")
            dump.put_diagnosis("true")
            for number in range(3):
                await world.add_node(f"n{number}")
            await world.add_pod("fits")
            await world.add_pod("large", cpu="100")
            await clock.sleep(5)
            load: Any = dict(http.explain_routes(world.scheduler, clock))[http.LOAD_PATH]
            call = HttpCall(method="GET", path="/", parameters={"nodeName": await world.node_of("fits")})
            assert json.loads(load(call).body)["nodeEstimatedPods"] == ["default/fits"]
            gone = HttpCall(method="GET", path="/", parameters={"nodeName": "gone"})
            assert json.loads(load(gone).body) == {}

    with caplog.at_level(logging.INFO, "koord.scheduler.scheduler_monitor"):
        run_virtual(main)
    said = [record.getMessage() for record in caplog.records if record.name == "koord.scheduler.scheduler_monitor"]
    (table,) = [line for line in said if line.startswith("scores of default/fits")]
    assert len(table.splitlines()) == 1 + 2 + 2
    assert 'Failed to filter for Pod "default/large" on Node "n0"' in "\n".join(said)
    (dumped,) = [line for line in said if line.startswith("dump diagnosis: ")]
    assert json.loads(dumped.partition(": ")[2])["questionedKey"] == "default/large"
