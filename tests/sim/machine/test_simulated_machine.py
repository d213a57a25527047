"""A simulated machine answers as a real one: files, their rules, and what they do to the pods on it."""

from __future__ import annotations

import msgspec
import pytest

from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import WriteCgroup, WriteOutcome
from koord.koordlet.inputs.machine import NodeMachine
from koord.koordlet.inputs.pod_meta import ContainerMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.sim.machine.cgroup_files import ANOLIS_FILES
from koord.sim.machine.simulated_machine import ContainerDemand, record_performance, record_samples
from tests.sim.machine.machine_builders import GIB, SYSTEM, batch, container, machine, run, service, start_pods

BESTEFFORT = "kubepods/besteffort"


def write(group: str, name: str, value: str, owner: str = "test") -> WriteCgroup:
    return WriteCgroup(group=group, file=name, value=value, owner=owner, cause="test", why="test")


def test_it_is_a_machine_to_strategies() -> None:
    one: NodeMachine = machine()
    assert one.child_groups("kubepods") == ("kubepods/burstable", BESTEFFORT)
    assert one.read_knob("kubepods/gone", knob.CPU_QUOTA) is None
    assert one.has_knob(knob.CPU_IDLE)
    assert not one.has_knob(knob.CPU_BVT)


def test_groups_begin_with_what_kubelet_and_hooks_write() -> None:
    one = machine()
    web, job = service("web", 2000), batch("job", 500)
    one.set_pods((web, job))
    assert one.read_knob(job.containers[0].group, knob.CPU_SHARES) == "2", "the kubelet knows no batch amounts"
    start_pods(one, web, job)
    assert one.read_knob(web.group, knob.CPU_SHARES) == "2048"
    assert one.read_knob(web.group, knob.CPU_QUOTA) == "400000"
    assert one.read_knob(job.containers[0].group, knob.CPU_SHARES) == "512"
    assert one.read_knob(job.containers[0].group, knob.CPU_QUOTA) == "50000"
    assert one.read_knob(job.group, "memory.limit_in_bytes") == str(GIB)
    assert one.read_knob("kubepods/burstable", knob.CPU_SHARES) == "2048"
    one.set_pods((job,))
    assert one.read_knob(web.group, knob.CPU_SHARES) is None
    assert one.child_groups("kubepods/burstable") == ()


def test_writes_tell_what_became_of_them() -> None:
    one = machine()
    results = one.execute(
        [
            write(BESTEFFORT, knob.CPUSET, "0-1"),
            write(BESTEFFORT, knob.CPUSET, "0-1"),
            write(BESTEFFORT, knob.CPUSET, "90"),
            write("kubepods/gone", knob.CPUSET, "0"),
            write(BESTEFFORT, knob.CPU_BVT, "-1"),
        ]
    )
    assert [result.status for result in results] == [
        WriteOutcome.WRITTEN,
        WriteOutcome.SAME,
        WriteOutcome.REJECTED,
        WriteOutcome.VANISHED,
        WriteOutcome.OFF,
    ]
    assert one.read_knob(BESTEFFORT, knob.CPUSET) == "0-1"


def test_what_an_owner_wrote_can_be_given_back() -> None:
    one = machine()
    one.execute(
        [
            write(BESTEFFORT, knob.CPUSET, "0-1"),
            write(BESTEFFORT, knob.CPU_QUOTA, "5000", owner="other"),
        ]
    )
    assert [result.effect.value for result in one.release("test", "off") if isinstance(result.effect, WriteCgroup)] == [
        ""
    ]
    assert one.read_knob(BESTEFFORT, knob.CPUSET) == ""
    assert one.read_knob(BESTEFFORT, knob.CPU_QUOTA) == "5000"


