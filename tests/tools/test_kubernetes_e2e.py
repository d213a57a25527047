"""The report of Kubernetes' end-to-end suite is read into results, counts and a page."""

from __future__ import annotations

from typing import Any

from tools.kubernetes_e2e import (
    EXCLUSIONS,
    Exclusion,
    SpecResult,
    merge_results,
    page,
    read_exclusions,
    read_report,
    summary,
)


def spec(name: str, state: str, message: str = "", kind: str = "It") -> dict[str, Any]:
    first, _, rest = name.partition(" ")
    failure = {"Failure": {"Message": message}} if message else {}
    return {
        "ContainerHierarchyTexts": [first],
        "LeafNodeText": rest,
        "LeafNodeType": kind,
        "State": state,
        "RunTime": 2_500_000_000,
        **failure,
    }


REPORT = [
    {
        "SpecReports": [
            spec("[sig-apps] Job works [Conformance]", "passed"),
            spec("[sig-apps] Job breaks", "failed", "\nexpected 1\n  got | 2"),
            spec("[sig-apps] Job is left out by a filter", "skipped"),
            spec("[sig-apps] Job needs a cloud", "skipped", "Only supported for gce"),
            spec("[sig-apps] Webhook calls [Conformance]", "skipped"),
            spec("[sig-apps] Job is cut off", "timedout", "A suite timeout occurred"),
            spec("[sig-node] Pods work", "passed"),
            spec("[sig-apps] suite", "passed", kind="BeforeSuite"),
        ]
    }
]
CANNOT = (Exclusion("Webhook", "no programs run"),)


def test_results_are_those_of_the_chosen_sigs() -> None:
    found = {one.name: (one.outcome, one.why) for one in read_report(REPORT, CANNOT)}
    assert found == {
        "[sig-apps] Job works [Conformance]": ("passed", ""),
        "[sig-apps] Job breaks": ("failed", "expected 1"),
        "[sig-apps] Job is cut off": ("skipped", "the run was over before this spec"),
        "[sig-apps] Job needs a cloud": ("skipped", "Only supported for gce"),
        "[sig-apps] Webhook calls [Conformance]": ("cannot", "no programs run"),
    }


def test_counts_and_page() -> None:
    results = read_report(REPORT, CANNOT)
    told = summary(results, {"nodes": 5})
    assert told["sig-apps"] == {"passed": 1, "failed": 1, "cannot": 1, "skipped": 2}
    assert told["conformance"] == {"passed": 1, "failed": 0, "cannot": 1, "skipped": 0}
    assert told["failures"] == {"[sig-apps] Job breaks": "expected 1"}
    text = page(results, "v1.0")
    assert "| Webhook calls [Conformance] | cannot | no programs run |" in text
    assert "| all | 1 | 1 | 1 | 2 |" in text


def test_a_later_run_of_some_specs_replaces_their_results() -> None:
    old = [SpecResult(name="a", outcome="failed"), SpecResult(name="b", outcome="passed")]
    assert merge_results(old, [SpecResult(name="a", outcome="passed")]) == [
        SpecResult(name="a", outcome="passed"),
        SpecResult(name="b", outcome="passed"),
    ]


def test_the_page_says_when_specs_ran_last() -> None:
    old = [
        SpecResult(name="[sig-apps] a", outcome="failed", taken="2026-01-01"),
        SpecResult(name="[sig-apps] b", outcome="passed", taken="2026-01-01"),
        SpecResult(name="[sig-apps] c", outcome="cannot", why="no programs run", taken="2026-01-01"),
    ]
    merged = merge_results(old, [SpecResult(name="[sig-apps] a", outcome="passed", taken="2026-02-03")])
    assert "Days on which specs were run last: 2026-01-01 (1), 2026-02-03 (1).\n" in page(merged, "v1.0")
    told = {one["name"]: one["taken"] for one in summary(merged, {"nodes": 5})["specs"]}
    assert told == {"[sig-apps] a": "2026-02-03", "[sig-apps] b": "2026-01-01", "[sig-apps] c": "2026-01-01"}


def test_every_exclusion_has_a_reason() -> None:
    rows = read_exclusions(EXCLUSIONS.read_text())
    assert rows
    assert all(row.pattern and row.reason for row in rows)
