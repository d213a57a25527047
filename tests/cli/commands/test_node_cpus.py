"""`koord node cpus` on a cluster in which pods were given CPUs, as people see it."""

from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli.commands.node_occupancy import print_cpu_occupancy, read_cpu_occupancy
from koord.cli.main import cli
from koord.kube.transport.api_error import unwrap
from koord.scheduler.plugins.node_numa_resource.http import node_occupancy
from koord.scheduler.plugins.node_numa_resource.occupancy import CpuOccupancy
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from tests.scheduler.faulty_cluster import FaultyCluster
from tests.scheduler.plugins.node_numa_resource.numa_cluster import STATUS
from tests.scheduler.plugins.node_numa_resource.test_numa_in_cluster import bound_pod, machine, story


def shown(found: CpuOccupancy) -> list[str]:
    out = io.StringIO()
    print_cpu_occupancy(Console(file=out, width=120), found)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_picture_has_pods_free_cpus_and_what_is_left() -> None:
    async def told(world: FaultyCluster) -> None:
        await machine(world, "a", numa_topology_policy="SingleNUMANode")
        for name, cpu in (("x", 4), ("y", 2)):
            await bound_pod(world, name, cpu)
            await world.settle(5)
        found = await read_cpu_occupancy(world.client, "a")
        lines = shown(found)
        assert lines[:2] == ["Node  a", "CPU bind policy  None, NUMA topology policy  SingleNUMANode"]
        picture = "\n".join(lines)
        left = "memory 15.0Gi of 16.0Gi"
        assert f"Socket 0, NUMA node 0  CPUs 0-7, left: cpu 4000m of 8000m, {left}\n  AA AA .. .." in picture
        assert f"Socket 0, NUMA node 1  CPUs 8-15, left: cpu 6000m of 8000m, {left}\n  BB .. .. .." in picture
        assert "A  default/x     4  0-3   0: cpu 4000m, memory 1.0Gi" in picture
        plugin = next(
            p for p in world.scheduler.profiles["koord-scheduler"].plugins() if isinstance(p, NodeNUMAResource)
        )
        info = world.scheduler.state.node("a")
        assert info is not None
        assert node_occupancy(plugin, info) == found, "the scheduler's books and the annotations say the same"

    story(told)


def test_what_contradicts_itself_is_told_below() -> None:
    async def told(world: FaultyCluster) -> None:
        await machine(world, "a")
        await bound_pod(world, "x", 2)
        await world.settle(5)
        for name, cpus in (("rival", "1,40"), ("odd", "x")):
            container = {"name": "c", "image": "app"}
            meta = {"name": name, "namespace": "default", "annotations": {STATUS: json.dumps({"cpuset": cpus})}}
            unwrap(
                await world.client.create(
                    PODS, {"metadata": meta, "spec": {"nodeName": "a", "containers": [container]}}
                )
            )
        flaws = [line for line in shown(await read_cpu_occupancy(world.client, "a")) if line.startswith("! ")]
        assert len(flaws) == 3
        assert flaws[0].startswith("! default/odd: scheduling.koordinator.sh/resource-status: cpuset: ")
        assert flaws[1] == "! default/rival holds CPUs 40, which the topology does not have"
        assert flaws[2] == "! CPU 1 is held by default/rival and by default/x"

    story(told)


def test_a_node_without_topology_says_so() -> None:
    async def told(world: FaultyCluster) -> None:
        await world.add_node("a")
        lines = shown(await read_cpu_occupancy(world.client, "a"))
        assert "Nobody has CPUs or NUMA nodes of its own here." in lines
        assert "! there is no NodeResourceTopology of this node" in lines

    story(told)


def test_a_node_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def told(world: FaultyCluster) -> None:
        with pytest.raises(SystemExit):
            await read_cpu_occupancy(world.client, "nowhere")

    story(told)
    assert capsys.readouterr().err == "koord: there is no node nowhere\n"


def test_no_name_of_a_node_is_one_line() -> None:
    done = CliRunner().invoke(cli, ["node", "cpus", "No_Node"])
    assert done.exit_code == 1
    assert done.output.startswith("koord: 'No_Node' is no name of a node:")
