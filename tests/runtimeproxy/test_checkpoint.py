"""Records of pods and containers outlive the process, and a damaged disk costs records, not pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.runtimeproxy.checkpoint import Checkpoint, ContainerRecord
from koord.telemetry.metrics import Counter
from koord.wire.runtime_hook import (
    ContainerResourceHookRequest,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxMetadata,
)

POD = PodSandboxHookRequest(pod_meta=PodSandboxMetadata(name="a"), labels={"x": "y"}, cgroup_parent="/p")
CONTAINER = ContainerRecord(
    "s1",
    ContainerResourceHookRequest(container_resources=LinuxContainerResources(cpu_quota=-1), container_envs={"A": ""}),
)


@pytest.fixture
def errors() -> Counter:
    return Counter()


@pytest.fixture
def checkpoint(tmp_path: Path, errors: Counter) -> Iterator[Checkpoint]:
    made = Checkpoint(tmp_path, errors)
    made.load()
    yield made
    made.close()


def loaded(folder: Path) -> Checkpoint:
    again = Checkpoint(folder, Counter())
    again.load()
    again.close()
    return again


async def test_records_are_there_after_a_restart(checkpoint: Checkpoint, tmp_path: Path) -> None:
    await checkpoint.put_pod("s1", POD)
    await checkpoint.put_pod("s2", POD)
    await checkpoint.put_container("c1", CONTAINER)
    await checkpoint.put_container("c2", CONTAINER)
    await checkpoint.remove_pod("s2")
    await checkpoint.remove_container("c2")
    again = loaded(tmp_path)
    assert (again.pods, again.containers) == ({"s1": POD}, {"c1": CONTAINER})


async def test_containers_go_with_their_sandbox(checkpoint: Checkpoint, tmp_path: Path) -> None:
    await checkpoint.put_container("c1", CONTAINER)
    await checkpoint.put_container("c2", ContainerRecord("s2", CONTAINER.request))
    await checkpoint.remove_containers_of("s1")
    assert set(loaded(tmp_path).containers) == {"c2"}


async def test_only_what_is_retained_stays(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for id in ("s1", "s2"):
        await checkpoint.put_pod(id, POD)
        await checkpoint.put_container(f"c{id}", CONTAINER)
    await checkpoint.retain({"s2"}, {"cs1"})
    again = loaded(tmp_path)
    assert (set(again.pods), set(again.containers)) == ({"s2"}, {"cs1"})


async def test_half_a_record_and_a_damaged_one_are_removed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    await checkpoint.put_pod("s1", POD)
    (tmp_path / "pods" / "s2.json.partial").write_text('{"pod_meta":{"na')
    (tmp_path / "pods" / "s3.json").write_bytes(b"\0" * 100)
    (tmp_path / "containers" / "c1.json").write_text('{"sandbox_id": 5}')
    again = loaded(tmp_path)
    assert (again.pods, again.containers) == ({"s1": POD}, {})
    assert [path.name for path in (tmp_path / "pods").iterdir()] == ["s1.json"]
    assert list((tmp_path / "containers").iterdir()) == []


@pytest.mark.parametrize("id", ["../../etc/passwd", "a/b", "", ".", "..", "-x", "a" * 200, "ü"])
async def test_an_id_that_is_no_file_name_is_kept_in_memory(
    checkpoint: Checkpoint, tmp_path: Path, errors: Counter, id: str
) -> None:
    await checkpoint.put_pod(id, POD)
    assert checkpoint.pods[id] == POD
    assert errors.value == 1
    assert list((tmp_path / "pods").iterdir()) == []


async def test_a_disk_that_refuses_is_counted_and_memory_goes_on(
    checkpoint: Checkpoint, tmp_path: Path, errors: Counter
) -> None:
    (tmp_path / "pods").rmdir()
    (tmp_path / "pods").write_text("in the way")
    await checkpoint.put_pod("s1", POD)
    assert checkpoint.pods == {"s1": POD}
    assert errors.value == 1
    again = Checkpoint(tmp_path, errors)
    again.load()
    again.close()
    assert (again.pods, errors.value) == ({}, 2)


texts = st.text(max_size=8)
maps = st.dictionaries(texts, texts, max_size=3)


@given(maps, maps, texts, st.integers(-(2**63), 2**63 - 1))
def test_any_record_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, labels: dict[str, str], envs: dict[str, str], parent: str, quota: int
) -> None:
    folder = tmp_path_factory.mktemp("records")
    pod = PodSandboxHookRequest(labels=labels, cgroup_parent=parent)
    resources = LinuxContainerResources(cpu_quota=quota, unified=labels)
    record = ContainerRecord("s", ContainerResourceHookRequest(container_envs=envs, container_resources=resources))

    async def write() -> None:
        loaded(folder)  # makes the folders
        checkpoint = Checkpoint(folder, Counter())
        await checkpoint.put_pod("s", pod)
        await checkpoint.put_container("c", record)
        checkpoint.close()

    asyncio.run(write())
    again = loaded(folder)
    assert (again.pods, again.containers) == ({"s": pod}, {"c": record})
