"""A node is patched with what was decided, and only when it is worth a write."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.slo.slo_documents import CPUNormalizationStrategy
from koord.api.model import convert, to_dict
from koord.manager.colocation.decision import (
    ColocationDecision,
    ColocationNodeView,
    decide_colocation,
    revise_zones,
    should_write_zones,
)
from koord.manager.colocation.models import ColocationNode, differs_by_more_than
from koord.manager.colocation.node_patch import NodePatch, decide_node_patch
from koord.manager.colocation.strategy import LayeredStrategy
from koord.values.quantity import Quantity
from tests.manager.colocation.colocation_builders import (
    CAPACITY,
    NOW,
    colocation,
    decided,
    device,
    metric,
    node,
    settings,
    topology,
    used,
)

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"
LENT = {BATCH_CPU: "53k", BATCH_MEMORY: "66G", MID_CPU: "10k", MID_MEMORY: "9765625Ki"}
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"
THIRD = "node.koordinator.sh/thirdPartyAllocations"
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
AMPLIFICATION = "node.koordinator.sh/resource-amplification-ratio"
REPORT = metric(reclaimable=used(10, "10G"))


def origin(cpu: str, memory: str) -> str:
    return f'{{"resources":{{"{BATCH_CPU}":"{cpu}","{BATCH_MEMORY}":"{memory}"}}}}'


WRITTEN = {RATIO: "1.00", ORIGIN: origin("53k", "66G")}


def showing(lent: dict[str, str], annotations: dict[str, str] | None = None) -> ColocationNode:
    return node({**CAPACITY, **lent}, annotations=WRITTEN if annotations is None else annotations)


def write(of: ColocationNode, since_s: float | None = 10, decision: ColocationDecision | None = None) -> NodePatch:
    return decide_node_patch(of, decision or decided(colocation(), of, REPORT), since_s)


def after(of: ColocationNode, made: NodePatch) -> ColocationNode:
    """Return the node with the patch applied."""

    def patched(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in {**old, **patch}.items() if v is not None}

    plain = to_dict(of)
    meta, status = plain.setdefault("metadata", {}), plain["status"]
    meta["annotations"] = patched(meta.get("annotations", {}), made.annotations)
    meta["labels"] = patched(meta.get("labels", {}), made.labels)
    status["capacity"] = patched(status["capacity"], made.capacity)
    status["allocatable"] = patched(status["allocatable"], made.allocatable)
    return convert(plain, ColocationNode)


def test_a_new_node_gets_everything_in_one_patch() -> None:
    made = write(node(), None)
    assert made.patch() == {
        "metadata": {"annotations": {RATIO: "1.00", ORIGIN: origin("53k", "66G")}},
        "status": {"capacity": LENT, "allocatable": LENT},
    }


@pytest.mark.parametrize(
    ("threshold", "old", "new", "due"),
    [
        pytest.param(0.1, "40000", "43000", False, id="a-small-step"),
        pytest.param(0.1, "40000", "44000", False, id="exactly-the-threshold"),
        pytest.param(0.1, "40000", "45000", True, id="a-large-step"),
        pytest.param(0.1, None, "0", True, id="comes"),
        pytest.param(0.1, "5", None, True, id="goes"),
        pytest.param(0.1, None, None, False, id="never-was"),
        pytest.param(0.1, "0", "0", False, id="stays-nothing"),
        pytest.param(0.1, "0", "1", True, id="from-nothing"),
    ],
)
def test_steps(threshold: float, old: str | None, new: str | None, due: bool) -> None:
    before, wanted = (None if text is None else Quantity.parse(text) for text in (old, new))
    assert differs_by_more_than(before, wanted, threshold) is due


@pytest.mark.parametrize(
    ("since_s", "written"),
    [
        pytest.param(None, True, id="first-look"),
        pytest.param(300, False, id="written-lately"),
        pytest.param(301, True, id="long-ago"),
    ],
)
def test_small_steps_wait(since_s: float | None, written: bool) -> None:
    assert (not write(showing({**LENT, BATCH_CPU: "52k"}), since_s).is_empty) is written


def test_a_node_that_shows_it_all_is_left_alone() -> None:
    made = write(showing(LENT), 1000)
    assert made.is_empty
    assert made.status_due


def test_a_degraded_node_loses_what_it_lent() -> None:
    of = showing(LENT)
    made = write(of, decision=decided(colocation(), of, metric(age_s=3600)))
    assert made.allocatable == dict.fromkeys(LENT)
    assert made.capacity == dict.fromkeys(LENT)
    assert made.annotations == {ORIGIN: origin("0", "0")}


def test_a_disabled_node_keeps_its_devices() -> None:
    of = showing({**LENT, "koordinator.sh/gpu": "100", "koordinator.sh/rdma": "100"}, {**WRITTEN, AMPLIFICATION: "{}"})
    made = write(of, decision=decided(colocation(enable=False), of, REPORT))
    assert made.allocatable == dict.fromkeys(LENT)
    assert made.annotations == {ORIGIN: origin("0", "0"), AMPLIFICATION: None}


@pytest.mark.parametrize(
    ("enable", "annotations"),
    [
        pytest.param(True, {RATIO: "1.00", ORIGIN: origin("53k", "66G")}, id="lending"),
        pytest.param(False, {}, id="not-lending"),
    ],
)
def test_a_node_without_annotations(enable: bool, annotations: dict[str, str]) -> None:
    of = node(annotations={})
    assert write(of, None, decided(colocation(enable=enable), of, REPORT)).annotations == annotations


@pytest.mark.parametrize("missing", ["capacity", "allocatable"])
def test_a_node_that_says_nothing_of_its_size_is_left_alone(missing: str) -> None:
    of = node({}, CAPACITY) if missing == "capacity" else node(CAPACITY, {})
    assert write(of, None).is_empty


@pytest.mark.parametrize(
    ("priority", "took_cpu", "took_memory", "cpu", "memory"),
    [
        pytest.param("koord-batch", "10k", "6G", "43k", "60G", id="a-part"),
        pytest.param("koord-batch", "90k", "1T", "0", "0", id="all"),
        pytest.param("koord-mid", "10k", "6G", "53k", "66G", id="not-of-batch"),
        pytest.param("koord-batch", "oops", "6G", "53k", "66G", id="unreadable"),
    ],
)
def test_third_parties(priority: str, took_cpu: str, took_memory: str, cpu: str, memory: str) -> None:
    taken = f'{{"{BATCH_CPU}":"{took_cpu}","{BATCH_MEMORY}":"{took_memory}"}}'
    text = f'{{"allocations":[{{"name":"y","priority":"{priority}","resources":{taken}}}]}}'
    made = write(node(annotations={THIRD: text}), None)
    assert (made.allocatable[BATCH_CPU], made.allocatable[BATCH_MEMORY]) == (cpu, memory)
    assert made.annotations[ORIGIN] == origin("53k", "66G")


def test_other_keys_of_the_origin_stay() -> None:
    of = node(annotations={ORIGIN: '{"resources":{"example.com/x":"1"}}'})
    assert '"example.com/x":"1"' in str(write(of, None).annotations[ORIGIN])


def test_faster_cpus_lend_more() -> None:
    strategy = CPUNormalizationStrategy(enable=True, default_ratio=1.2)
    of = node()
    info = {"node.koordinator.sh/cpu-basic-info": '{"cpuModel":"X"}'}
    view = ColocationNodeView(now=NOW, node=of, metric=REPORT, topology=topology(annotations=info))
    made = decide_node_patch(
        of, decide_colocation(view, settings(normalization=LayeredStrategy(cluster=strategy))), None
    )
    assert made.allocatable[BATCH_CPU] == "63600"
    assert made.annotations[RATIO] == "1.20"


def test_the_labels_of_a_device_are_copied() -> None:
    gpu = {"type": "gpu", "health": True, "resources": {"koordinator.sh/gpu-core": 100}}
    labels = {"node.koordinator.sh/gpu-model": "A100", "x": "y"}
    of = showing({**LENT, "koordinator.sh/gpu": "100", "koordinator.sh/gpu-core": "100"})
    made = write(of, 10, decided(colocation(), of, REPORT, device=device(gpu, labels=labels)))
    assert made.patch() == {"metadata": {"labels": {"node.koordinator.sh/gpu-model": "A100"}}}
    assert not made.status_due


@pytest.mark.parametrize("since_s", [None, 10, 1000])
@pytest.mark.parametrize("report", [REPORT, None])
@pytest.mark.parametrize("enable", [True, False])
def test_a_second_look_writes_nothing(since_s: float | None, report: Any, enable: bool) -> None:
    of = node(annotations={"a": "b", THIRD: '{"allocations":[]}'})
    first = decide_node_patch(of, decided(colocation(enable=enable), of, report), since_s)
    then = after(of, first)
    assert decide_node_patch(then, decided(colocation(enable=enable), then, report), 0).is_empty


ZONES = topology({"cpu": "50", "memory": "60G"}, {"cpu": "50", "memory": "60G"})


def zones_of(report: Any = REPORT) -> Any:
    batch = decided(colocation(), node(), report, topology=ZONES).batch
    assert batch is not None
    return batch.zones


def test_zones_get_their_entries_in_order() -> None:
    plain = [{**to_dict(zone), "future": 1} for zone in ZONES.zones]
    made = revise_zones(plain, zones_of(), None, 0.1, overdue=False)
    assert made is not None
    assert [entry["name"] for entry in made[0]["resources"]] == ["cpu", BATCH_CPU, BATCH_MEMORY, "memory"]
    assert made[0]["resources"][1] == {
        "name": BATCH_CPU,
        "capacity": "26500",
        "allocatable": "26500",
        "available": "26500",
    }
    assert made[0]["future"] == 1
    assert revise_zones(made, zones_of(), None, 0.1, overdue=True) is None


@pytest.mark.parametrize(
    ("overdue", "due"), [pytest.param(False, False, id="lately"), pytest.param(True, True, id="long-ago")]
)
def test_small_steps_of_zones_wait(overdue: bool, due: bool) -> None:
    made = revise_zones([to_dict(zone) for zone in ZONES.zones], zones_of(), None, 0.1, overdue=False)
    later = zones_of(metric(system=used("7.5", "12G")))
    assert made is not None
    assert (revise_zones(made, later, None, 0.1, overdue=overdue) is not None) is due


def test_zones_that_changed_meanwhile_are_left_alone() -> None:
    assert revise_zones([{"name": "node-0"}], zones_of(), None, 0.1, overdue=True) is None


def test_no_zones_no_write() -> None:
    assert not should_write_zones(None, (), None, 0.1, overdue=True)
    assert should_write_zones(ZONES, zones_of(), None, 0.1, overdue=False)
