"""The ledger of one node round-trips through annotations, and its sums are those of live pods."""

from __future__ import annotations

import json

import pytest

from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.scheduler.plugins.node_numa_resource.ledger import (
    IDLE,
    NO_REFERENCES,
    SHARED,
    SINGLE,
    NumaAllocation,
    NumaLedger,
    parse_allocation,
    to_resource_status,
    total_zone_amounts,
)
from koord.values.cpuset import CPUSet
from koord.values.resources import add_keyed_amounts
from tests.scheduler.plugins.node_numa_resource.numa_builders import GI, bits, ledger_from_pods, machine, refcounts_of

STATUS = "scheduling.koordinator.sh/resource-status"
SPEC = "scheduling.koordinator.sh/resource-spec"
TWO = machine(1, 2, 4, 2)


def held(text: str, exclusive: str = "", **zones: int) -> NumaAllocation:
    amounts = {int(name[1:]): {"cpu": cpu} for name, cpu in zones.items()}
    return NumaAllocation(cpus=CPUSet.parse(text), exclusive=exclusive, zones=amounts)


def test_holdings_are_counted() -> None:
    tally = refcounts_of([bits("0-3"), bits("2-5"), bits("3")])
    assert tally.levels == (bits("0-5"), bits("2-3"), bits("3"))
    assert tally.total_references(bits("3,5")) == 4
    assert tally.by_reference_count(2) == (~bits("0-5"), bits("0-1,4-5"))
    assert tally.remove(bits("3,9")).levels == (bits("0-5"), bits("2-3"))
    assert tally.remove(bits("0-5")).remove(bits("0-5")).remove(bits("0-5")) == NO_REFERENCES


def test_pods_come_and_go() -> None:
    empty = NumaLedger.build(TWO)
    one = empty.add("a", held("0-3", z0=4000))
    two = one.add("b", held("2-9", "PCPULevel", z0=1000, z1=3000))
    assert two.refcounts.at_least(2) == bits("2-3")
    assert two.pcpu_exclusive.referenced == bits("2-9")
    assert two.zone_amounts == {0: {"cpu": 5000}, 1: {"cpu": 3000}}
    assert two.remove("b") == one
    assert two.remove("a").remove("b") == empty
    assert one.pods == {"a": held("0-3", z0=4000)}, "a copy leaves the original alone"


def test_adding_again_replaces() -> None:
    ledger = NumaLedger.build(TWO).add("a", held("0-3", z0=4000))
    assert ledger.add("a", held("0-3", z0=4000)) is ledger
    assert ledger.add("a", held("8-9")) == NumaLedger.build(TWO, {"a": held("8-9")})
    assert ledger.add("a", NumaAllocation()) == NumaLedger.build(TWO)


def test_removing_a_stranger_changes_nothing() -> None:
    ledger = NumaLedger.build(TWO).add("a", held("0-3"))
    assert ledger.remove("b") is ledger


@pytest.mark.parametrize(
    ("cpus", "statuses"),
    [
        pytest.param("", (IDLE, IDLE), id="no-cpus-of-its-own"),
        pytest.param("0-1", (SINGLE, IDLE), id="in-one"),
        pytest.param("0,8", (SHARED, SHARED), id="in-both"),
    ],
)
def test_status(cpus: str, statuses: tuple[str, str]) -> None:
    ledger = NumaLedger.build(TWO, {"a": held(cpus, z0=1000)})
    assert (ledger.zone_status(0), ledger.zone_status(1)) == statuses


def test_shared_outweighs_single_until_it_leaves() -> None:
    ledger = NumaLedger.build(TWO, {"a": held("0-1"), "b": held("2,8")})
    assert ledger.zone_status(0) == SHARED
    assert ledger.remove("b").zone_status(0) == SINGLE


def test_exclusive_marks_do_not_depend_on_who_came_last() -> None:
    shy, other = held("0", "PCPULevel"), held("0")
    first = NumaLedger.build(TWO, {"shy": shy, "other": other})
    last = NumaLedger.build(TWO, {"other": other, "shy": shy})
    assert first == last
    assert first.pcpu_exclusive.referenced == bits("0")
    assert first.remove("other").pcpu_exclusive.referenced == bits("0")
    assert first.remove("shy").pcpu_exclusive.referenced == 0


def test_topology_may_come_after_the_pods() -> None:
    """Pods are known before the node agent has told what the machine is, and must not be forgotten."""
    early = NumaLedger.build(None, {"a": held("0,8", z0=1000)})
    assert early.refcounts.referenced == bits("0,8")
    assert early.zone_status(0) == IDLE
    assert early.with_topology(TWO) == NumaLedger.build(TWO, {"a": held("0,8", z0=1000)})
    known = early.with_topology(TWO)
    assert known.with_topology(TWO) is known


def test_sums_of_amounts() -> None:
    assert total_zone_amounts([{0: {"cpu": 1}}, {0: {"cpu": 2, "memory": 3}, 1: {"cpu": 4}}]) == {
        0: {"cpu": 3, "memory": 3},
        1: {"cpu": 4},
    }
    assert add_keyed_amounts({0: {"cpu": 3}}, {0: {"cpu": 3}}, -1) == {}


def test_written_as_upstream_does() -> None:
    status = to_resource_status(NumaAllocation(cpus=CPUSet.parse("0-3"), zones={0: {"cpu": 4000, "memory": 8 * GI}}))
    assert json.loads(dump_json(status)) == {
        "cpuset": "0-3",
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "4", "memory": "8Gi"}}],
    }
    assert dump_json(to_resource_status(held("1"))) == '{"cpuset":"1"}'


def test_read_back() -> None:
    given = NumaAllocation(
        cpus=CPUSet.parse("0-3,8"), exclusive="PCPULevel", zones={0: {"cpu": 3500, "memory": GI}, 1: {"cpu": 1500}}
    )
    annotations = {
        STATUS: dump_json(to_resource_status(given)),
        SPEC: '{"preferredCPUExclusivePolicy":"PCPULevel"}',
    }
    assert parse_allocation(annotations) == given


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        pytest.param({}, None, id="nothing-written"),
        pytest.param({STATUS: "{}"}, None, id="nothing-given"),
        pytest.param({STATUS: '{"cpuset":"1"}', SPEC: "{"}, held("1"), id="spec-that-cannot-be-read"),
        pytest.param(
            {STATUS: '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1"}},{"node":0,"resources":{"cpu":"2"}}]}'},
            held("", z0=3000),
            id="zone-listed-twice",
        ),
    ],
)
def test_reading(annotations: dict[str, str], found: NumaAllocation | None) -> None:
    assert parse_allocation(annotations) == found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no-json"),
        pytest.param('{"cpuset":"3-1"}', id="no-cpuset"),
        pytest.param('{"numaNodeResources":[{"node":0,"resources":{"cpu":"x"}}]}', id="no-quantity"),
    ],
)
def test_unreadable(text: str) -> None:
    assert isinstance(parse_allocation({STATUS: text}), MalformedAnnotation)


def test_rebuilt_from_live_pods() -> None:
    pods = [("a", {STATUS: '{"cpuset":"0-1"}'}), ("b", {}), ("c", {STATUS: '{"cpuset":"x"}'})]
    ledger, unread = ledger_from_pods(TWO, pods)
    assert ledger == NumaLedger.build(TWO, {"a": held("0-1")})
    assert list(unread) == ["c"]
