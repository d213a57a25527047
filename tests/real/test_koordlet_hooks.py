"""koordlet's runtime hooks on a real node: containers start with their values, and get and lose them while they run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.values.cpuset import CPUSet
from tests.real.real_node import BE_LABELS, CPUS, QUOTA, SHARES, Site, known, pinned, ticked
from tools import nodeagent, realnode
from tools.nodeagent import PODS, Agent, Json, is_running, order, pod, until

pytestmark = [pytest.mark.real, pytest.mark.machine]

LIMIT = "memory.limit_in_bytes"
MI = 2**20
EXTENDED = "node.koordinator.sh/extended-resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
QUICK = ("--kubelet-sync-interval=2s", "--runtime-hooks-reconcile-interval=5s")
QUIET: Json = {"resourceUsedThresholdWithBE": {"enable": False}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, tmp_path_factory.mktemp("koordlet"))
        nodeagent.install(site.api)
        order(site.api, QUIET)
        yield site


@pytest.fixture(scope="module")
def folder(site: Site) -> Path:
    return site.folder / "agent"


@pytest.fixture
def agent(site: Site, folder: Path) -> Iterator[Agent]:
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
        until(lambda: connection(agent, "nri")["connected"], "NRI is connected")
        yield agent
        assert "Traceback" not in agent.log()


def connection(agent: Agent, name: str) -> Json:
    text = agent.fetch("/apis/v1/hooks")
    rows: list[Json] = json.loads(text)["connections"] if text else []
    return next((one for one in rows if one["name"] == name), {"connected": False})


def amounts(milli: int, memory: str) -> str:
    own = {"kubernetes.io/batch-cpu": str(milli), "kubernetes.io/batch-memory": memory}
    return json.dumps({"containers": {"main": {"requests": own, "limits": own}}})


def batch_pod(name: str, milli: int = 500, memory: str = "64Mi") -> Json:
    return pod(name, labels=BE_LABELS, annotations={EXTENDED: amounts(milli, memory)})


def annotate(site: Site, name: str, **annotations: str | None) -> None:
    site.api.merge(f"{PODS}/{name}", {"metadata": {"annotations": annotations}})


def values(site: Site, name: str, *knobs: str) -> list[tuple[str, ...]]:
    """The values of the pod's group and of its container's."""
    return [tuple(site.value(knob, group) for knob in knobs) for group in (site.group(name), site.container(name))]


BATCH = (SHARES, QUOTA, LIMIT)


def batch_values(site: Site, name: str) -> list[tuple[str, ...]]:
    return values(site, name, *BATCH)


def same(*one: object) -> list[tuple[str, ...]]:
    return [tuple(map(str, one))] * 2


UNLIMITED = -1


def test_containers_start_with_what_hooks_decide(site: Site, agent: Agent) -> None:
    site.run(batch_pod("batch"))
    assert batch_values(site, "batch") == same(512, 50_000, 64 * MI), "at the moment the container runs"
    ticked(agent, 12)
    assert batch_values(site, "batch") == same(512, 50_000, 64 * MI), "and after the reconciler looked"
    name = "koordlet_runtime_hook_invoked_duration_milliseconds_count"
    lines = [line for line in agent.fetch("/metrics").splitlines() if line.startswith(name)]
    wanted = ('hook="BatchResource"', 'stage="PreCreateContainer"', 'status="success"')
    assert any(all(label in line for label in wanted) for line in lines), lines


def test_a_pod_with_cpus_of_its_own_has_no_quota(site: Site, agent: Agent) -> None:
    site.run(pinned("pinned", 1))
    assert values(site, "pinned", QUOTA) == same(UNLIMITED)
    container = site.container("pinned")
    assert (site.value(CPUS, container), site.value(SHARES, container)) == ("1", "102")
    assert site.value(LIMIT, container) == str(32 * MI)
    assert site.value(CPUS, site.group("pinned")) == site.cpus


def test_the_others_share_what_is_left(site: Site, agent: Agent) -> None:
    rest = str(CPUSet.parse(site.cpus) - CPUSet.of([1]))
    whole = {"cpu": "100m", "memory": "32Mi"}
    site.run(pod("shared", {"requests": whole, "limits": whole}, labels={"koordinator.sh/qosClass": "LS"}))
    until(lambda: site.value(CPUS, site.container("shared")) == rest, "the pool is what the pinned pod left")
    assert site.value(CPUS, site.group("shared")) == site.cpus
    assert site.value(CPUS, site.top) == site.cpus


@pytest.mark.parametrize(("milli", "memory_mi"), [(800, 128), (300, 96), (1000, 96)])
def test_amounts_that_change_are_written_in_one_round(site: Site, agent: Agent, milli: int, memory_mi: int) -> None:
    annotate(site, "batch", **{EXTENDED: amounts(milli, f"{memory_mi}Mi")})
    wanted = same(milli * 1024 // 1000, milli * 100, memory_mi * MI)
    until(lambda: batch_values(site, "batch") == wanted, "pod and container have the new amounts")
    assert "EINVAL" not in agent.log()


def test_somebody_elses_value_lasts_one_period_at_most(site: Site, agent: Agent) -> None:
    right = batch_values(site, "batch")
    ticked(agent, 8)
    for group in (site.group("batch"), site.container("batch")):
        Path(site.tree.group_path("cpu", group), SHARES).write_text("2")
    until(lambda: batch_values(site, "batch") == right, "both are repaired", 8)


def test_a_killed_agent_leaves_its_values_and_the_next_goes_on(site: Site, folder: Path) -> None:
    right = batch_values(site, "batch")
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        until(lambda: connection(agent, "nri")["connected"], "NRI is connected")
        agent.kill()
    assert batch_values(site, "batch") == right
    site.run(batch_pod("unhooked"))  # while nobody answers
    assert site.value(QUOTA, site.container("unhooked")) == "-1"
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        until(lambda: batch_values(site, "unhooked") == same(512, 50_000, 64 * MI), "the reconciler adopts it")
        assert batch_values(site, "batch") == right
        assert "Traceback" not in agent.log()


def test_without_its_annotation_a_pod_has_what_its_spec_says(site: Site, agent: Agent) -> None:
    annotate(site, "batch", **{EXTENDED: None})
    until(lambda: batch_values(site, "batch") == same(2, UNLIMITED, UNLIMITED), "nothing is left of batch amounts")
    annotate(site, "pinned", **{STATUS: None})
    container = site.container("pinned")
    until(lambda: values(site, "pinned", QUOTA) == same(10_000), "its limit counts again")
    until(lambda: site.value(CPUS, container) == site.cpus, "it runs where the others do")
    until(lambda: site.value(CPUS, site.container("shared")) == site.cpus, "and they have its CPU back")


def test_every_value_has_a_reason(site: Site, agent: Agent) -> None:
    annotate(site, "pinned", **{STATUS: '{"cpuset":"1"}'})
    until(lambda: values(site, "pinned", QUOTA) == same(UNLIMITED), "it has a CPU of its own again")

    def of_container() -> list[Json]:
        text = agent.fetch("/apis/v1/containers?namespace=default&name=pinned")
        rows: list[Json] = json.loads(text)["containers"]
        return next(row["values"] for row in rows if row["level"] == "container")

    until(lambda: {one["knob"] for one in of_container()} >= {CPUS, QUOTA}, "both are told")
    by_knob = {one["knob"]: one for one in of_container()}
    assert (by_knob[CPUS]["wanted"], by_knob[CPUS]["kernel"]) == ("1", "1")
    assert by_knob[QUOTA]["decidedBy"] == "CPUSetAllocator"
    assert STATUS in by_knob[QUOTA]["why"]

    def hooks() -> dict[str, Json]:
        return {one["name"]: one for one in json.loads(agent.fetch("/apis/v1/hooks"))["hooks"]}

    until(lambda: hooks()["CPUSetAllocator"]["containers"] >= 2, "the pinned and the shared one are counted")
    assert hooks()["gpu env inject"]["whyOff"] == "feature gate GPUEnvInject is off"


def test_an_unreadable_annotation_starts_the_container_and_is_told(site: Site, agent: Agent) -> None:
    broken = pod("broken", labels=BE_LABELS, annotations={EXTENDED: "{"})
    site.run(broken)
    assert batch_values(site, "broken") == same(2, UNLIMITED, UNLIMITED)
    found = "/api/v1/namespaces/default/events"
    until(
        lambda: any(
            one["reason"] == "RuntimeHookFailed" and one["involvedObject"]["name"] == "broken"
            for one in site.api.seen(found)["items"]
        ),
        "an Event tells it",
    )


def kill_until_running(site: Site, folder: Path, names: list[str]) -> int:
    """Start agents and kill each after two seconds until the pods run; the number of agents that died."""
    deaths, deadline = 0, time.monotonic() + 180
    while not all(is_running(site.pod(name)) for name in names):
        assert time.monotonic() < deadline, [name for name in names if not is_running(site.pod(name))]
        with nodeagent.running(site.node, folder, *QUICK) as agent:
            time.sleep(2)  # the time that it lives is the point
            agent.kill()
        deaths += 1
    return deaths


def test_pods_start_while_the_agent_dies_again_and_again(site: Site, folder: Path) -> None:
    """Sixty pods are made at once, and the agent is killed every two seconds until all of them run."""
    names = [f"swarm-{i}" for i in range(60)]
    with ThreadPoolExecutor(max_workers=4) as creators:
        made = [creators.submit(site.api.create, PODS, batch_pod(name, milli=10 + i)) for i, name in enumerate(names)]
        deaths = kill_until_running(site, folder, names)
    assert all(one.result() for one in made)
    assert deaths > 1
    wanted = {name: same(max((10 + i) * 1024 // 1000, 2), (10 + i) * 100, 64 * MI) for i, name in enumerate(names)}
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
        ticked(agent, 12)  # two periods of the reconciler
        wrong = {name: found for name in names if (found := batch_values(site, name)) != wanted[name]}
        assert not wrong
        assert "Traceback" not in agent.log()
    site.remove(*names)


def test_restore_undoes_what_containers_started_with(site: Site, folder: Path) -> None:
    said = nodeagent.restore(site.node, folder)
    assert said.returncode == 0, said.stderr
    assert batch_values(site, "unhooked") == same(2, UNLIMITED, UNLIMITED)
    assert values(site, "pinned", QUOTA) == same(10_000)
    assert {site.value(CPUS, site.container(name)) for name in ("pinned", "shared")} == {site.cpus}
    assert "the journal is empty" in nodeagent.restore(site.node, folder).stdout
