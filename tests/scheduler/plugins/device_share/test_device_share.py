"""DeviceShare from PreFilter to PreBind: who is refused in which words, who gets which cards, who is woken."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.in_tree_args import MOST_ALLOCATED
from koord.api.config.scheduler.koordinator_args import DEVICE_SHARE_STRATEGY, DeviceShareArgs, UnsupportedGPUModel
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, L_GPU_ISOLATION_PROVIDER, L_GPU_MODEL, L_GPU_VENDOR
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.api.model import convert
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.reservation import (
    MatchedReservation,
    NumaTopologyHint,
    numa_affinities,
    writable_reservations,
)
from koord.scheduler.framework.verdict import Fault, PodPatch, Reject, Skip
from koord.values.bitmask import BitMask
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugins.device_share.device_builders import device, gpu, place
from tests.scheduler.plugins.device_share.device_cluster import DeviceCluster, asking, named, reference_machine
from tests.scheduler.plugins.device_share.test_device_cache import carrying

GPU = "koordinator.sh/gpu"
CORE = "koordinator.sh/gpu-core"
RATIO = "koordinator.sh/gpu-memory-ratio"
MEMORY = "koordinator.sh/gpu-memory"
SHARED = "koordinator.sh/gpu.shared"
RDMA = "koordinator.sh/rdma"
NVIDIA = "nvidia.com/gpu"
NPU = "huawei.com/npu-core"
EACH = {"rdma": {"allocateStrategy": "ApplyForAll"}}
PAIR = {"gpu": {"requiredTopologyScope": "PCIe"}}


def test_pods_without_devices_are_none_of_its_business() -> None:
    world = DeviceCluster(reference_machine())
    plain = world.state.pod_info(make_pod("plain", cpu="1"))
    assert isinstance(world.plugin.pre_filter(world.cycle, plain), Skip)
    assert world.plugin.signature(plain) is None
    assert world.place(make_pod("plain", cpu="1")) == {}


@pytest.mark.parametrize(
    ("requests", "more", "said"),
    [
        pytest.param({CORE: 50}, {}, f"invalid resource device requests: [{CORE}]", id="core-alone"),
        pytest.param({NVIDIA: 1, CORE: 50}, {}, f"invalid resource device requests: [{CORE} {NVIDIA}]", id="mixed"),
        pytest.param({GPU: 101}, {}, f"invalid resource unit {GPU}: 101", id="gpu-unit"),
        pytest.param({RDMA: 201}, {}, f"invalid resource unit {RDMA}: 201", id="rdma-unit"),
        pytest.param({SHARED: 2, RATIO: 101}, {}, f"invalid resource device requests: [{RATIO} {SHARED}]", id="shared"),
        pytest.param({GPU: 100}, {"hint": "{"}, "invalid DeviceAllocateHint annotation, err: ", id="hint"),
        pytest.param({GPU: 100}, {"joint": "[]"}, "invalid DeviceJointAllocate annotation, err: ", id="joint"),
        pytest.param({GPU: 100}, {"partition": "7"}, "invalid GPUPartitionSpec annotation, err: ", id="partition"),
        pytest.param(
            {GPU: 100},
            {"hint": {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}}},
            "invalid Selector of DeviceHint, deviceType: gpu",
            id="selector",
        ),
        pytest.param({NPU: 4, SHARED: 1, MEMORY: 1024, "huawei.com/npu-cpu": 1}, {}, "no matched GPU shared", id="npu"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_node(requests: Any, more: Any, said: str) -> None:
    world = DeviceCluster(reference_machine())
    found = world.plugin.pre_filter(world.cycle, world.state.pod_info(asking("p", requests, **more)))
    assert isinstance(found, Reject)
    assert not found.resolvable
    assert found.text.startswith(said)
    assert world.reserve(asking("p", requests, **more)).startswith(said)  # where PreFilter is not enabled
    world.check()


@pytest.mark.parametrize(
    ("requests", "more", "got"),
    [
        pytest.param({NVIDIA: 2}, {}, {"gpu": (0, 1)}, id="nvidia-whole"),
        pytest.param({"amd.com/gpu": 1}, {}, {"gpu": (0,)}, id="amd-whole"),
        pytest.param({GPU: 50}, {}, {"gpu": (0,)}, id="half"),
        pytest.param({CORE: 50, MEMORY: "4Gi"}, {}, {"gpu": (0,)}, id="core-and-bytes"),
        pytest.param({SHARED: 2, CORE: 100, RATIO: 100}, {}, {"gpu": (0, 1)}, id="two-halves"),
        pytest.param({"kubernetes.io/gpu": 100}, {}, {"gpu": (0,)}, id="old-name"),
        pytest.param({GPU: 900}, {}, "Insufficient GPU Devices", id="more-than-there-are"),
        pytest.param({GPU: 300}, {"hint": PAIR}, "Insufficient Topology Scoped GPU Devices", id="three-on-a-switch"),
        pytest.param({"koordinator.sh/fpga": 100}, {}, "Insufficient fpga devices", id="no-such-type"),
        pytest.param(
            {RDMA: 1}, {"hint": {"rdma": {"allocateStrategy": "ApplyForAll"}}}, {"rdma": (1, 2, 3, 4)}, id="all"
        ),
        pytest.param(
            {GPU: 300, RDMA: 1},
            {"joint": {"deviceTypes": ["gpu", "rdma"]}, "hint": {"rdma": {"vfSelector": {}}}},
            {"gpu": (0, 1, 2), "rdma": (1, 2)},
            id="a-function-on-each-switch",
        ),
    ],
)
def test_cards_of_an_idle_machine(requests: Any, more: Any, got: Any) -> None:
    world = DeviceCluster(reference_machine())
    assert world.place(asking("p", requests, **more)) == got
    world.check()


def test_a_node_whose_devices_nobody_told_of_is_left_to_its_device_plugin() -> None:
    world = DeviceCluster()
    world.state.set_node(make_node("n0"))
    pod = asking("p", {GPU: 100})
    assert world.place(pod) == {}
    assert list(world.book.iter_allocations()) == []


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, "GPUIsolationProviderHAMICore not found on the node"),
        ({L_GPU_ISOLATION_PROVIDER: "HAMi-core"}, ""),
        (
            {L_GPU_ISOLATION_PROVIDER: "HAMi-core", L_GPU_VENDOR: "v", L_GPU_MODEL: "m"},
            'model "m" of vendor "v" does not support GPU Share',
        ),
    ],
    ids=["not-isolated", "isolated", "not-shared"],
)
def test_shares_need_what_the_node_says_of_itself(labels: dict[str, str], said: str) -> None:
    args = DeviceShareArgs(gpu_share_unsupported_models=(UnsupportedGPUModel(vendor="v", model="m"),))
    world = DeviceCluster(reference_machine(), args=args)
    world.state.set_node(make_node("n0", labels=labels))
    isolated = {L_GPU_ISOLATION_PROVIDER: "HAMi-core"}
    assert world.judged(asking("p", {GPU: 50}, labels=isolated)) == said
    assert world.judged(asking("p", {GPU: 100}, labels=isolated)) == ""  # a whole card needs no isolation


def test_shared_pods_pack_or_spread_by_strategy() -> None:
    packing = DeviceShareArgs(scoring_strategy=msgspec.structs.replace(DEVICE_SHARE_STRATEGY, type=MOST_ALLOCATED))
    for args, second in ((packing, (0,)), (None, (1,))):
        world = DeviceCluster(reference_machine(), args=args)
        assert world.place(asking("a", {GPU: 25})) == {"gpu": (0,)}
        assert world.place(asking("b", {GPU: 25})) == {"gpu": second}


def test_a_card_that_fails_after_it_was_chosen_is_not_given() -> None:
    world = DeviceCluster(reference_machine())
    pod = asking("p", {GPU: 100})
    assert world.reserve(pod) == ""
    sick = [gpu(m, place(m // 4, str(m // 2)), health=m > 0) for m in range(8)]
    world.devices.put(named(device(*sick), "n0"))
    assert world.mark(pod) == Fault("gpu 0 of node n0 was chosen and is not healthy any more")
    world.undo(pod)
    assert world.place(pod) == {"gpu": (1,)}
    world.devices.drop("n0")
    other = asking("q", {GPU: 100})
    assert world.reserve(other) == "Insufficient GPU Devices"
    world.check()


# Templates -------------------------------------------------------------------------------------------------------

SLICE = {NPU: "4", "huawei.com/npu-cpu": "1", MEMORY: "2Gi"}
ASCEND = {L_GPU_VENDOR: "huawei", L_GPU_MODEL: "Ascend"}


def config_map(text: str) -> ConfigMap:
    meta = {"name": "gpu-shared-resource-templates", "namespace": "koordinator-system"}
    return convert({"metadata": meta, "data": {"data.yaml": text}}, ConfigMap)


def test_slices_are_as_the_config_map_lists_them_now() -> None:
    card = gpu(0, place(0, "0"))
    card["resources"] |= {NPU: "8", "huawei.com/npu-cpu": "7"}
    world = DeviceCluster(named(device(card), "n0"))
    world.state.set_node(make_node("n0", labels=ASCEND))
    pod = asking("p", {SHARED: 1, **SLICE})
    assert world.judged(pod) == "no matched GPU shared resource template"
    maps = world.lister_of("ConfigMap")
    maps.put(config_map("huawei-Ascend: ["))
    said = world.judged(pod)
    assert said.startswith("no matched GPU shared resource template, ConfigMap koordinator-system/gpu-shared-")
    assert "data.yaml" in said
    maps.put(config_map(json.dumps({"huawei-Ascend": {"vir04": SLICE}})))
    assert world.place(pod) == {"gpu": (0,)}
    (held,) = world.state.pods()
    given = json.loads(held.annotations["scheduling.koordinator.sh/device-allocated"])
    assert given["gpu"][0]["extension"] == {"gpuSharedResourceTemplate": "vir04"}
    maps.drop("gpu-shared-resource-templates", "koordinator-system")
    assert world.judged(asking("q", {SHARED: 1, **SLICE})) == "no matched GPU shared resource template"


# Among plugins ---------------------------------------------------------------------------------------------------


def test_hints_tell_where_the_gpus_would_come_from() -> None:
    world = DeviceCluster(reference_machine())
    world.state.set_pod(carrying("old", "n0", 0))
    node = world.state.table.index["n0"]
    pod = world.state.pod_info(asking("p", {GPU: 400}))
    hints = world.plugin.numa_hints(CycleState(world.state), pod, node)
    assert hints == {
        "gpu": (
            NumaTopologyHint(BitMask.of(1), preferred=True, score=500),
            NumaTopologyHint(BitMask.of(0, 1), preferred=False, score=500),
        )
    }
    assert world.plugin.numa_fits(CycleState(world.state), pod, node, BitMask.of(0)) is not None
    assert world.plugin.numa_fits(CycleState(world.state), pod, node, BitMask.of(1)) is None
    many = world.state.pod_info(asking("q", {GPU: 800}))
    assert isinstance(world.plugin.numa_hints(CycleState(world.state), many, node), Reject)
    off = DeviceCluster(reference_machine(), args=DeviceShareArgs(disable_device_numa_topology_alignment=True))
    assert (
        off.plugin.numa_hints(off.cycle, off.state.pod_info(asking("p", {GPU: 400})), off.state.table.index["n0"])
        is None
    )


def test_the_numa_nodes_chosen_for_a_pod_bind_its_devices() -> None:
    world = DeviceCluster(reference_machine())
    pod = asking("p", {GPU: 200})
    numa_affinities(world.cycle)[pod.metadata.uid] = BitMask.of(1)
    assert world.place(pod) == {"gpu": (4, 5)}
    other = asking("q", {GPU: 300})
    numa_affinities(world.cycle)[other.metadata.uid] = BitMask.of(1)
    assert world.place(other) == "Insufficient GPU Devices"
    world.check()


# Reservations ----------------------------------------------------------------------------------------------------


def reserved(world: DeviceCluster, *minors: int, policy: str = "", share: int = 100) -> MatchedReservation:
    holder = carrying("reserve", "n0", *minors, share=share, uid="r")
    world.state.set_pod(holder)
    found = MatchedReservation(
        uid="r", name="r", node_name="n0", policy=policy, reserve_pod=world.state.pod_info(holder)
    )
    writable_reservations(world.cycle).matched = {"n0": (found,)}
    return found


def test_a_pod_takes_the_devices_of_its_reservation() -> None:
    world = DeviceCluster(reference_machine())
    mine = reserved(world, *range(8))
    pod = asking("p", {GPU: 100})
    assert world.judged(pod) == ""
    writable_reservations(world.cycle).nominated[pod.metadata.uid] = mine
    assert world.place(pod) == {"gpu": (0,)}
    writable_reservations(world.cycle).matched = {}
    assert world.judged(asking("q", {GPU: 100})) == "Insufficient GPU Devices"
    world.state.drop_pod("r")
    assert world.place(asking("q", {GPU: 700})) == {"gpu": (1, 2, 3, 4, 5, 6, 7)}
    world.check()


def test_what_is_reserved_for_a_pod_counts_as_free_in_its_score() -> None:
    world = DeviceCluster(reference_machine("n0"), reference_machine("n1"))
    reserved(world, 0, 1, 2, 3)
    pod = world.state.pod_info(asking("p", {GPU: 100}))
    cycle = CycleState(world.state)
    writable_reservations(cycle).matched = writable_reservations(world.cycle).matched
    world.plugin.pre_filter(cycle, pod)
    table = world.state.table
    assert len({world.plugin.score(cycle, pod, node) for node in world.state.nodes()}) == 1
    assert set(world.plugin.score_columns(cycle, pod, table, table.live_rows())) == {
        world.plugin.score(cycle, pod, table.index["n0"])
    }
    assert list(world.plugin.filter_columns(cycle, pod, table, table.live_rows())) == [0, 0]
    assert len({world.plugin.score(CycleState(world.state), pod, node) for node in world.state.nodes()}) == 2


def test_a_restricted_reservation_gives_only_its_own_devices() -> None:
    world = DeviceCluster(reference_machine())
    mine = reserved(world, 6, policy="Restricted")
    pod = asking("p", {GPU: 200})
    writable_reservations(world.cycle).nominated[pod.metadata.uid] = mine
    assert world.reserve(pod) == "Reservation(s) Insufficient GPU Devices"
    one = asking("q", {GPU: 100})
    writable_reservations(world.cycle).nominated[one.metadata.uid] = mine
    assert world.place(one) == {"gpu": (6,)}
    world.check()


# Making room -----------------------------------------------------------------------------------------------------


def test_a_victim_gives_up_its_devices_in_a_what_if_only() -> None:
    world = DeviceCluster(reference_machine())
    world.state.set_pod(carrying("low", "n0", *range(8)))
    node = world.state.table.index["n0"]
    pod = world.state.pod_info(asking("high", {GPU: 200}, hint=PAIR))
    cycle = CycleState(world.state)
    assert world.plugin.pre_filter(cycle, pod) is None
    assert world.plugin.filter(cycle, pod, node) == Reject(("Insufficient Topology Scoped GPU Devices",))
    victim = next(iter(world.state.pods()))
    trial = cycle.fork()
    world.plugin.remove_pod(trial, pod, victim, node)
    assert world.plugin.filter(trial, pod, node) is None
    world.plugin.add_pod(trial, pod, victim, node)
    assert world.plugin.filter(trial, pod, node) is not None
    assert world.plugin.filter(cycle, pod, node) is not None
    world.check()


def test_one_who_is_promised_room_takes_cards_in_a_what_if() -> None:
    world = DeviceCluster(reference_machine())
    node = world.state.table.index["n0"]
    pod, ahead = (world.state.pod_info(asking(name, {GPU: 500})) for name in ("p", "ahead"))
    cycle = CycleState(world.state)
    world.plugin.pre_filter(cycle, pod)
    world.plugin.add_pod(cycle, pod, ahead, node)
    assert world.plugin.filter(cycle, pod, node) is not None


# Waking ----------------------------------------------------------------------------------------------------------


def test_only_news_that_help_wake_a_pod() -> None:
    world = DeviceCluster(reference_machine())
    world.state.set_pod(carrying("a", "n0", 0, 2, 4))
    world.state.set_pod(carrying("b", "n0", 6))
    pair = world.state.pod_info(asking("pair", {GPU: 800}))
    wakes = world.plugin.queueing_hint
    (a, b) = (world.state.placed_pod(f"uid-default-{name}") for name in "ab")
    world.state.drop_pod("uid-default-b")
    assert not wakes(pair, ObjectEvent(ClusterEvent("Pod", DELETE), old=b))
    world.state.drop_pod("uid-default-a")
    assert wakes(pair, ObjectEvent(ClusterEvent("Pod", DELETE), old=a))
    plain = world.state.pod_info(make_pod("plain", node="n0"))
    assert not wakes(pair, ObjectEvent(ClusterEvent("Pod", DELETE), old=plain))
    nine = world.state.pod_info(asking("nine", {GPU: 900}))
    assert not wakes(nine, ObjectEvent(ClusterEvent("Device", UPDATE), new=reference_machine()))
    larger = named(device(*[gpu(m) for m in range(9)]), "n0")
    world.devices.put(larger)
    assert wakes(nine, ObjectEvent(ClusterEvent("Device", UPDATE), new=larger))
    assert not wakes(nine, ObjectEvent(ClusterEvent("Node", ADD), new=make_node("elsewhere")))


def test_what_is_written_is_what_others_read() -> None:
    world = DeviceCluster(reference_machine())
    pod = asking("p", {GPU: 50})
    assert world.reserve(pod) == ""
    mark = world.mark(pod)
    assert isinstance(mark, PodPatch)
    assert json.loads(mark.annotations["scheduling.koordinator.sh/device-allocated"]) == {
        "gpu": [{"minor": 0, "resources": {CORE: "50", MEMORY: "8Gi", RATIO: "50"}, "id": "GPU-0"}]
    }
    assert mark.labels == {}


HINT = "internal.scheduling.koordinator.sh/scheduling-hint"


@pytest.mark.parametrize(
    ("extensions", "taken", "got"),
    [
        pytest.param({"DeviceShare": {}}, (), {"gpu": (5,)}, id="as-promised"),
        pytest.param({"DeviceShare": {}}, (5,), "Insufficient GPU Devices", id="somebody-has-it"),
        pytest.param({}, (), {"gpu": (0,)}, id="a-hint-for-others"),
        pytest.param(None, (), {"gpu": (0,)}, id="of-an-earlier-life"),
    ],
)
def test_what_was_given_earlier_is_given_again_if_a_hint_says_so(extensions: Any, taken: Any, got: Any) -> None:
    world = DeviceCluster(reference_machine())
    if taken:
        world.state.set_pod(carrying("other", "n0", *taken))
    amounts = {CORE: "100", RATIO: "100", MEMORY: "16Gi"}
    noted = {A_DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": 5, "resources": amounts}]})}
    if extensions is not None:
        noted[HINT] = json.dumps({"extensions": extensions})
    assert world.place(asking("p", {GPU: 100}, annotations=noted)) == got
    world.check()


def test_promised_cards_tell_their_numa_node() -> None:
    world = DeviceCluster(reference_machine())
    amounts = {CORE: "100", RATIO: "100", MEMORY: "16Gi"}
    noted = {
        A_DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": 5, "resources": amounts}]}),
        HINT: json.dumps({"extensions": {"DeviceShare": {}}}),
    }
    pod = world.state.pod_info(asking("p", {GPU: 100}, annotations=noted))
    found = world.plugin.numa_hints(CycleState(world.state), pod, world.state.table.index["n0"])
    assert isinstance(found, dict)
    assert [hint.mask for hint in found["gpu"]] == [BitMask.of(1)]
