"""`koord explain container`: each value with who, why, when and what the kernel holds; one line for each failure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from koord.api.koordinator.protocol import A_RESOURCE_STATUS
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli.cluster_access import KoordletAddress
from koord.cli.commands.explain.container import (
    ContainerExplanation,
    ContainerName,
    explain_container,
    print_container,
    wait_for_values,
)
from koord.cli.main import cli
from koord.host.cgroup.knob import CPU_QUOTA, CPU_SHARES, CPUSET, MEMORY_LIMIT, CgroupFile
from koord.koordlet.agent_status import CgroupStatus, ContainerValue
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from koord.telemetry.component_server import ComponentServer
from tests.cli.cluster_with_agents import with_agents
from tests.cli.koordlet_proxy import create_namespace, proxy_client, run_koordlet_pod
from tests.journeys.colocation_cluster import batch_pod, pod
from tests.koord_up_process import koord_up
from tests.koordlet.agent_fixture import NODE, AgentFixture, in_virtual_time

ADDRESS = KoordletAddress()
AT = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
EXTENDED = "node.koordinator.sh/extended-resource-spec"


def named(pod: str, container: str = "") -> ContainerName:
    return ContainerName(namespace="default", pod=pod, container=container)


def printed(found: ContainerExplanation, width: int = 100) -> list[str]:
    out = Console(width=width, highlight=False, markup=False)
    with out.capture() as captured:
        print_container(out, found, AT)
    return captured.get().splitlines()


def value(**fields: Any) -> ContainerValue:
    usual = {"knob": CPU_SHARES, "wanted": "4096", "kernel": "4096", "decided_by": "BatchResource", "why": "because"}
    return ContainerValue(**{**usual, **fields})


def status(*values: ContainerValue, level: str = "container", **fields: Any) -> CgroupStatus:
    container = "main" if level == "container" else ""
    usual = {"namespace": "default", "pod": "work", "uid": "u", "group": "kubepods/podu/one", "container": container}
    return CgroupStatus(level=level, values=values, **{**usual, **fields})


def test_each_value_has_a_line_and_its_reason_below() -> None:
    found = ContainerExplanation(
        node="n1",
        container=status(
            value(written_at="2026-01-01T00:59:50Z", path="/sys/fs/cgroup/kubepods/podu/one/cpu.weight"),
            value(knob=CPUSET, wanted="0-3", kernel="0-7", decided_by="CPUSetAllocator", differs=True),
            value(knob=MEMORY_LIMIT, kernel=None, why="", problem="the kernel refuses it: EBUSY"),
            id="containerd://one",
            others={"oom_score_adj": "-500"},
            problems=("Resctrl: the annotation cannot be read",),
        ),
        pod=(status(level="pod", group="kubepods/podu"),),
        differing=1,
    )
    assert printed(found) == [
        "Container  default/work/main",
        "Node       n1",
        "ID         containerd://one",
        "Cgroup     kubepods/podu/one",
        "Wanted     oom_score_adj -500",
        "Problem    Resctrl: the annotation cannot be read",
        "",
        "FILE                     WANTED  KERNEL      DECIDED BY       WRITTEN",
        "cpu.shares (cpu.weight)  4096    4096        BatchResource    10s ago",
        "    because",
        "cpuset.cpus              0-3     0-7         CPUSetAllocator  was right",
        "    because",
        "    differs from what is wanted",
        "memory.limit_in_bytes    4096    unreadable  BatchResource    no",
        "    not applied: the kernel refuses it: EBUSY",
        "",
        "Pod        kubepods/podu",
        "           no hook and no strategy wants a value of its files",
        "",
        "1 of 3 values are not what the kernel holds.",
    ]


def test_long_reasons_stay_within_the_terminal() -> None:
    why = "65% of 32000m less 0m of other pods, 0m of applications and 200m of the system leaves 20600m: 21 CPUs of 32"
    lines = printed(ContainerExplanation(node="n1", container=status(value(why=why))), width=60)
    assert max(map(len, lines)) <= 60
    assert why in " ".join(line.strip() for line in lines)


def test_a_batch_pod_has_the_shares_quota_and_memory_of_its_batch_resources() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, batch_pod("work", 4000, "8Gi", namespace="default")))
        await clock.sleep(20)
        found = await explain_container(client, named("work"), ADDRESS, clock)
        placed = unwrap(await client.get(PODS, "work", "default")).spec.node_name
        assert (found.node, found.container.container, found.differing) == (placed, "app", 0)
        wanted = {CPU_SHARES: "4096", CPU_QUOTA: "400000", MEMORY_LIMIT: str(8 << 30)}
        for group in (found.container, *found.pod):
            values = {one.knob: one for one in group.values}
            assert {knob: (values[knob].wanted, values[knob].kernel) for knob in wanted} == {
                knob: (value, value) for knob, value in wanted.items()
            }
            assert {values[knob].decided_by for knob in wanted} == {"BatchResource"}
            assert values[MEMORY_LIMIT].why == f"kubernetes.io/batch-memory limit {8 << 30}"
            assert values[CPUSET].decided_by == "CPUSuppresss"  # a strategy's value beside those of hooks
            assert all(one.written_at for one in values.values())

    with_agents(story)


def test_waiting_ends_when_the_kernel_holds_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, batch_pod("work", 4000, "8Gi", namespace="default")))
        await clock.sleep(4)  # on its node, and the agent has not seen it yet
        values = {CPU_QUOTA: "400000", MEMORY_LIMIT: str(8 << 30)}
        found = await wait_for_values(client, named("work"), ADDRESS, values, clock, 60)
        assert {one.knob: one.kernel for one in found.container.values if one.knob in values} == values
        with pytest.raises(SystemExit):
            await wait_for_values(client, named("work"), ADDRESS, {CPU_QUOTA: "1", "x": "2"}, clock, 5)

    with_agents(story)
    said = "koord: after 5 s cpu.cfs_quota_us is 400000, not 1; x is not given by koordlet, not 2\n"
    assert capsys.readouterr().err == said


def test_a_container_that_just_started_is_explained_once_its_agent_knows_it() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, batch_pod("work", 4000, "8Gi", namespace="default")))
        while unwrap(await client.get(PODS, "work", "default")).status.phase != "Running":
            await clock.sleep(0.1)
        found = await explain_container(client, named("work"), ADDRESS, clock)
        assert found.container.container == "app"

    with_agents(story)


def test_a_pinned_pod_has_its_cpus_and_no_quota() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        amounts, labels = {"cpu": "4", "memory": "4Gi"}, {"koordinator.sh/qosClass": "LSR"}
        pinned = pod("db", amounts, labels=labels, schedulerName="koord-scheduler", priorityClassName="koord-prod")
        unwrap(await client.create(PODS, pinned))
        await clock.sleep(20)
        annotations = unwrap(await client.get(PODS, "db", "default")).metadata.annotations
        cpus = json.loads(annotations[A_RESOURCE_STATUS])["cpuset"]
        found = await explain_container(client, named("db", "app"), ADDRESS, clock)
        values = {one.knob: (one.wanted, one.kernel, one.decided_by) for one in found.container.values}
        assert values == {
            CPUSET: (cpus, cpus, "CPUSetAllocator"),
            CPU_QUOTA: ("-1", "-1", "CPUSetAllocator"),
        }
        assert [(one.knob, one.wanted) for one in found.pod[0].values] == [(CPU_QUOTA, "-1")]

    with_agents(story)


def test_what_cannot_be_explained_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        two = pod("two", {"cpu": "1"})
        two["spec"]["containers"] = [{"name": name, "image": "nginx"} for name in ("a", "b")]
        unwrap(await client.create(PODS, two))
        unwrap(await client.create(PODS, pod("huge", {"cpu": "10000"})))
        slow = pod("slow", {"cpu": "1"})
        slow["metadata"]["annotations"] = {"sim.koord.sh/start-seconds": "600"}
        unwrap(await client.create(PODS, slow))
        await clock.sleep(20)
        for wanted in (named("nix"), named("two"), named("two", "c"), named("huge"), named("slow")):
            with pytest.raises(SystemExit):
                await explain_container(client, wanted, ADDRESS, clock)
        assert (await explain_container(client, named("two", "b"), ADDRESS, clock)).container.container == "b"

    with_agents(story)
    *said, slow = capsys.readouterr().err.splitlines()
    assert said == [
        "koord: there is no pod default/nix",
        "koord: pod default/two has 2 containers, name one: a, b",
        "koord: pod default/two has no container c: it has a, b",
        "koord: pod default/huge is on no node yet: koord explain pod says why",
    ]
    assert slow.endswith("knows no cgroup of container app of default/slow: the pod is Pending")


def test_without_agents_one_line_says_how_to_switch_them_on(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, pod("web", {"cpu": "1"}, nodeName="node-1")))
        with pytest.raises(SystemExit):
            await explain_container(client, named("web"), ADDRESS, clock)

    with_agents(story, agents="false")
    said = "koord: node-1 is simulated and runs no agent: start koord up with --set nodes.agents=true\n"
    assert capsys.readouterr().err == said


def test_a_real_agent_tells_when_somebody_else_changes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({})
        agent = world.agent()
        endpoints = {"koordlet-a": agent.endpoint, "koordlet-old": ComponentServer(world.clock)}
        client = proxy_client(world.cluster, world.clock, endpoints)
        group = await world.run_pod("work", "BE")
        with pytest.raises(SystemExit):
            await explain_container(client, named("work"), ADDRESS, world.clock)  # no koordlet runs yet
        await create_namespace(client)
        await run_koordlet_pod(client, "koordlet-old", NODE)
        with pytest.raises(SystemExit):
            await explain_container(client, named("work"), ADDRESS, world.clock)
        await run_koordlet_pod(client, "koordlet-a", NODE)
        limits = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
        note = json.dumps({"containers": {"main": {"requests": limits, "limits": limits}}})
        patch = {"metadata": {"annotations": {EXTENDED: note}}}
        unwrap(await client.patch(PODS, "work", patch, "default", kind="merge"))
        await agent.start()
        await world.clock.sleep(15)
        found = await explain_container(client, named("work"), ADDRESS, world.clock)
        quota = {one.knob: one for one in found.container.values}[CPU_QUOTA]
        assert (quota.wanted, quota.kernel, quota.decided_by) == ("50000", "50000", "BatchResource")
        assert quota.path.endswith("/cpu.max")
        path = world.machine.tree.path(CgroupFile(CPU_QUOTA, found.container.group))
        assert path is not None
        assert found.container.group.startswith(group)
        assert world.kernel.write(path, "20000") is None
        found = await explain_container(client, named("work"), ADDRESS, world.clock)
        assert found.differing == 1
        assert "1 of" in printed(found)[-1]
        await agent.stop()

    in_virtual_time(tmp_path, story)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"koord: no koordlet runs on {NODE} in namespace koordinator-system: koord manifests prints what installs it",
        "koord: koordlet-old is too old: it does not serve /apis/v1/containers",
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("a/b/c/d",), "koord: 'a/b/c/d' is not [NAMESPACE/]POD[/CONTAINER]\n"),
        (("a//c",), "koord: 'a//c' is not [NAMESPACE/]POD[/CONTAINER]\n"),
        (("a/b/c", "-c", "d"), "koord: -c and a container in the name exclude each other\n"),
        (("a/b", "--wait", "x"), "koord: --wait x: expected FILE=VALUE, for example cpuset.cpus=0-3\n"),
    ],
    ids=["too-many", "empty", "two-containers", "nothing-to-wait-for"],
)
def test_words_that_say_nothing_or_two_things_are_refused(args: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(cli, ["explain", "container", *args])
    assert (done.exit_code, done.stderr) == (1, said)


def test_all_ways_to_name_a_container_name_the_same() -> None:
    with koord_up("--nodes", "1") as running:
        for args in (("web", "-c", "x"), ("default/web",), ("default/web/x",), ("web", "-n", "default")):
            done = CliRunner().invoke(cli, ["explain", "container", *args, "--kubeconfig", str(running.kubeconfig)])
            assert (done.exit_code, done.stderr) == (1, "koord: there is no pod default/web\n")
