"""Disk limits: which disk a block is, what is written, and what is taken off again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.protocol import A_BLKIO_QOS, BE, LS
from koord.api.koordinator.slo import BlkIOQOSConfig, BlockConfig, IOConfig, ResourceQOS, ResourceQOSStrategy
from koord.host.cgroup import knob
from koord.host.hardware import BlockDevices
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.blkio import BlkioView, decide_blkio
from tests.koordlet.strategies.builders import pod

BE_GROUP = "kubepods/besteffort"
DISKS = BlockDevices(
    disks={"/dev/vda": "253:0", "/dev/vdb": "253:16"},
    partitions={"/dev/vda1": "/dev/vda"},
    volume_groups={"yoda": "/dev/vdb"},
    logical_volumes={"/dev/mapper/yoda-lv": "yoda"},
    mounts={"/mnt/lv": "/dev/mapper/yoda-lv", "/mnt/part": "/dev/vda1", "/mnt/odd": "tmpfs"},
)
ALL = frozenset((*knob.IO_THROTTLES, knob.IO_WEIGHT, knob.IO_QOS, knob.IO_MODEL))


def block(name: str = "/dev/vda", kind: str = "device", **config: Any) -> BlockConfig:
    return BlockConfig(name=name, type=kind, io_cfg=IOConfig(**config))


def view(*blocks: BlockConfig, root: tuple[BlockConfig, ...] = (), enable: bool = True, **changes: Any) -> BlkioView:
    seen = BlkioView(
        strategy=ResourceQOSStrategy(
            be_class=ResourceQOS(blkio_qos=BlkIOQOSConfig(enable=enable, blocks=blocks)),
            cgroup_root=ResourceQOS(blkio_qos=BlkIOQOSConfig(enable=enable, blocks=root)),
        ),
        disks=DISKS,
        besteffort=BE_GROUP,
        supported=ALL,
    )
    return msgspec.structs.replace(seen, **changes)


def lines(seen: BlkioView) -> dict[tuple[str, str], str]:
    effects = decide_blkio(seen).effects
    return {(one.group, one.file): one.value for one in effects if isinstance(one, WriteCgroup)}


def test_limits_of_best_effort_work() -> None:
    assert lines(view(block(read_iops=2048, write_bps=1024, io_weight_percent=60))) == {
        (BE_GROUP, knob.READ_IOPS): "253:0 2048",
        (BE_GROUP, knob.READ_BPS): "253:0 0",
        (BE_GROUP, knob.WRITE_IOPS): "253:0 0",
        (BE_GROUP, knob.WRITE_BPS): "253:0 1024",
        (BE_GROUP, knob.IO_WEIGHT): "253:0 60",
    }


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        pytest.param("/dev/vda", "device", "253:0", id="disk"),
        pytest.param("/dev/vda1", "device", "253:0", id="partition"),
        pytest.param("yoda", "volumegroup", "253:16", id="volume-group"),
        pytest.param("/dev/vdz", "device", None, id="no-such-disk"),
        pytest.param("nope", "volumegroup", None, id="no-such-group"),
        pytest.param("data", "podvolume", None, id="a-class-has-no-volumes"),
        pytest.param("x", "strange", None, id="unknown-type"),
    ],
)
def test_which_disk(name: str, kind: str, number: str | None) -> None:
    found = lines(view(block(name, kind, read_iops=1))).get((BE_GROUP, knob.READ_IOPS))
    assert found == (None if number is None else f"{number} 1")


@pytest.mark.parametrize(
    ("mount", "number"),
    [
        pytest.param("/mnt/lv", "253:16", id="logical-volume"),
        pytest.param("/mnt/part", "253:0", id="partition"),
        pytest.param("/mnt/odd", None, id="no-disk"),
    ],
)
def test_volumes_of_pods(mount: str, number: str | None) -> None:
    text = '{"blocks":[{"name":"data","type":"podvolume","ioCfg":{"readIOPS":5}}]}'
    owner = pod("p", LS, annotations={A_BLKIO_QOS: text})
    seen = view(pods=(owner,), mounts={("p", "data"): mount})
    assert lines(seen).get((owner.group, knob.READ_IOPS)) == (None if number is None else f"{number} 5")


def test_the_cost_model_of_a_disk() -> None:
    seen = view(root=(block(read_latency=1000, enable_user_model=True, model_read_bps=9, model_write_rand_iops=7),))
    assert lines(seen) == {
        ("", knob.IO_QOS): "253:0 enable=1 ctrl=user rpct=95 rlat=1000 wpct=95 wlat=3000",
        ("", knob.IO_MODEL): "253:0 ctrl=user rbps=9 rseqiops=0 rrandiops=0 wbps=0 wseqiops=0 wrandiops=7",
    }
    assert lines(view(root=(block(),)))["", knob.IO_MODEL] == "253:0 ctrl=auto"


def test_a_kernel_without_cost_files_still_gets_limits() -> None:
    found = lines(view(block(read_iops=1), root=(block(),), supported=frozenset(knob.IO_THROTTLES)))
    assert found[BE_GROUP, knob.READ_IOPS] == "253:0 1"
    assert {name for _, name in found} == set(knob.IO_THROTTLES)


def test_what_nobody_asks_for_any_more_is_taken_off() -> None:
    seen = view(enable=False, present={BE_GROUP: frozenset({"253:0"}), "": frozenset({"253:16"})})
    found = lines(seen)
    assert {found[BE_GROUP, name] for name in knob.IO_THROTTLES} == {"253:0 0"}
    assert found[BE_GROUP, knob.IO_WEIGHT] == "253:0 100"
    assert found["", knob.IO_QOS] == "253:16 enable=0"


def test_a_disk_that_cannot_be_found_keeps_its_limits() -> None:
    seen = view(block("/dev/gone", read_iops=1), present={BE_GROUP: frozenset({"8:0"})})
    plan = decide_blkio(seen)
    assert plan.effects == ()
    assert "/dev/gone" in plan.why


def test_an_empty_annotation_takes_everything_off() -> None:
    owner = pod("p", LS, annotations={A_BLKIO_QOS: ""})
    found = lines(view(pods=(owner,), present={owner.group: frozenset({"253:0"})}))
    assert found[owner.group, knob.READ_IOPS] == "253:0 0"


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(pod("p", LS), id="no-annotation"),
        pytest.param(pod("p", annotations={A_BLKIO_QOS: ""}), id="no-class"),
        pytest.param(pod("p", LS, annotations={A_BLKIO_QOS: ""}, phase="Pending"), id="not-running"),
        pytest.param(pod("p", LS, annotations={A_BLKIO_QOS: "{bad"}), id="unreadable"),
    ],
)
def test_other_pods_are_left_alone(owner: Any) -> None:
    assert lines(view(pods=(owner,), present={owner.group: frozenset({"253:0"})})) == {}


def test_without_a_node_slo_nothing_changes() -> None:
    assert decide_blkio(BlkioView(strategy=None, present={"": frozenset({"8:0"})})).effects == ()


def best_effort_pod(name: str, *containers: ContainerMeta, annotation: str = "") -> PodMeta:
    annotations = {A_BLKIO_QOS: annotation} if annotation else {}
    made = pod(name, BE, containers=containers, annotations=annotations)
    return msgspec.structs.replace(made, group=f"{BE_GROUP}/pod{name}")


def container(name: str, *, running: bool = True) -> ContainerMeta:
    return ContainerMeta(name=name, id=f"containerd://{name}", group=f"group-of-{name}", running=running)


def test_where_limits_are_not_inherited_running_containers_get_equal_parts() -> None:
    pods = (
        best_effort_pod("a", container("a1"), container("a2")),
        best_effort_pod("b", container("b1"), container("b2", running=False)),
        pod("service", LS, containers=(container("s1"),)),
    )
    found = lines(view(block(write_bps=3001, read_iops=2), pods=pods, inherited=False))
    assert found[BE_GROUP, knob.WRITE_BPS] == "253:0 3001"
    assert {key: value for key, value in found.items() if key[0] != BE_GROUP} == {
        ("group-of-a1", knob.WRITE_BPS): "253:0 1000",
        ("group-of-a2", knob.WRITE_BPS): "253:0 1000",
        ("group-of-b1", knob.WRITE_BPS): "253:0 1000",
        # Not 0, which would be no limit.
        ("group-of-a1", knob.READ_IOPS): "253:0 1",
        ("group-of-a2", knob.READ_IOPS): "253:0 1",
        ("group-of-b1", knob.READ_IOPS): "253:0 1",
    }


def test_where_limits_are_inherited_containers_have_none_of_their_own() -> None:
    pods = (best_effort_pod("a", container("a1")),)
    assert {group for group, _ in lines(view(block(write_bps=3001), pods=pods))} == {BE_GROUP}


@pytest.mark.parametrize(
    ("own", "expected"),
    [pytest.param(100, 50, id="the-pods-is-smaller"), pytest.param(9000, 1500, id="the-classes-is-smaller")],
)
def test_a_container_below_two_limits_has_the_smaller_part(own: int, expected: int) -> None:
    text = f'{{"blocks":[{{"name":"/dev/vda","type":"device","ioCfg":{{"writeBPS":{own}}}}}]}}'
    pods = (best_effort_pod("a", container("a1"), container("a2"), annotation=text),)
    found = lines(view(block(write_bps=3000), pods=pods, inherited=False))
    assert found["group-of-a1", knob.WRITE_BPS] == f"253:0 {expected}"


@given(limit=st.integers(1, 1 << 40), count=st.integers(1, 50))
def test_the_parts_of_containers_are_never_more_than_the_limit_of_the_class(limit: int, count: int) -> None:
    pods = (best_effort_pod("a", *(container(f"c{number}") for number in range(count))),)
    found = lines(view(block(write_bps=limit), pods=pods, inherited=False))
    parts = [int(value.split()[1]) for (group, _), value in found.items() if group.startswith("group-of-")]
    assert len(parts) == count
    assert all(parts)
    assert sum(parts) <= max(limit, count), "a part is at least 1, as 0 is no limit"
