"""Counting cards in columns says of every node what choosing them one by one says."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.scheduler.koordinator_args import DeviceShareArgs, UnsupportedGPUModel
from koord.api.koordinator.protocol import (
    A_GPU_PARTITIONS,
    L_GPU_ISOLATION_PROVIDER,
    L_GPU_MODEL,
    L_GPU_PARTITION_POLICY,
    L_SECONDARY_DEVICE_WELL_PLANNED,
)
from koord.api.koordinator.scheduling import Device
from koord.scheduler.cache.pod_model import Pod
from tests.scheduler.builders import make_node
from tests.scheduler.plugin_equivalence import check_columns_match_definition
from tests.scheduler.plugins.device_share.device_builders import device, gpu, place, rdma
from tests.scheduler.plugins.device_share.device_cluster import DeviceCluster, asking, named
from tests.scheduler.plugins.device_share.test_allocator_properties import PAIRS, gpu_requests

NAMES = ("n0", "n1", "n2", "n3")
UNSHARED = DeviceShareArgs(gpu_share_unsupported_models=(UnsupportedGPUModel(vendor="", model="H20"),))


@st.composite
def machines(draw: st.DrawFn) -> Device:
    placed = draw(st.booleans())
    cards = [
        gpu(
            m,
            place(m // 4, str(m // 2)) if placed else None,
            memory=draw(st.sampled_from(["16Gi", "7Gi", "1000"])),
            health=draw(st.integers(0, 9)) > 0,
            labels={"half": str(m % 2)},
        )
        for m in range(draw(st.sampled_from([0, 1, 2, 8, 10])))
    ]
    if cards and draw(st.integers(0, 9)) == 0:
        cards[0]["resources"].pop("koordinator.sh/gpu-memory-ratio")
    nets = [
        rdma(m, place(m // 2, str(m)) if placed else None, vfs=draw(st.integers(0, 2)))
        for m in range(draw(st.integers(0, 4)))
    ]
    labels = {L_GPU_PARTITION_POLICY: "Honor"} if draw(st.integers(0, 4)) == 0 else {}
    if draw(st.booleans()):
        labels[L_SECONDARY_DEVICE_WELL_PLANNED] = "true"
    annotations = {A_GPU_PARTITIONS: PAIRS} if len(cards) == 8 and draw(st.booleans()) else {}
    return device(*cards, *nets, labels=labels, annotations=annotations)


@st.composite
def pods(draw: st.DrawFn, name: str = "p") -> Pod:
    asked: dict[str, int | str] = {}
    if draw(st.integers(0, 4)):
        asked |= draw(gpu_requests)
    if not asked or draw(st.booleans()):
        asked["koordinator.sh/rdma"] = draw(st.sampled_from([1, 4, 50, 100, 200]))
    hint: dict[str, Any] = {"gpu": {}, "rdma": {}}
    if draw(st.integers(0, 2)) == 0:
        hint["gpu"]["requiredTopologyScope"] = draw(st.sampled_from(["PCIe", "NUMANode", "Node", "Device"]))
    if draw(st.integers(0, 4)) == 0:
        hint["gpu"]["selector"] = {"matchLabels": {"half": "1"}}
    hint["rdma"]["allocateStrategy"] = draw(st.sampled_from(["", "", "ApplyForAll", "RequestsAsCount"]))
    if draw(st.integers(0, 4)) == 0:
        hint["rdma"]["vfSelector"] = {}
    joint = {
        "deviceTypes": draw(st.sampled_from([[], ["gpu", "rdma"], ["rdma", "gpu"]])),
        "requiredScope": draw(st.sampled_from(["", "SamePCIe"])),
    }
    labels = {L_GPU_ISOLATION_PROVIDER: "HAMi-core"} if draw(st.integers(0, 4)) == 0 else {}
    partition: dict[str, str] | None = {} if draw(st.integers(0, 9)) == 0 else None
    return asking(name, asked, hint=hint, joint=joint, partition=partition, labels=labels)


node_labels = st.sampled_from(
    [
        {},
        {},
        {L_GPU_ISOLATION_PROVIDER: "HAMi-core"},
        {L_GPU_MODEL: "H20"},
        {L_GPU_PARTITION_POLICY: "Honor", L_GPU_MODEL: "H100"},
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(machines(), node_labels), min_size=1, max_size=4),
    st.lists(st.tuples(pods(), st.sampled_from(NAMES)), max_size=8),
    pods("asked"),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_columns_say_what_nodes_say(
    fleet: list[tuple[Device, dict[str, str]]], before: list[tuple[Pod, str]], pod: Pod, rows: list[int]
) -> None:
    world = DeviceCluster(args=UNSHARED)
    world.state.set_node(make_node("bare"))
    for name, (machine, labels) in zip(NAMES, fleet, strict=False):
        world.state.set_node(make_node(name, labels=labels))
        world.devices.put(named(machine, name))
    for number, (other, node) in enumerate(before):
        if world.state.node(node) is not None:
            meta = msgspec.structs.replace(other.metadata, uid=f"u{number}", name=f"p{number}")
            world.reserve(msgspec.structs.replace(other, metadata=meta), node)
            check_columns_match_definition(world.plugin, world.state, world.state.pod_info(pod), rows)
    check_columns_match_definition(world.plugin, world.state, world.state.pod_info(pod), rows)
    world.check()


def test_cards_too_far_apart_are_told_before_missing_network_cards() -> None:
    spread = [gpu(m, place(0, str(m))) for m in range(2)]
    world = DeviceCluster(named(device(*spread, rdma(0, place(0, "0"))), "n0"))
    pod = asking(
        "p", {"koordinator.sh/gpu": 200, "koordinator.sh/rdma": 200}, hint={"gpu": {"requiredTopologyScope": "PCIe"}}
    )
    assert world.judged(pod) == "Insufficient Topology Scoped GPU Devices"
    check_columns_match_definition(world.plugin, world.state, world.state.pod_info(pod), [0])