def test_a_plan_that_is_whole_takes_back_what_it_leaves_out() -> None:
    one = machine()
    one.execute([write(BESTEFFORT, knob.MEMORY_LOW, "5"), write(BESTEFFORT, knob.MEMORY_MIN, "5")])
    one.execute([write(BESTEFFORT, knob.MEMORY_LOW, "7")], complete_owners=("test",))
    assert (one.read_knob(BESTEFFORT, knob.MEMORY_LOW), one.read_knob(BESTEFFORT, knob.MEMORY_MIN)) == (
        "7",
        "0",
    )


def test_the_kernel_keeps_a_burst_within_its_quota() -> None:
    one = machine()
    web = service("web", 1000)
    one.set_pods((web,))
    assert one.execute([write(web.group, knob.CPU_BURST, "200001")])[0].status is WriteOutcome.REJECTED
    assert one.execute([write(web.group, knob.CPU_BURST, "200000")])[0].status is WriteOutcome.WRITTEN
    assert one.execute([write(web.group, knob.CPU_QUOTA, "100000")])[0].status is WriteOutcome.REJECTED


def test_limits_of_disks_are_kept_by_disk() -> None:
    one = machine()
    one.execute([write(BESTEFFORT, knob.READ_BPS, "253:0 1000"), write(BESTEFFORT, knob.READ_BPS, "253:16 5")])
    assert one.limited_disks(BESTEFFORT) == {"253:0", "253:16"}
    one.execute([write(BESTEFFORT, knob.READ_BPS, "253:0 0")])
    assert one.read_knob(BESTEFFORT, knob.READ_BPS) == "253:16 5\n"


def test_a_smaller_cpu_set_holds_best_effort_back_and_leaves_services_alone() -> None:
    one = machine(cpus=8)
    one.set_pods((service("web", 4000), batch("job", 8000)))
    free = run(one, 1, web=3000.0, job=8000.0)
    assert free.be_used_milli == pytest.approx(4800)
    one.execute([write(BESTEFFORT, knob.CPUSET, "0-1")])
    held = run(one, 2, web=3000.0, job=8000.0)
    assert held.be_used_milli == pytest.approx(2000)
    assert held.be_limit_milli == 2000
    assert held.outcomes[container("web")].got_milli == pytest.approx(3000)
    assert (
        held.outcomes[container("web")].contention.latency_factor
        < free.outcomes[container("web")].contention.latency_factor
    )


def test_a_service_beside_batch_lacks_nothing_by_weight_alone_but_waits_longer_than_by_rank() -> None:
    def latency(files: frozenset[str]) -> float:
        one = machine(cpus=4, files=files)
        one.set_pods((service("web", 3000), batch("job", 4000)))
        if knob.CPU_BVT in files:
            one.execute([write(BESTEFFORT, knob.CPU_BVT, "-1"), write("kubepods/burstable", knob.CPU_BVT, "2")])
        seen = run(one, 1, web=2000.0, job=4000.0)
        assert seen.short_milli(frozenset({"web"})) == pytest.approx(0, abs=10)
        return seen.outcomes[container("web")].contention.latency_factor

    weighed, ranked = latency(frozenset(ANOLIS_FILES - {knob.CPU_BVT})), latency(ANOLIS_FILES)
    assert ranked < weighed


def test_a_burst_buffer_carries_a_peak_and_is_empty_after_it() -> None:
    one = machine()
    web = service("web", 500, limit_milli=1000)
    one.set_pods((web,))
    one.execute(
        [
            write(web.group, knob.CPU_BURST, "100000"),
            write(web.containers[0].group, knob.CPU_BURST, "100000"),
        ]
    )
    for second in range(1, 4):
        assert run(one, second, web=100.0).outcomes[container("web")].got_milli == 100
    first, then = run(one, 4, web=2000.0), run(one, 5, web=2000.0)
    assert first.outcomes[container("web")].got_milli == pytest.approx(1100)
    assert then.outcomes[container("web")].got_milli == pytest.approx(1000)


