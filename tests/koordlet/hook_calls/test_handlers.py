"""What runtimes are answered, by NRI and through the proxy: values, echoes, failures and their policies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from koord.koordlet.hook_calls.hook_calls import EVENT_INTERVAL_S, STARTING_S
from koord.koordlet.hook_calls.nri_handler import HookFailure
from koord.koordlet.hook_server.handler import HookFailed
from koord.koordlet.hooks.hook import NodeRules
from koord.wire.nri_messages import (
    LinuxContainer,
    LinuxCpu,
    LinuxPodSandbox,
    LinuxResources,
    NriContainer,
    NriPodSandbox,
)
from koord.wire.runtime_hook import (
    ContainerDevice,
    ContainerMetadata,
    ContainerResourceHookRequest,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxMetadata,
    echo_container,
    echo_pod,
)
from tests.koordlet.hook_calls.calls_fixture import BE_LABELS, EXTENDED, HOOK_GATES, MI, STATUS, CallsFixture, extended
from tests.koordlet.strategies.runner_fixture import BE_POD

T = TypeVar("T")
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
SHARE = {
    "scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-memory":"8Gi",'
    '"koordinator.sh/gpu-memory-ratio":"50"}}]}'
}
PARENT = f"/{BE_POD}"
RDMA_POD = {"scheduling.koordinator.sh/device-allocated": '{"rdma":[{"minor":0,"id":"0000:01:00.0"}]}'}


def wait(answer: Awaitable[T]) -> T:
    async def main() -> T:
        return await answer

    return asyncio.run(main())


def nri_pod(annotations: dict[str, str], labels: dict[str, str] | None = None) -> NriPodSandbox:
    return NriPodSandbox(
        id="sandbox",
        name="batch",
        namespace="default",
        uid="be",
        labels=BE_LABELS if labels is None else labels,
        annotations=annotations,
        linux=LinuxPodSandbox(cgroup_parent=PARENT),
    )


def nri_container(name: str = "main") -> NriContainer:
    resources = LinuxResources(cpu=LinuxCpu(shares=2))
    return NriContainer(id="c1", name=name, linux=LinuxContainer(resources=resources), env=("A=b",))


@pytest.fixture
def world(tmp_path: Path) -> CallsFixture:
    return CallsFixture(tmp_path)


class TestNri:
    def test_a_container_is_adjusted(self, world: CallsFixture) -> None:
        found = wait(world.nri.create_container(nri_pod(extended()), nri_container()))
        assert found is not None
        assert found.linux is not None
        assert found.linux.resources is not None
        assert found.linux.resources.cpu == LinuxCpu(shares=512, quota=50_000)
        assert found.linux.resources.memory is not None
        assert found.linux.resources.memory.limit == 64 * MI
        assert ("BatchResource", "PreCreateContainer", True) in world.durations
        assert world.statistics.account("BatchResource").last_applied_s is not None

    def test_an_update_is_answered_for_the_same_container(self, world: CallsFixture) -> None:
        found = wait(world.nri.update_container(nri_pod(extended(800)), nri_container(), LinuxResources()))
        assert found is not None
        assert found.container_id == "c1"
        assert found.linux is not None
        assert found.linux.resources is not None
        assert found.linux.resources.cpu == LinuxCpu(shares=819, quota=80_000)

    def test_a_pod_without_anything_to_decide_is_left_alone(self, world: CallsFixture) -> None:
        pod = nri_pod({}, labels={})
        assert wait(world.nri.create_container(pod, nri_container())) is None
        assert wait(world.nri.update_container(pod, nri_container(), LinuxResources())) is None
        assert world.stage.world.kernel.writes == []

    def test_a_new_pods_cgroup_is_written_at_once_and_counts_as_starting(self, world: CallsFixture) -> None:
        wait(world.nri.run_pod_sandbox(nri_pod(extended())))
        assert world.pod_quota == 50_000
        (starting,) = world.calls.starting({})
        assert (starting.uid, starting.group) == ("be", BE_POD)
        assert world.calls.starting({}) is world.calls.starting({})
        assert world.calls.starting({"be": starting}) == ()

    def test_a_pod_that_never_appears_in_a_list_is_forgotten(self, world: CallsFixture) -> None:
        wait(world.nri.run_pod_sandbox(nri_pod(extended())))
        world.stage.world.clock.advance(STARTING_S + 1)
        assert world.calls.starting({}) == ()
        wait(world.nri.run_pod_sandbox(nri_pod(extended())))
        wait(world.nri.remove_pod_sandbox(nri_pod({})))
        assert world.calls.starting({}) == ()
        assert world.removed == ["be"]

    def test_cpus_of_its_own(self, world: CallsFixture) -> None:
        pod = nri_pod({STATUS: '{"cpuset":"1"}'}, labels={"koordinator.sh/qosClass": "LSR"})
        found = wait(world.nri.create_container(pod, nri_container()))
        assert found is not None
        assert found.linux is not None
        assert found.linux.resources == LinuxResources(cpu=LinuxCpu(quota=-1, cpus="1"))

    def test_a_device_that_this_machine_lacks_is_told_and_the_rest_counts(self, world: CallsFixture) -> None:
        text = '{"rdma":[{"minor":0,"id":"0000:01:00.0"}],"gpu":[{"minor":1}]}'
        pod = nri_pod({"scheduling.koordinator.sh/device-allocated": text})
        found = wait(world.nri.create_container(pod, nri_container()))
        assert found is not None
        assert found.env == {"NVIDIA_VISIBLE_DEVICES": "1"}
        assert found.linux is None
        assert [(name, reason) for name, reason, _ in world.events] == [("batch", "RuntimeHookFailed")]

    def test_a_share_of_a_card_has_the_mounts_of_its_provider(self, world: CallsFixture) -> None:
        found = wait(world.nri.create_container(nri_pod(SHARE, HAMI), nri_container()))
        assert found is not None
        assert found.env["LD_PRELOAD"] == "/usr/local/vgpu/libvgpu.so"
        assert [one.destination for one in found.mounts] == ["/usr/local/vgpu/libvgpu.so", "/tmp/vgpulock"]
        assert world.events == []

    def test_a_mount_that_this_machine_lacks_is_told_and_the_container_starts_without_a_card(
        self, world: CallsFixture
    ) -> None:
        """The runtime would refuse to start a container with it."""
        root = Path(world.stage.world.kernel.paths.proc, "1", "root")
        (root / "usr/local/vgpu").mkdir(parents=True)
        (root / "usr/local/vgpu/libvgpu.so").touch()
        found = wait(world.nri.create_container(nri_pod(SHARE, HAMI), nri_container()))
        assert found is None or (not found.env and not found.mounts)
        (event,) = world.events
        assert "/tmp/vgpulock: to be mounted, and not on this machine" in event[2]
        (root / "tmp/vgpulock").mkdir(parents=True)
        found = wait(world.nri.create_container(nri_pod(SHARE, HAMI), nri_container()))
        assert found is not None
        assert len(found.mounts) == 2


class TestFailures:
    BROKEN = {EXTENDED: "{"}

    def test_a_failed_hook_starts_the_container_unchanged_and_is_told_once(self, world: CallsFixture) -> None:
        for _ in range(3):
            assert wait(world.nri.create_container(nri_pod(self.BROKEN), nri_container())) is None
        assert [(name, reason) for name, reason, _ in world.events] == [("batch", "RuntimeHookFailed")]
        assert world.statistics.account("BatchResource").failures == 3
        world.stage.world.clock.advance(EVENT_INTERVAL_S + 1)
        wait(world.nri.create_container(nri_pod(self.BROKEN), nri_container()))
        assert len(world.events) == 2

    def test_under_fail_the_runtime_is_told(self, tmp_path: Path) -> None:
        world = CallsFixture(tmp_path, fails=True)
        with pytest.raises(HookFailure, match="BatchResource"):
            wait(world.nri.create_container(nri_pod(self.BROKEN), nri_container()))
        answer = wait(world.proxy.pre_create_container(container_request(self.BROKEN)))
        assert isinstance(answer, HookFailed)

    @pytest.mark.parametrize(
        "policies", [{"safe_mode": True}, {"disabled_stages": frozenset({"PreCreateContainer", "PreRunPodSandbox"})}]
    )
    def test_hooks_that_are_off_answer_and_write_nothing(self, tmp_path: Path, policies: dict[str, Any]) -> None:
        world = CallsFixture(tmp_path, NodeRules(gates=HOOK_GATES), **policies)
        wait(world.nri.run_pod_sandbox(nri_pod(extended())))
        assert wait(world.nri.create_container(nri_pod(extended()), nri_container())) is None
        request = container_request(extended())
        assert wait(world.proxy.pre_create_container(request)) == echo_container(request)
        assert world.pod_quota == -1
        assert world.durations == []


def container_request(
    annotations: dict[str, str], labels: dict[str, str] | None = None
) -> ContainerResourceHookRequest:
    return ContainerResourceHookRequest(
        pod_meta=PodSandboxMetadata(name="batch", uid="be", namespace="default"),
        container_meta=ContainerMetadata(name="main"),
        container_annotations={"kept": "yes"},
        container_resources=LinuxContainerResources(cpu_shares=2, oom_score_adj=1000),
        pod_annotations=annotations,
        pod_labels=BE_LABELS if labels is None else labels,
        pod_cgroup_parent=PARENT,
        container_envs={"A": "b"},
    )


class TestProxy:
    def test_a_container_gets_its_values_and_keeps_the_rest(self, world: CallsFixture) -> None:
        request = container_request(extended())
        found = wait(world.proxy.pre_create_container(request))
        assert not isinstance(found, HookFailed)
        assert found.container_resources == LinuxContainerResources(
            cpu_shares=512, cpu_quota=50_000, memory_limit_in_bytes=64 * MI, oom_score_adj=1000
        )
        assert (found.container_annotations, found.container_envs) == ({"kept": "yes"}, {"A": "b"})

    def test_a_container_gets_its_rdma_devices(self, world: CallsFixture) -> None:
        paths = world.stage.world.kernel.paths
        (Path(paths.sys) / "bus/pci/devices/0000:01:00.0/infiniband_verbs/uverbs3").mkdir(parents=True)
        (Path(paths.dev) / "infiniband").mkdir(parents=True)
        for name in ("rdma_cm", "uverbs3"):
            (Path(paths.dev) / "infiniband" / name).symlink_to(os.devnull)
        request = container_request(RDMA_POD)
        found = wait(world.proxy.pre_create_container(request))
        assert not isinstance(found, HookFailed)
        assert found.container_devices == tuple(
            ContainerDevice(container_path=path, host_path=path, permissions="rw")
            for path in ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs3")
        )
        updated = wait(world.proxy.pre_update_container_resources(request))
        assert updated == echo_container(request), "a container that runs has its devices"

    def test_a_device_that_this_machine_lacks_is_told(self, world: CallsFixture) -> None:
        request = container_request(RDMA_POD)
        assert wait(world.proxy.pre_create_container(request)) == echo_container(request)
        assert [(name, reason) for name, reason, _ in world.events] == [("batch", "RuntimeHookFailed")]

    def test_under_fail_a_missing_device_refuses_the_container(self, tmp_path: Path) -> None:
        world = CallsFixture(tmp_path, fails=True)
        found = wait(world.proxy.pre_create_container(container_request(RDMA_POD)))
        assert isinstance(found, HookFailed)
        assert "rdma_cm" in found.message or "infiniband" in found.message

    def test_an_unlabelled_pods_response_is_its_request(self, world: CallsFixture) -> None:
        request = container_request({}, labels={})
        assert wait(world.proxy.pre_create_container(request)) == echo_container(request)
        assert wait(world.proxy.pre_update_container_resources(request)) == echo_container(request)
        meta = PodSandboxMetadata(name="plain", uid="be", namespace="default")
        pod = PodSandboxHookRequest(pod_meta=meta, cgroup_parent=PARENT, labels={"a": "b"})
        assert wait(world.proxy.pre_run_pod_sandbox(pod)) == echo_pod(pod)

    def test_a_pod_is_written_and_answered(self, world: CallsFixture) -> None:
        meta = PodSandboxMetadata(name="batch", uid="be", namespace="default")
        request = PodSandboxHookRequest(
            pod_meta=meta, cgroup_parent=PARENT, labels=BE_LABELS, annotations=extended(300, "32Mi")
        )
        found = wait(world.proxy.pre_run_pod_sandbox(request))
        assert not isinstance(found, HookFailed)
        assert found.resources == LinuxContainerResources(
            cpu_shares=307, cpu_quota=30_000, memory_limit_in_bytes=32 * MI
        )
        assert world.pod_quota == 30_000

    def test_a_share_of_a_card_tells_what_the_pod_must_mount_itself(self, world: CallsFixture) -> None:
        found = wait(world.proxy.pre_create_container(container_request(SHARE, HAMI)))
        assert not isinstance(found, HookFailed)
        assert found.container_envs["CUDA_DEVICE_MEMORY_LIMIT"] == str(8 << 30)
        ((name, reason, message),) = world.events
        assert (name, reason) == ("batch", "RuntimeHookFailed")
        assert "must mount /usr/local/vgpu/libvgpu.so, /tmp/vgpulock" in message


def test_a_gate_that_is_off_is_no_hook(tmp_path: Path) -> None:
    world = CallsFixture(tmp_path, NodeRules())
    assert wait(world.nri.create_container(nri_pod(extended()), nri_container())) is None
    assert world.durations == []


def test_percentiles_are_of_the_last_calls(world: CallsFixture) -> None:
    for milliseconds in range(1, 101):
        world.statistics.record_call("BatchResource", "Test", milliseconds / 1000, success=True)
    account = world.statistics.account("BatchResource")
    assert account.percentile_ms(50) == pytest.approx(50)
    assert account.percentile_ms(99) == pytest.approx(99)
    assert world.statistics.account("CPUSetAllocator").percentile_ms(50) is None
