"""Layouts, detection and readers work on fake machines of both cgroup versions."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.koordinator.slo import CgroupPath, HostApplicationSpec
from koord.host.cgroup import usage
from koord.host.cgroup.detection import DetectedLayout, LayoutNotDetected, cgroup_version, detect_layout, open_tree
from koord.host.cgroup.layout import CgroupLayout, kube_qos_of_path
from koord.host.filesystem import DAEMONSET_PATHS, Host, HostPaths, strip_trailing_slashes
from koord.host.io_error import IoError
from koord.values.cpuset import CPUSet
from tests.host.fake_machine import FakeMachine

UID = "0e8c5b7a-4c1f-4f43-a6f2-3b8f1a2f9d10"
SYSTEMD_UID = UID.replace("-", "_")
LAYOUTS = [
    CgroupLayout("cgroupfs"),
    CgroupLayout("systemd"),
    CgroupLayout("cgroupfs", ("kubelet",)),
    CgroupLayout("systemd", ("kubelet",)),
]


@pytest.mark.parametrize(
    ("layout", "qos", "path"),
    [
        pytest.param(LAYOUTS[0], GUARANTEED, f"kubepods/pod{UID}", id="cgroupfs-guaranteed"),
        pytest.param(LAYOUTS[0], BEST_EFFORT, f"kubepods/besteffort/pod{UID}", id="cgroupfs-besteffort"),
        pytest.param(
            LAYOUTS[1], GUARANTEED, f"kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice", id="systemd-guaranteed"
        ),
        pytest.param(
            LAYOUTS[1],
            BURSTABLE,
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice",
            id="systemd-burstable",
        ),
        pytest.param(
            LAYOUTS[3],
            BEST_EFFORT,
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{SYSTEMD_UID}.slice",
            id="kind",
        ),
    ],
)
def test_pod_paths_and_back(layout: CgroupLayout, qos: str, path: str) -> None:
    assert layout.pod_dir(qos, UID) == path
    assert layout.pod_uid_of_dir(path.rpartition("/")[2]) == UID
    assert kube_qos_of_path(path) == qos


@pytest.mark.parametrize(
    ("layout", "parent", "path"),
    [
        pytest.param(LAYOUTS[0], f"/kubepods/burstable/pod{UID}", f"kubepods/burstable/pod{UID}", id="cgroupfs"),
        pytest.param(LAYOUTS[0], "a-b.slice", "a-b.slice", id="cgroupfs-has-no-slices"),
        pytest.param(
            LAYOUTS[1],
            f"kubepods-burstable-pod{SYSTEMD_UID}.slice",
            LAYOUTS[1].pod_dir(BURSTABLE, UID),
            id="systemd-name-alone",
        ),
        pytest.param(
            LAYOUTS[1],
            f"kubepods-pod{SYSTEMD_UID}.slice",
            LAYOUTS[1].pod_dir(GUARANTEED, UID),
            id="systemd-guaranteed",
        ),
        pytest.param(
            LAYOUTS[3],
            f"kubelet-kubepods-besteffort-pod{SYSTEMD_UID}.slice",
            LAYOUTS[3].pod_dir(BEST_EFFORT, UID),
            id="kind",
        ),
        pytest.param(
            LAYOUTS[1],
            f"/{LAYOUTS[1].pod_dir(BURSTABLE, UID)}",
            LAYOUTS[1].pod_dir(BURSTABLE, UID),
            id="systemd-whole-path",
        ),
        pytest.param(LAYOUTS[1], "-.slice", "-.slice", id="no-name-of-a-slice"),
        pytest.param(LAYOUTS[1], "", "", id="nothing"),
    ],
)
def test_the_group_of_a_sandbox_by_its_parent(layout: CgroupLayout, parent: str, path: str) -> None:
    assert layout.group_of_parent(parent) == path


@pytest.mark.parametrize(
    ("container", "scope", "plain"),
    [
        ("docker://abc", "docker-abc.scope", "abc"),
        ("containerd://abc", "cri-containerd-abc.scope", "abc"),
        ("pouch://abc", "pouch-abc.scope", "abc"),
        ("cri-o://abc", "crio-abc.scope", "crio-abc"),
    ],
)
def test_container_names_and_back(container: str, scope: str, plain: str) -> None:
    systemd, cgroupfs = CgroupLayout("systemd"), CgroupLayout("cgroupfs")
    assert (systemd.container_name(container), cgroupfs.container_name(container)) == (scope, plain)
    assert (systemd.container_id_of_dir(scope), cgroupfs.container_id_of_dir(plain)) == ("abc", "abc")


def test_names_without_an_id() -> None:
    for name in ("crio-", ""):
        assert CgroupLayout("systemd").container_id_of_dir(name) is None
        assert CgroupLayout("cgroupfs").container_id_of_dir(name) is None


@pytest.mark.parametrize("container", ["rkt://abc", "abc", "containerd://", ""])
def test_unknown_container_ids(container: str) -> None:
    assert CgroupLayout("systemd").container_name(container) is None


@pytest.mark.parametrize("name", ["besteffort", "system.slice", "kubepods-burstable.slice", "pod", "other-podx.slice"])
def test_groups_that_are_no_pods(name: str) -> None:
    assert (CgroupLayout("systemd").pod_uid_of_dir(name), CgroupLayout("cgroupfs").pod_uid_of_dir(name)) == (None, None)


def test_host_applications() -> None:
    layout = CgroupLayout("systemd")
    assert layout.host_application_dir(HostApplicationSpec(name="nginx", qos="LS")) == "host-latency-sensitive/nginx"
    assert layout.host_application_dir(HostApplicationSpec(name="job", qos="BE")) == "host-best-effort/job"
    assert layout.host_application_dir(HostApplicationSpec(name="x")) == "x"
    below = layout.host_application_dir(
        HostApplicationSpec(
            name="y",
            qos="BE",
            cgroup_path=CgroupPath(base="KubepodsBesteffort", parent_dir="/jobs/", relative_path="y"),
        )
    )
    assert below == "kubepods.slice/kubepods-besteffort.slice/jobs/y"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["cgroupfs", "systemd", "kind-cgroupfs", "kind-systemd"])
def test_detection_of_usual_layouts(tmp_path: Path, version: int, layout: CgroupLayout) -> None:
    machine = FakeMachine(tmp_path, version, layout)
    found = detect_layout(machine.host)
    assert isinstance(found, DetectedLayout)
    assert (cgroup_version(machine.host), found.layout) == (version, layout)


def test_detection_finds_an_unusual_prefix(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 2, CgroupLayout("systemd", ("docker", "node1")))
    found = detect_layout(machine.host)
    assert isinstance(found, DetectedLayout)
    assert found.layout == machine.layout


def test_detection_names_all_places_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    found = open_tree(Host(HostPaths().below_root(str(tmp_path))), 10250)
    assert isinstance(found, LayoutNotDetected)
    for word in ("kubepods.slice", "kubelet.slice", "running kubelet", "10250"):
        assert word in str(found)


@pytest.mark.parametrize(
    ("cmdline", "config", "layout"),
    [
        pytest.param("kubelet --cgroup-driver=systemd", None, CgroupLayout("systemd"), id="flag"),
        pytest.param("kubelet --config /etc/k.yaml", "cgroupDriver: systemd\n", CgroupLayout("systemd"), id="config"),
        pytest.param("kubelet --config=/etc/k.yaml", 'kind: K\ncgroupRoot: "/kubelet"\n', LAYOUTS[2], id="root"),
        pytest.param("kubelet --v 2", None, CgroupLayout("cgroupfs"), id="nothing-said"),
    ],
)
def test_detection_asks_the_kubelet(tmp_path: Path, cmdline: str, config: str | None, layout: CgroupLayout) -> None:
    process = tmp_path / "proc/77"
    (process / "root/etc").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    (process / "comm").write_text("kubelet\n")
    (process / "cmdline").write_text(cmdline.replace(" ", "\0") + "\0")
    if config:
        (process / "root/etc/k.yaml").write_text(config)
    found = detect_layout(Host(HostPaths().below_root(str(tmp_path))))
    assert isinstance(found, DetectedLayout)
    assert found.layout == layout


def test_detection_finds_the_kubelet_inside_another_program_by_its_port(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    (tmp_path / "proc/1/net").mkdir(parents=True)
    (tmp_path / "proc/1/net/tcp6").write_text("sl\n 0: 00:280A 00:0000 0A 0:0 0:0 0 0 0 4711 1\n")
    (tmp_path / "proc/5/fd").mkdir(parents=True)
    (tmp_path / "proc/5/fd/3").symlink_to("socket:[4711]")
    (tmp_path / "proc/5/comm").write_text("k3s-server\n")
    (tmp_path / "proc/5/cmdline").write_text("k3s\0server\0--cgroup-driver=systemd\0")
    found = detect_layout(Host(HostPaths().below_root(str(tmp_path))), 10250)
    assert isinstance(found, DetectedLayout)
    assert found.layout == CgroupLayout("systemd")


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path, request.param)


def test_readings_are_equal_on_both_versions(machine: FakeMachine) -> None:
    tree, group = machine.tree, "kubepods/besteffort"
    assert usage.cpu_usage_ns(tree, group) == 5_000_000_000
    found = usage.throttling(tree, group)
    assert not isinstance(found, IoError)
    assert (found.periods, found.throttled, found.throttled_ns) == (100, 7, 9000)
    memory = usage.memory_stat(tree, group)
    assert not isinstance(memory, IoError)
    assert (memory.usage, memory.usage_with_page_cache, memory.cache, memory.rss) == (155, 755, 700, 300)
    assert (usage.cpu_quota_us(tree, group), usage.cpu_period_us(tree, group)) == (-1, 100_000)
    assert usage.cpu_limit_milli(tree, group) is None
    assert usage.cpuset(tree, group) == CPUSet.parse("0-3")


def test_limits_that_are_set(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 2)
    machine.put("sys/fs/cgroup/kubepods/cpu.max", "150000 100000\n")
    machine.put("sys/fs/cgroup/kubepods/cpu.weight", "39\n")
    assert usage.cpu_limit_milli(machine.tree, "kubepods") == 1500
    assert usage.cpu_shares(machine.tree, "kubepods") == 998
    machine.put("sys/fs/cgroup/kubepods/cpu.max", "garbage\n")
    assert isinstance(usage.cpu_quota_us(machine.tree, "kubepods"), IoError)


@pytest.mark.parametrize("drop", ["nr_periods", "nr_throttled", "throttled"])
def test_half_a_record_is_a_fault(machine: FakeMachine, drop: str) -> None:
    path = Path(machine.tree.group_path("cpu", "kubepods")) / "cpu.stat"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(drop)))
    found = usage.throttling(machine.tree, "kubepods")
    assert isinstance(found, IoError)
    assert not found.vanished


def test_a_group_that_is_gone(machine: FakeMachine) -> None:
    found = usage.cpu_usage_ns(machine.tree, "kubepods/podgone")
    assert isinstance(found, IoError)
    assert found.vanished
    assert found.errno == errno.ENOENT


def test_pressure_of_a_v1_node_is_found_in_its_unified_tree(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 1)
    assert isinstance(usage.pressure(machine.tree, "cpu.pressure", "kubepods"), IoError)
    assert not machine.tree.is_supported("cpu.pressure")
    machine.put("sys/fs/cgroup/unified/kubepods/cpu.pressure", "some avg10=9.00 avg60=1.00 avg300=0.00 total=5\n")
    found = usage.pressure(machine.tree, "cpu.pressure", "kubepods")
    assert not isinstance(found, IoError)
    assert (found.some.avg10, found.full_supported, found.full.avg10) == (9.0, False, 0.0)
    assert machine.tree.is_supported("cpu.pressure")


def test_pressure_with_an_unknown_line_is_a_fault(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 2)
    machine.put("sys/fs/cgroup/kubepods/io.pressure", "most avg10=9.00 avg60=1.00 avg300=0.00 total=5\n")
    assert isinstance(usage.pressure(machine.tree, "io.pressure", "kubepods"), IoError)


def test_support(tmp_path: Path) -> None:
    plain, vendor = FakeMachine(tmp_path / "plain"), FakeMachine(tmp_path / "vendor", vendor=True)
    for knob, expected in {"cpu.bvt_warp_ns": False, "memory.min": False, "cpu.idle": True, "cpu.shares": True}.items():
        assert plain.tree.is_supported(knob, "kubepods") is expected
        assert vendor.tree.is_supported(knob, "kubepods")
    assert not vendor.tree.is_supported("memory.pagecache_limit.size", "kubepods")


def test_cold_memory(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 1)
    head = ["# version: 1.0", *(f"# name{i}: 1" for i in range(4)), "1,2,5,15,30,60,120,240", *("#",) * 8]
    rows = ["csei 9 9 9 9 9 9 9 9", "cfei 1 1 1 1 1 2 3 4", "dfui 0 0 0 0 0 10 0 0", *("slab 0 0",) * 14]
    machine.put("sys/fs/cgroup/memory/kubepods/memory.idle_page_stats", "\n".join([*head, *rows]) + "\n")
    assert usage.cold_bytes(machine.tree, "kubepods") == 19
    machine.put("sys/fs/cgroup/memory/kubepods/memory.idle_page_stats", "\n".join(head))
    assert isinstance(usage.cold_bytes(machine.tree, "kubepods"), IoError)


def test_paths() -> None:
    assert HostPaths().below_root("/x/").proc == "/x/proc"
    assert DAEMONSET_PATHS.cgroup == "/host-cgroup"
    assert strip_trailing_slashes(HostPaths(cgroup="/host-cgroup/")).cgroup == "/host-cgroup"