def test_a_container_over_its_limit_dies_alone() -> None:
    one = machine()
    start_pods(one, service("web"), batch("job", memory=GIB), batch("other", memory=4 * GIB))
    seen = run(
        one, 1, web=ContainerDemand(10, GIB), job=ContainerDemand(10, GIB + 1), other=ContainerDemand(10, 3 * GIB)
    )
    assert [kill.group for kill in seen.kills] == [f"{BESTEFFORT}/podjob/job"]
    assert seen.outcomes[container("job")].memory_bytes == 0


def test_a_full_machine_kills_batch_before_services() -> None:
    one = machine(memory=8 * GIB)
    one.set_pods((service("web", memory=4 * GIB), batch("small", memory=4 * GIB), batch("large", memory=4 * GIB)))
    seen = run(
        one,
        1,
        web=ContainerDemand(10, 5 * GIB),
        small=ContainerDemand(10, GIB // 2),
        large=ContainerDemand(10, 2 * GIB),
    )
    assert [kill.group for kill in seen.kills] == [f"{BESTEFFORT}/podlarge/large"]


def test_samples_are_those_of_collectors() -> None:
    one = machine()
    start_pods(one, service("web"), batch("job", 500))
    store = SeriesStore({}, interval_s=1)
    moment = run(one, 100.0, web=ContainerDemand(1500, GIB, GIB), job=700.0)
    record_samples(store, moment)
    record_performance(store, moment)
    assert store.latest((metric_kind.POD_CPU, "web"), 100) == 1.5
    assert store.latest((metric_kind.POD_CPU, "job"), 100) == 0.5
    assert store.latest((metric_kind.CONTAINER_THROTTLED, container("job")), 100) == 1.0
    assert store.latest((metric_kind.NODE_CPU,), 100) == pytest.approx(2.2)
    assert store.latest((metric_kind.NODE_MEMORY,), 100) == GIB + GIB // 8 + SYSTEM.memory_bytes
    assert store.latest((metric_kind.NODE_MEMORY_WITH_PAGE_CACHE,), 100) == 2 * GIB + GIB // 8 + SYSTEM.memory_bytes
    assert store.latest((metric_kind.NODE_BE, metric_kind.BE_REQUEST), 100) == 500
    assert store.latest((metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT), 100) == 8000
    assert store.latest((metric_kind.POD_PSI, "job", "cpu", "10", "some"), 100) == pytest.approx(100 * 200 / 700)
    cycles = store.latest((metric_kind.CONTAINER_CPI, container("web"), "cycle"), 100)
    instructions = store.latest((metric_kind.CONTAINER_CPI, container("web"), "instruction"), 100)
    assert cycles is not None
    assert instructions is not None
    assert 1 < cycles / instructions < 1.4


def test_a_container_that_comes_later_and_is_restarted_gets_groups_of_its_own() -> None:
    one = machine()
    web = service("web")
    waiting = msgspec.structs.replace(web, containers=(ContainerMeta(name="app"),))
    one.set_pods((waiting,))
    assert one.child_groups(web.group) == ()
    one.set_pods((web,))
    again = msgspec.structs.replace(web.containers[0], id="containerd://second", group=f"{web.group}/second")
    one.set_pods((msgspec.structs.replace(web, containers=(again,)),))
    assert one.child_groups(web.group) == (f"{web.group}/second",)
    assert one.step(1, 1, {"containerd://second": ContainerDemand(500, GIB)}, SYSTEM).used_milli == 700


def test_what_batch_may_use_is_the_smallest_of_its_sets_and_its_quota() -> None:
    one = machine(cpus=8)
    job = batch("job")
    one.set_pods((job,))
    one.execute([write(BESTEFFORT, knob.CPUSET, "0-5"), write(job.containers[0].group, knob.CPUSET, "0-3")])
    assert run(one, 1, job=100.0).be_limit_milli == 4000
    one.execute([write(BESTEFFORT, knob.CPU_QUOTA, "250000")])
    assert run(one, 2, job=100.0).be_limit_milli == 2500
