"""Whatever is allocated and freed in whatever order, nothing is allocated twice and freeing restores what was taken."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import A_GPU_PARTITIONS, L_GPU_PARTITION_POLICY
from koord.api.koordinator.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, RDMA
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices, DeviceAllocateOptions, allocate_devices
from koord.scheduler.plugins.device_share.annotations import from_annotation, to_annotation
from koord.scheduler.plugins.device_share.device_amounts import vf_bus_ids
from koord.scheduler.plugins.device_share.inventory import DeviceInventory
from koord.scheduler.plugins.device_share.node_devices import (
    NO_CONSTRAINTS,
    DeviceConstraints,
    DeviceLedger,
    usable_devices,
)
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal
from koord.scheduler.plugins.device_share.request import DeviceDemand
from koord.scheduler.plugins.device_share.selection import DeviceTypeRequest, fitting_devices
from tests.scheduler.plugins.device_share.device_builders import (
    GI,
    LEAST,
    MOST,
    ask,
    gpu,
    gpus,
    inventory,
    place,
    rdma,
    reference,
)

PAIRS: dict[str, list[dict[str, Any]]] = {
    "1": [{"minors": [m], "allocationScore": 1} for m in range(8)],
    "2": [{"minors": [m, m + 1], "allocationScore": 1} for m in range(0, 8, 2)],
    "4": [{"minors": [0, 1, 2, 3], "allocationScore": 1}, {"minors": [4, 5, 6, 7], "allocationScore": 1}],
}


def rebuilt(ledger: DeviceLedger, inventory: DeviceInventory) -> DeviceLedger:
    """Return the ledger that the allocations of another add up to."""
    made = DeviceLedger(inventory)
    for uid, held in ledger.allocations.items():
        made = made.with_allocation(uid, held)
    return made


@st.composite
def machines(draw: st.DrawFn) -> DeviceLedger:
    placed = draw(st.booleans())
    cards = [
        gpu(m, place(m // 4, str(m // 2)) if placed else None, memory=draw(st.sampled_from(["16Gi", "7Gi", "1000"])),
            health=draw(st.integers(0, 9)) > 0)
        for m in range(draw(st.integers(1, 8)))
    ]  # fmt: skip
    nets = [
        rdma(m, place(m // 2, str(m)) if placed else None, vfs=draw(st.integers(0, 2)))
        for m in range(draw(st.integers(0, 4)))
    ]
    labels = {L_GPU_PARTITION_POLICY: "Honor"} if draw(st.booleans()) else {}
    annotations = {A_GPU_PARTITIONS: PAIRS} if draw(st.booleans()) else {}
    return DeviceLedger(inventory(*cards, *nets, labels=labels, annotations=annotations))


gpu_requests = st.one_of(
    st.integers(1, 100).map(lambda n: {GPU: n}),
    st.integers(1, 8).map(lambda n: {GPU: 100 * n}),
    st.integers(1, 20 * GI).map(lambda n: {GPU_MEMORY: n}),
    st.integers(1, 100).map(lambda n: {GPU_MEMORY_RATIO: n}),
    st.tuples(st.integers(1, 4), st.integers(1, 100)).map(lambda t: {GPU_SHARED: t[0], GPU_MEMORY_RATIO: t[0] * t[1]}),
    st.tuples(st.integers(1, 100), st.integers(1, 8 * GI)).map(lambda t: {GPU_CORE: t[0], GPU_MEMORY: t[1]}),
)


@st.composite
def demands(draw: st.DrawFn) -> DeviceDemand:
    asked: dict[str, int] = {}
    if draw(st.integers(0, 3)):
        asked |= draw(gpu_requests)
    if not asked or draw(st.booleans()):
        asked |= {RDMA: draw(st.sampled_from([1, 4, 50, 100, 200]))}
    hint: dict[str, Any] = {"gpu": {"requiredTopologyScope": draw(st.sampled_from(["", "", "", "PCIe", "NUMANode"]))}}
    hint["rdma"] = {"allocateStrategy": draw(st.sampled_from(["", "ApplyForAll", "RequestsAsCount"]))}
    if draw(st.booleans()):
        hint["rdma"]["vfSelector"] = {}
    for kind in hint:
        hint[kind]["exclusivePolicy"] = draw(st.sampled_from(["", "DeviceLevel", "PCIeLevel"]))
    joint = draw(st.sampled_from([(), ("gpu", "rdma"), ("rdma", "gpu")]))
    partition: dict[str, Any] | None = {} if draw(st.integers(0, 9)) == 0 else None
    return ask(asked, hint=hint, joint=joint, same_pcie=draw(st.booleans()), partition=partition)


options = st.builds(
    DeviceAllocateOptions,
    scorer=st.sampled_from([None, LEAST, MOST]),
    final=st.just(True),
    keep_switches_apart=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(machines(), st.lists(st.tuples(demands(), options, st.integers(0, 5)), max_size=12))
def test_nothing_is_given_twice_and_nothing_is_lost(empty: DeviceLedger, steps: list[Any]) -> None:
    ledger = empty
    for number, (demand, chosen_options, freed) in enumerate(steps):
        result = allocate_devices(ledger, demand, options=chosen_options)
        assert result == allocate_devices(ledger, demand, options=chosen_options)
        if isinstance(result, DeviceRefusal):
            assert result.reasons
            continue
        assert from_annotation(to_annotation(result)) == result.device_amounts
        check_shape(result, demand)
        check_exclusive(result, demand, ledger, switches=chosen_options.keep_switches_apart)
        ledger = ledger.with_allocation(f"pod-{number}", result.device_amounts)
        assert ledger.overcommits() == []
        assert all(held == 1 for held in function_counts(ledger).values())
        if freed < number:
            ledger = ledger.without_allocation(f"pod-{freed}")
        assert ledger == rebuilt(ledger, empty.inventory)
    for uid in list(ledger.allocations):
        ledger = ledger.without_allocation(uid)
    assert ledger == empty


def check_shape(result: AllocatedDevices, demand: DeviceDemand) -> None:
    for chosen in result.devices.values():
        assert all(one.card.healthy for one in chosen)
        assert len({one.card.minor for one in chosen}) == len(chosen)
    if demand.gpu is not None:
        assert len(result.devices["gpu"]) == demand.gpu.count
    if demand.same_pcie and len(demand.joint_types) > 1:
        (first, second) = ({one.card.pcie for one in result.devices[kind]} for kind in demand.joint_types)
        assert first == second
        assert None not in first


def check_exclusive(result: AllocatedDevices, demand: DeviceDemand, before: DeviceLedger, *, switches: bool) -> None:
    for kind, chosen in result.devices.items():
        hint = demand.hint(kind)
        used = before.used_by_type(kind)
        if kind == "rdma" and hint.exclusive_device and hint.strategy == "RequestsAsCount":
            assert all(one.card.minor not in used for one in chosen)
        if switches and hint.exclusive_switch:
            busy = {before.inventory.of_type(kind)[minor].pcie for minor in used}
            assert all(one.card.pcie not in busy for one in chosen)


def function_counts(ledger: DeviceLedger) -> dict[str, int]:
    counts: dict[str, int] = {}
    for holdings in ledger.allocations.values():
        for minors in holdings.values():
            for amounts in minors.values():
                for bus in vf_bus_ids(amounts):
                    counts[bus] = counts.get(bus, 0) + 1
    return counts


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 100)), max_size=6),
    st.one_of(st.integers(1, 8).map(lambda n: 100 * n), st.integers(1, 99)),
    st.sampled_from(["", "PCIe", "NUMANode", "Node"]),
    st.sampled_from([None, LEAST, MOST]),
)
def test_a_place_is_found_exactly_when_there_is_one(
    used: list[tuple[int, int]], percent: int, scope: str, scorer: Any
) -> None:
    ledger = reference()
    for number, (minor, share) in enumerate(used):
        given_up = {GPU_CORE: share, GPU_MEMORY_RATIO: share, GPU_MEMORY: 16 * GI * share // 100}
        ledger = ledger.with_allocation(f"u{number}", {"gpu": {minor: given_up}})
    demand = ask({GPU: percent}, hint={"gpu": {"requiredTopologyScope": scope}})
    assert demand.gpu is not None
    wanted = DeviceTypeRequest(type="gpu", each=demand.gpu.each, count=demand.gpu.count, hint=demand.hint("gpu"))
    fit = fitting_devices(usable_devices(ledger, "gpu", wanted.hint, NO_CONSTRAINTS), wanted)
    size = {"PCIe": 2, "NUMANode": 4}.get(scope, 8)
    possible = any(sum(m in fit for m in range(at, at + size)) >= demand.gpu.count for at in range(0, 8, size))
    result = allocate_devices(ledger, demand, options=DeviceAllocateOptions(scorer=scorer))
    assert isinstance(result, AllocatedDevices) == possible
    if isinstance(result, AllocatedDevices):
        assert len({m // size for m in result.minors("gpu")}) == 1


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 7)), st.sampled_from([1, 2, 4]))
def test_honoured_partitions_are_found_exactly_when_one_is_free(used: set[int], count: int) -> None:
    ledger = reference(labels={L_GPU_PARTITION_POLICY: "Honor"}, annotations={A_GPU_PARTITIONS: PAIRS})
    whole = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100, GPU_MEMORY: 16 * GI}
    ledger = ledger.with_allocation("u", {"gpu": dict.fromkeys(used, whole)} if used else {})
    result = allocate_devices(ledger, gpus(count))
    free = [p["minors"] for p in PAIRS[str(count)] if used.isdisjoint(p["minors"])]
    assert isinstance(result, AllocatedDevices) == bool(free)
    if isinstance(result, AllocatedDevices):
        assert list(result.minors("gpu")) in free


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 7), min_size=1), st.integers(1, 4))
def test_what_is_required_is_all_that_is_taken(allowed: set[int], count: int) -> None:
    whole = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100, GPU_MEMORY: 16 * GI}
    result = allocate_devices(
        reference(), gpus(count), terms=DeviceConstraints(required={"gpu": dict.fromkeys(allowed, whole)})
    )
    assert isinstance(result, AllocatedDevices) == (len(allowed) >= count)
    if isinstance(result, AllocatedDevices):
        assert set(result.minors("gpu")) <= allowed


def test_a_share_in_percent_never_squeezes_a_share_in_bytes() -> None:
    """5Gi of 16Gi is 31 percent and a bit; 69 percent more would be past the end of the card's memory."""
    ledger = DeviceLedger(inventory(gpu(0)))
    first = allocate_devices(ledger, ask({GPU_MEMORY: 5 * GI}))
    assert isinstance(first, AllocatedDevices)
    ledger = ledger.with_allocation("bytes", first.device_amounts)
    assert isinstance(allocate_devices(ledger, ask({GPU_MEMORY_RATIO: 69})), DeviceRefusal)
    assert isinstance(allocate_devices(ledger, ask({GPU_MEMORY_RATIO: 68})), AllocatedDevices)
