"""Node profiles are parsed into pools, or refused with the field that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.embedded.kubelet import node_profile
from koord.embedded.kubelet.node_objects import SimulatedNodeSpec, node_allocatable, node_capacity, node_labels
from koord.embedded.kubelet.node_profile import InvalidProfile, SimulatedPool, default_pools
from koord.embedded.kubelet.simulated_host import NetworkFullError, NodeIpam, PodCidrAllocator

WHOLE = """
pools:
  - name: general
    count: 3
    zones: [a, b]
    labels: {team: web}
  - name: gpu
    count: 2
    cpu: 96
    memory: 768Gi
    pods: 64
    sockets: 2
    numaNodes: 4
    gpus: {count: 8, model: H100, memory: 80Gi, perPcie: 2}
    rdma: {count: 4, virtualFunctions: 8}
    resources: {example.com/fpga: 2, hugepages-2Mi: 4Gi}
    taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
    reserved: {cpu: 500m, memory: 2Gi}
    usage: {model: daily, cpu: [10%, 60%], peakHour: 20}
"""


def pools(text: str) -> tuple[SimulatedPool, ...]:
    found = node_profile.parse_profile(text)
    assert not isinstance(found, InvalidProfile), found
    return found


def machine(pool: SimulatedPool, number: int = 0) -> SimulatedNodeSpec:
    name = pool.node_name(number)
    return SimulatedNodeSpec(
        name=name, pool=pool, number=number, address="172.16.0.1", pod_cidr="10.0.0.0/24", hardware=pool.hardware(name)
    )


def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(WHOLE)
    found = node_profile.load_profile(path)
    assert not isinstance(found, InvalidProfile)
    assert [(pool.name, pool.count) for pool in found] == [("general", 3), ("gpu", 2)]


def test_missing_file_is_said(tmp_path: Path) -> None:
    found = node_profile.load_profile(tmp_path / "none.yaml")
    assert isinstance(found, InvalidProfile)
    assert "none.yaml: cannot be read" in str(found)


def test_default_profile_has_as_many_plain_nodes_as_asked_for() -> None:
    assert default_pools(0) == ()
    (pool,) = default_pools(7)
    assert pool.count == 7
    assert node_capacity(pool)["cpu"] == "32"
    assert node_capacity(pool)["memory"] == "128Gi"
    assert node_profile.validate_pools(default_pools(7)) == []


def test_zones_take_turns() -> None:
    general, _ = pools(WHOLE)
    zones = [node_labels(machine(general, number))["topology.kubernetes.io/zone"] for number in range(3)]
    assert zones == ["a", "b", "a"]


def test_allocatable_is_capacity_less_what_is_kept_back() -> None:
    _, gpu = pools(WHOLE)
    assert node_capacity(gpu)["nvidia.com/gpu"] == "8"
    assert node_capacity(gpu)["example.com/fpga"] == "2"
    kept = node_allocatable(gpu)
    assert kept["cpu"] == "95500m"
    assert kept["memory"] == f"{768 * 1024 - 2 * 1024 - 100 - 4 * 1024}Mi"  # reserved, eviction threshold, huge pages
    assert kept["pods"] == "64"


def test_shape_places_processors_and_cards_on_numa_nodes() -> None:
    _, gpu = pools(WHOLE)
    shape = gpu.hardware("gpu-0")
    processors = shape.logical_cpus()
    assert len(processors) == shape.cpus == 96
    assert shape.cores == 48
    assert [sum(p.numa == numa for p in processors) for numa in range(4)] == [24] * 4
    assert {(p.numa, p.socket) for p in processors} == {(0, 0), (1, 0), (2, 1), (3, 1)}
    assert processors[0].core == processors[48].core  # hyper-threads of one core
    assert [card.numa for card in shape.gpus] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({card.pcie for card in shape.gpus}) == 4
    assert [card.socket for card in shape.nics] == [0, 0, 1, 1]
    assert len({card.bus_id for card in shape.gpus} | {card.bus_id for card in shape.nics}) == 12


def test_cards_have_names_of_their_own_that_last() -> None:
    _, gpu = pools(WHOLE)
    first, other = gpu.hardware("gpu-0"), gpu.hardware("gpu-1")
    assert first == gpu.hardware("gpu-0")
    assert len({card.uuid for card in (*first.gpus, *other.gpus)}) == 16


WRONG = [
    pytest.param("pools: [{name: a, count: 1, cpus: 3}]", "cpus", id="unknown-field"),
    pytest.param("pools: [{name: a, count: many}]", "pools[0].count: Expected `int`", id="wrong-type"),
    pytest.param("pools: [{count: 1}]", "pools[0]: Object missing required field `name`", id="no-name"),
    pytest.param("pools: [{name: A_b, count: 1}]", "pools[0].name", id="name-that-no-node-may-have"),
    pytest.param("pools: [{name: a, count: -1}]", "pools[0].count", id="negative-count"),
    pytest.param("pools: [{name: a, count: 1}, {name: a, count: 1}]", "pools.name[1]", id="name-twice"),
    pytest.param("pools: [{name: a, count: 1, cpu: 1.5}]", "pools[0].cpu", id="part-of-a-cpu"),
    pytest.param("pools: [{name: a, count: 1, memory: 12Gx}]", "pools[0].memory", id="memory-that-is-no-amount"),
    pytest.param("pools: [{name: a, count: 1, cpu: 9}]", "pools[0].threadsPerCore", id="odd-number-of-threads"),
    pytest.param("pools: [{name: a, count: 1, cpu: 12, numaNodes: 4}]", "pools[0].numaNodes", id="uneven-numa-nodes"),
    pytest.param("pools: [{name: a, count: 1, sockets: 2}]", "pools[0].sockets", id="more-sockets-than-numa-nodes"),
    pytest.param("pools: [{name: a, count: 1, reserved: {cpu: 40}}]", "pools[0].reserved.cpu", id="all-cpu-reserved"),
    pytest.param(
        "pools: [{name: a, count: 1, reserved: {memory: 128Gi}}]", "pools[0].reserved.memory", id="all-memory-reserved"
    ),
    pytest.param(
        "pools: [{name: a, count: 1, taints: [{key: k, effect: Never}]}]", "pools[0].taints[0].effect", id="taint"
    ),
    pytest.param("pools: [{name: a, count: 1, kernel: bsd}]", "pools[0].kernel", id="kernel"),
    pytest.param("pools: [{name: a, count: 1, labels: {'a b': c}}]", "pools[0].labels", id="label-key"),
    pytest.param("pools: [{name: a, count: 1, gpus: {count: 0}}]", "pools[0].gpus.count", id="no-gpus"),
    pytest.param(
        "pools: [{name: a, count: 1, usage: {model: daily, peakHour: 30}}]", "pools[0].usage", id="usage-model"
    ),
    pytest.param("pools: [{name: a, count: 1, usage: {model: wild}}]", "pools[0].usage", id="unknown-usage-model"),
    pytest.param("pools: [{name: a, count: 1, jobSeconds: -1}]", "pools[0].jobSeconds", id="negative-job"),
    pytest.param("{", "is not YAML", id="not-yaml"),
    pytest.param("", "Expected `object`", id="empty"),
]


@pytest.mark.parametrize(("text", "complaint"), WRONG)
def test_wrong_profile_is_refused_by_field(text: str, complaint: str) -> None:
    found = node_profile.parse_profile(text)
    assert isinstance(found, InvalidProfile)
    assert complaint in str(found)


def test_pod_blocks_do_not_overlap_and_fit_the_pods() -> None:
    addresses = NodeIpam()
    assert [addresses.allocate_pod_cidr(110), addresses.allocate_pod_cidr(8), addresses.allocate_pod_cidr(250)] == [
        "10.0.0.0/24",
        "10.0.1.0/28",
        "10.0.2.0/23",
    ]


def test_full_network_is_said() -> None:
    addresses = NodeIpam()
    for _ in range((1 << 24) // 8192):
        addresses.allocate_pod_cidr(4096)
    with pytest.raises(NetworkFullError, match=r"10\.0\.0\.0/8"):
        addresses.allocate_pod_cidr(4096)


def test_freed_address_is_used_last() -> None:
    block = PodCidrAllocator("10.0.0.0/29")
    taken = [block.allocate() for _ in range(5)]
    assert taken == ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]
    assert block.allocate() is None
    block.release("10.0.0.4")
    block.release("10.0.0.2")
    assert [block.allocate(), block.allocate(), block.allocate()] == ["10.0.0.4", "10.0.0.2", None]


def test_claimed_address_is_not_given_out() -> None:
    block = PodCidrAllocator("10.0.0.0/29")
    block.reserve("10.0.0.4")
    block.reserve("10.0.0.2")
    assert {block.allocate() for _ in range(4)} == {"10.0.0.3", "10.0.0.5", "10.0.0.6", None}
