"""`koord top pods`: classes, used against requested, and the mark of pods that others disturb."""

from __future__ import annotations

from datetime import UTC, datetime

from click.testing import CliRunner

from koord.api.annotations.pod_codecs import A_INTERFERENCE, MetricInterference, dump_interference
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli.commands.top import POD_SORT_KEYS, print_pods, read_pod_uses
from koord.cli.main import cli
from koord.cli.printing import make_console
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.transport.api_error import unwrap
from koord.manager.explain.tier_usage import PodTierUsage
from tests.journeys.colocation_cluster import ColocationCluster, batch_pod, pod, run_on_colocation_cluster
from tests.koord_up_process import koord_up

NODE = SimulatedPool(name="n", count=2, cpu=64, memory="128Gi")
GI = 1 << 30


def printed(found: list[PodTierUsage], at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> str:
    out = make_console()
    with out.capture() as captured:
        print_pods(out, found, at)
    return captured.get()


def test_every_pod_is_shown_with_its_class_and_what_it_uses_of_what_it_asked_for() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.wait_for_reports()
        uses = {"cpu": "9", "memory": "5Gi"}
        web = pod("web", {"cpu": "20", "memory": "20Gi"}, uses=uses, nodeName="n-0", labels={"app": "web"})
        unwrap(await j.client.create(PODS, web))
        unwrap(await j.client.create(PODS, batch_pod("job", 4_000, uses={"cpu": "3"}, nodeName="n-1")))
        (early,) = [one for one in await read_pod_uses(j.client) if one.name == "web"]
        assert (early.cpu_used, early.memory_used) == (None, None)  # no report tells of it yet, which is not zero
        await j.wait_for_reports(2)
        job, front = await read_pod_uses(j.client)
        assert (front.cpu_requested, front.cpu_used) == (20_000, 9_000)
        assert (front.memory_requested, front.memory_used) == (20 * GI, 5 * GI)
        assert (job.name, job.qos, job.priority_class, job.priority) == ("job", "BE", "koord-batch", 5000)
        assert (job.cpu_requested, job.cpu_used, job.memory_requested) == (4_000, 3_000, GI)
        assert [one.name for one in await read_pod_uses(j.client, node="n-1")] == ["job"]
        assert [one.name for one in await read_pod_uses(j.client, selector="app=web")] == ["web"]
        assert await read_pod_uses(j.client, "kube-system") == []
        shown = printed([job, front])
        assert "batch" in shown
        assert "9000m" in shown
        assert " 45 " in shown  # percent of the request
        assert "disturbed" not in shown

    run_on_colocation_cluster(journey, NODE)


def test_a_disturbed_pod_has_a_mark_and_comes_first_when_asked_for() -> None:
    async def journey(j: ColocationCluster) -> None:
        note = MetricInterference(baseline=1.21, spread=0.06, now=3.4567, score=36.5, since_s=1_767_225_600)
        for name, annotation in (("calm", None), ("hurt", dump_interference({"cpi": note})), ("odd", "no JSON")):
            made = pod(name, {"cpu": "1"}, nodeName="n-0")
            if annotation is not None:
                made["metadata"].setdefault("annotations", {})[A_INTERFERENCE] = annotation
            unwrap(await j.client.create(PODS, made))
        found = await read_pod_uses(j.client)
        assert [one.disturbed for one in found] == [{}, {"cpi": note}, {}]
        found.sort(key=POD_SORT_KEYS["interference"])
        assert found[0].name == "hurt"
        shown = printed(found)
        assert "disturbed: cpi 3.46, normal 1.21 since 00:00:00" in shown
        assert shown.count("disturbed") == 1

    run_on_colocation_cluster(journey, NODE)


def test_as_a_user_runs_it() -> None:
    with koord_up("--nodes", "1", "--components", "nodes") as running:
        where = ("--kubeconfig", str(running.kubeconfig))
        done = CliRunner().invoke(cli, ["top", "pods", *where])
        assert (done.exit_code, done.stdout) == (0, "No pods on nodes.\n")
        done = CliRunner().invoke(cli, ["top", "pods", "-o", "json", "--sort-by", "cpu", "--node", "node-0", *where])
        assert (done.exit_code, done.stdout) == (0, "[]\n")
