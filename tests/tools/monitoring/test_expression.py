"""Expressions are read well enough to find a metric or label that does not exist."""

from __future__ import annotations

import pytest

from tools.monitoring.expression import Selector, faults, selectors

KNOWN = {
    "requests_total": frozenset({"code", "verb"}),
    "seconds_bucket": frozenset({"le", "verb"}),
    "pods": frozenset({"node"}),
    "koordlet_writes": frozenset({"type"}),
    "rule:ratio": frozenset({"node"}),
}


def test_selectors_are_found_with_the_labels_that_they_match() -> None:
    text = (
        'sum by (verb) (rate(requests_total{code=~"5..|by (x)",verb!="get"}[5m])) / on (verb) group_left () pods > 0.5'
    )
    assert list(selectors(text)) == [
        Selector("requests_total", frozenset({"code", "verb"})),
        Selector("pods", frozenset()),
    ]


@pytest.mark.parametrize(
    "expression",
    [
        'sum by (code) (rate(requests_total{verb="get"}[5m])) > 0',
        "histogram_quantile(0.99, sum by (le, verb) (rate(seconds_bucket[10m]))) > 1e3",
        "count(time() - max by (node) (pods) > 300) or vector(0)",
        "avg_over_time(rule:ratio[1d]) > 2 * rule:ratio unless on (node) pods",
        'pods{job="a",instance="b"} offset 1h',
        "sum by (node, type) (koordlet_writes)",
        "-1 * pods",
    ],
)
def test_what_exists_has_no_fault(expression: str) -> None:
    assert faults(expression, KNOWN) == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(request_total[5m])", "no metric request_total"),
        ('requests_total{status="500"}', "requests_total has no label status"),
        ("sum by (verb, reason) (rate(requests_total[5m]))", "requests_total has no label reason, named by `by`"),
        ("sum by (node) (requests_total)", "requests_total has no label node, named by `by`"),
        ("pods and on (verb) requests_total", "pods has no label verb, named by `on`"),
        ("max by (node) (rule:ratios)", "no metric rule:ratios"),
        (
            "histogram_quantile(0.9, sum by (le) (rate(requests_total[5m])))",
            "requests_total has no label le, named by `by`",
        ),
    ],
)
def test_what_does_not_exist_is_named(expression: str, fault: str) -> None:
    assert fault in faults(expression, KNOWN)
