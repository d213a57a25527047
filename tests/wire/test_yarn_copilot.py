"""The copilot's API and the NodeManager's list: real texts, any text, and who is chosen to free resources."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.wire.yarn_copilot import (
    FINAL_STATES,
    ContainerInfo,
    MalformedAnswer,
    NodeManagerContainer,
    container_info,
    is_application_master,
    is_container_id,
    parse_node_manager_containers,
    select_by_resource,
)

MIB = 2**20
# As a NodeManager of Hadoop 3.3 answers; there is no appid in it.
LISTED = (
    b'{"containers":{"container":[{"id":"container_1700000000000_0001_01_000001","state":"RUNNING","exitCode":"-1000",'
    b'"diagnostics":"","user":"root","totalMemoryNeededMB":512,"totalVCoresNeeded":1,"executionType":"GUARANTEED",'
    b'"containerLogsLink":"http://localhost:8042/node/containerlogs/container_1700000000000_0001_01_000001/root",'
    b'"nodeId":"localhost:8041","containerLogFiles":["prelaunch.err"]}]}}'
)


def container(number: int, vcores: int = 1, memory_mb: int = 512, state: str = "RUNNING") -> NodeManagerContainer:
    return NodeManagerContainer(id=f"container_1_0001_01_{number:06d}", state=state, vcores=vcores, memory_mb=memory_mb)


def test_a_real_list() -> None:
    listed = parse_node_manager_containers(LISTED)
    assert isinstance(listed, list)
    (one,) = listed
    assert (one.id, one.vcores, one.memory_bytes) == ("container_1700000000000_0001_01_000001", 1, 512 * MIB)


@pytest.mark.parametrize("body", [b'{"containers":{}}', b'{"containers":null}', b"{}"])
def test_no_containers(body: bytes) -> None:
    assert parse_node_manager_containers(body) == []


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_containers_that_have_ended_are_left_out(state: str) -> None:
    rows = [{"id": "container_1_0001_01_000001", "state": state}, {"id": "container_1_0001_01_000002", "state": "NEW"}]
    listed = parse_node_manager_containers(json.dumps({"containers": {"container": rows}}).encode())
    assert isinstance(listed, list)
    assert [one.id for one in listed] == ["container_1_0001_01_000002"]


@given(st.binary(max_size=100) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_text_is_a_list_or_malformed(body: bytes) -> None:
    assert isinstance(parse_node_manager_containers(body), list | MalformedAnswer)


def test_the_json_of_a_container_is_upstreams() -> None:
    info = container_info(container(2, vcores=3, memory_mb=1024), "kubepods/besteffort/hadoop-yarn")
    amounts = {"cpu": "3", "memory": str(1024 * MIB)}
    assert json.loads(msgspec.json.encode(info)) == {
        "name": "container_1_0001_01_000002",
        "namespace": "yarn",
        "uid": "container_1_0001_01_000002",
        "labels": None,
        "annotations": None,
        "priority": 1,
        "createTimestamp": "0001-01-01T00:00:00Z",
        "cgroupDir": "kubepods/besteffort/hadoop-yarn/container_1_0001_01_000002",
        "hostNetwork": True,
        "resources": {"limits": amounts, "requests": amounts},
    }
    assert msgspec.json.decode(msgspec.json.encode(info), type=ContainerInfo) == info


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("container_1700000000000_0001_01_000001", True),
        ("container_e17_1700000000000_0001_01_000001", True),
        ("container_../../x", False),
        ("container_1/x", False),
        ("", False),
        ("pod1", False),
    ],
)
def test_ids_of_containers(text: str, expected: bool) -> None:
    assert is_container_id(text) is expected


def test_the_first_container_of_an_attempt_is_the_master() -> None:
    assert is_application_master("container_e17_1700000000000_0001_02_000001")
    assert not is_application_master("container_1700000000000_0001_01_000011")


@pytest.mark.parametrize(
    ("milli", "memory_mb", "expected"),
    [
        (1000, 0, [3]),
        (1500, 0, [3, 2]),
        (0, 600, [3, 2]),
        (10_000, 0, [3, 2, 1]),
        (0, 0, []),
    ],
)
def test_the_newest_go_first_and_the_master_last(milli: int, memory_mb: int, expected: list[int]) -> None:
    chosen = select_by_resource([container(1), container(2), container(3)], milli, memory_mb * MIB)
    assert [int(one.id[-6:]) for one in chosen] == expected


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2000)), max_size=12),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
)
def test_what_is_chosen_is_enough_and_nobody_is_superfluous(
    amounts: list[tuple[int, int]], milli: int, memory_mb: int
) -> None:
    everybody = [container(number, *amount) for number, amount in enumerate(amounts, 1)]
    chosen = select_by_resource(everybody, milli, memory_mb * MIB)
    cpu, memory = sum(one.vcores * 1000 for one in chosen), sum(one.memory_mb for one in chosen)
    helpful = [one for one in everybody if (one.vcores and cpu < milli) or (one.memory_mb and memory < memory_mb)]
    assert {one.id for one in helpful} <= {one.id for one in chosen}  # all that help, where it is not enough
    if chosen:
        last = chosen[-1]
        assert cpu - last.vcores * 1000 < milli or memory - last.memory_mb < memory_mb
