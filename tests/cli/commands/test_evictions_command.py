"""`koord evictions`: which records are merged and shown, the table and its wide form, and the command itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from koord.cli.commands.evictions import merge_records, print_evictions, select_records
from koord.cli.main import cli
from koord.cli.printing import make_console
from koord.policy.eviction import EVICTED, REFUSED, EvictionRecord
from tests.koord_up_process import koord_up

AT = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
NOON_S = 1767225600.0  # an hour before AT


def record(name: str, after_s: float = 0.0, **more: Any) -> EvictionRecord:
    fields = {"actor": "koordlet", "rule": "BEMemoryEvict", "namespace": "default", "uid": f"uid-{name}", **more}
    return EvictionRecord(name=name, **fields).concluded(NOON_S + after_s, EVICTED)


def printed(records: list[EvictionRecord], silent: tuple[str, ...] = (), **how: bool) -> list[list[str]]:
    out = make_console()
    with out.capture() as captured:
        print_evictions(out, records, silent, AT, **{"namespaces": False, "wide": False, **how})
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in captured.get().splitlines()]


def test_the_table_names_pod_actor_rule_and_outcome() -> None:
    refused = record("b", 3000, node="n2", actor="koord-descheduler", rule="LowNodeLoad", count=4).concluded(
        NOON_S + 3000, REFUSED, "the disruption budget web needs 2"
    )
    assert printed([refused, record("a", node="n1")], ("koord-scheduler: away",)) == [
        ["WHEN", "POD", "NODE", "ACTOR", "RULE", "OUTCOME"],
        ["10m ago", "b", "n2", "koord-descheduler", "LowNodeLoad", "refused x4"],
        ["1h ago", "a", "n1", "koordlet", "BEMemoryEvict", "evicted"],
        ["not asked: koord-scheduler: away"],
    ]


def test_wide_adds_the_numbers_and_all_namespaces_the_namespace() -> None:
    one = record("a", node="n1", measured="12 of 16", threshold="70%", rank="1 of 3", request="Pod default/x")
    header, row = printed([one], namespaces=True, wide=True)
    assert header == [
        *("WHEN", "NAMESPACE", "POD", "NODE", "ACTOR", "RULE", "OUTCOME"),
        *("MEASURED", "THRESHOLD", "RANK", "FOR"),
    ]
    assert row[1:3] == ["default", "a"]
    assert row[-4:] == ["12 of 16", "70%", "1 of 3", "Pod default/x"]


def test_nothing_is_said_to_be_nothing() -> None:
    assert printed([]) == [["No evictions found."]]


def test_an_event_and_a_ledger_that_tell_of_one_eviction_are_one() -> None:
    first, again = record("a", 0, measured="1"), record("a", 60, measured="2", count=3)
    other = record("b", 30)
    found = merge_records([again, other, first, other])
    assert [(one.name, one.measured, one.count) for one in found] == [("a", "2", 3), ("b", "", 1)]


@pytest.mark.parametrize(
    ("actor", "within_s", "names"),
    [("", None, ["a", "b"]), ("koordlet", None, ["a"]), ("", 1800, ["b"]), ("koordlet", 1800, [])],
)
def test_selection_by_actor_and_age(actor: str, within_s: float | None, names: list[str]) -> None:
    records = [record("a"), record("b", 3000, actor="koord-scheduler")]
    assert [one.name for one in select_records(records, actor=actor, within_s=within_s, at=AT)] == names


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-n", "x", "-A"), "koord: -n and -A exclude each other\n"),
        (("--since", "soon"), 'koord: --since soon: time: invalid duration "soon"\n'),
    ],
    ids=["two-scopes", "no-duration"],
)
def test_contradictions_are_refused(args: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["evictions", *args])
    assert (done.exit_code, done.stderr) == (1, said)


def test_against_a_cluster_without_evictions() -> None:
    with koord_up("--nodes", "1") as running:
        for args, shown in (((), "No evictions found.\n"), (("-o", "json"), "[]\n"), (("-A", "--since", "1h"), None)):
            done = CliRunner().invoke(cli, ["evictions", *args, "--kubeconfig", str(running.kubeconfig)])
            assert done.exit_code == 0, done.stderr
            assert shown is None or done.stdout == shown
        done = CliRunner().invoke(cli, ["explain", "eviction", "default/x", "--kubeconfig", str(running.kubeconfig)])
        assert (done.exit_code, done.stderr) == (1, "koord: nobody tells of an eviction of default/x\n")
