"""`koord explain node` and `koord top nodes`: live objects in, a table or JSON out, one line for each failure."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access
from koord.cli.commands.explain.node import (
    print_node_explanation,
    read_colocation_settings,
    read_lending_history,
    read_node_view,
)
from koord.cli.commands.top import read_node_shares as look_at_nodes
from koord.cli.main import cli
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.kube.transport.api_error import unwrap
from koord.manager.colocation.decision import decide_colocation
from koord.manager.explain.lending_report import NodeResourceReport, report_node
from koord.manager.reconcile_loop import NAMESPACE
from tests.journeys.colocation_cluster import (
    BATCH_CPU,
    CONFIG,
    ColocationCluster,
    batch_pod,
    pod,
    run_on_colocation_cluster,
)
from tests.koord_up_process import koord_up

NODE = SimulatedPool(name="n", count=2, cpu=100, memory="128Gi", system=SystemDaemonUsage(cpu=7, memory="12Gi"))


async def explained(j: ColocationCluster, node: str = "n-0") -> NodeResourceReport:
    view = await read_node_view(j.client, node, j.clock)
    return report_node(view, decide_colocation(view, await read_colocation_settings(j.client, NAMESPACE, CONFIG)))


async def table(j: ColocationCluster, node: str = "n-0") -> str:
    account, past = (
        await explained(j, node),
        await read_lending_history(j.client, node, NAMESPACE, cluster_access.METRICS_PORT),
    )
    out = io.StringIO()
    print_node_explanation(Console(file=out, width=200), account, past.changes, past.unavailable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_it_computes_what_the_controller_wrote() -> None:
    async def journey(j: ColocationCluster) -> None:
        unwrap(
            await j.client.create(PODS, pod("web", {"cpu": "20", "memory": "20Gi"}, uses={"cpu": "9", "memory": "9Gi"}))
        )
        await j.wait_for_reports(2)
        for node in ("n-0", "n-1"):
            account = await explained(j, node)
            assert [line.state for line in account.lines] == ["UpToDate"] * 4, account
            assert [line.computed for line in account.lines] == [line.shown for line in account.lines]

    run_on_colocation_cluster(journey, NODE)


def test_the_table_says_what_moved_and_who_is_without_a_sample() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.wait_for_reports()
        slow = pod("web", {"cpu": "20", "memory": "20Gi"}, uses={"cpu": "9", "memory": "9Gi"}, nodeName="n-0")
        slow["metadata"]["annotations"]["sim.koord.sh/start-seconds"] = "90"
        unwrap(await j.client.create(PODS, slow))
        await j.wait_for_reports()
        shown = await table(j)
        assert "Without a sample, so their requests are counted: default/web" in shown
        assert "53000m  33000m  used by prod and mid pods +20000m" in shown
        await j.wait_for_reports(2)
        shown = await table(j)
        assert "33000m  44000m  used by prod and mid pods -11000m" in shown
        assert "co-location is on, by cluster" in shown
        assert "good for another" in shown

    run_on_colocation_cluster(journey, NODE)


def test_a_silent_node_is_explained() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.wait_for_reports()
        j.fleet.fail_node("n-0", "partition")
        await j.clock.sleep(20 * 60)
        shown = await table(j)
        assert "of no use: Expired: last reported at" in shown
        assert "not lent: nothing is lent: Expired" in shown

    run_on_colocation_cluster(journey, NODE)


def test_without_the_controller_history_is_unavailable() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.wait_for_reports()
        await j.manager.stop()
        shown = await table(j)
        assert "History is unavailable: no pod of koord-manager runs in namespace koordinator-system" in shown

    run_on_colocation_cluster(journey, NODE)


def test_top_counts_every_tier() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.wait_for_reports()
        unwrap(
            await j.client.create(PODS, pod("web", {"cpu": "20", "memory": "20Gi"}, uses={"cpu": "9"}, nodeName="n-0"))
        )
        unwrap(await j.client.create(PODS, batch_pod("job", 4_000, uses={"cpu": "3"}, nodeName="n-0")))
        await j.wait_for_reports(2)
        first, second = await look_at_nodes(j.client, "")
        assert (first.name, second.name) == ("n-0", "n-1")
        assert (first.cpu.prod.requested, first.cpu.prod.used) == (20_000, 9_000)
        assert (first.cpu.batch.requested, first.cpu.batch.used) == (4_000, 3_000)
        assert first.cpu.batch.room == int((await j.lent_resources("n-0"))[BATCH_CPU].replace("k", "000"))
        assert second.cpu.prod.requested == 0
        assert first.cpu.used == 7_000 + 9_000 + 3_000

    run_on_colocation_cluster(journey, NODE)


def refused(*args: str) -> str:
    """What a command says when it fails: one line on stderr, exit code 1."""
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 1, done.output
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("koord: ")
    return line


@pytest.mark.parametrize("command", [("explain", "node", "a"), ("top", "nodes")], ids=["explain", "top"])
def test_a_cluster_that_cannot_be_reached_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    assert "cannot be reached" in refused(*command, "--kubeconfig", str(config))
    assert "nowhere" in refused(*command, "--kubeconfig", str(tmp_path / "nowhere"))
    assert "no-such-context" in refused(*command, "--kubeconfig", str(config), "--context", "no-such-context")


def test_a_name_that_no_node_can_have_is_one_line() -> None:
    assert "is no name of a node" in refused("explain", "node", "a/b")


def test_as_a_user_runs_them() -> None:
    with koord_up("--nodes", "1", "--components", "nodes") as running:
        where = ("--kubeconfig", str(running.kubeconfig))
        assert refused("explain", "node", "nobody", *where) == "koord: there is no node nobody"
        found = CliRunner().invoke(cli, ["explain", "node", "node-0", "-o", "json", *where])
        assert found.exit_code == 0, found.output
        account = msgspec.json.decode(found.stdout)["account"]
        assert {line["state"] for line in account["lines"]} == {"Withheld"}
        assert account["settings"]["enabled"] is False
        for output in ("table", "yaml", "json"):
            done = CliRunner().invoke(cli, ["top", "nodes", "-o", output, "--sort-by", "used", *where])
            assert done.exit_code == 0, done.output
            assert "node-0" in done.stdout
        shown = CliRunner().invoke(cli, ["explain", "node", "node-0", "--resource", "batch-cpu", *where])
        assert "co-location is off for the cluster" in shown.stdout
        assert "mid-cpu" not in shown.stdout
