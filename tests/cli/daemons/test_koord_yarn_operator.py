"""koord-yarn-operator as its own program: flags and files to a plan, ports, the lease, and what doctor asks it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from koord.api.koordinator.yarn import DEFAULT_CLUSTER_ID
from koord.api.kubernetes.builtin_kinds import LEASES, NAMESPACES, NODES, PODS
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_yarn_operator import YARN_OPERATOR_FLAGS, YarnOperatorPlan, plan_operator, serve_operator
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs
from koord.wire.hadoop_yarn import ResourceMessage
from koord.yarn.operator import OperatorSettings
from tests.yarn.fake_resource_manager import FakeResourceManager, FakeYarn, running
from tests.yarn.operator_site import until
from tools.controlplane import free_port

NAMESPACE = "koordinator-system"


def site(manager: FakeResourceManager | None = None) -> str:
    if manager is None:
        return "<configuration/>"
    listed = {"address": manager.address.client, "admin.address": manager.address.admin}
    properties = "".join(
        f"<property><name>yarn.resourcemanager.{name}</name><value>{place}</value></property>"
        for name, place in listed.items()
    )
    return f"<configuration>{properties}</configuration>"


def plan_of(folder: Path, *argv: str, text: str | None = "<configuration/>", **environ: str) -> YarnOperatorPlan | str:
    if text is not None:
        (folder / "yarn-site.xml").write_text(text)
    values = YARN_OPERATOR_FLAGS.parse(argv)
    assert isinstance(values, FlagValues), values
    return plan_operator(values, {"HADOOP_CONF_DIR": str(folder), "HADOOP_USER_NAME": "yarn", **environ}, "host1")


def test_defaults_are_upstreams_and_generous(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert isinstance(plan, YarnOperatorPlan)
    assert [place and place[1] for place in (plan.metrics, plan.health)] == [8080, 8000]
    assert (plan.elects, plan.lease_namespace) == (True, NAMESPACE)
    assert plan.settings == OperatorSettings()
    assert (plan.user, plan.tokens) == ("yarn", ())
    assert [one.id for one in plan.clusters] == [DEFAULT_CLUSTER_ID]


def test_the_default_limits_let_two_thousand_nodes_be_patched_in_two_seconds(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert isinstance(plan, YarnOperatorPlan)
    assert plan.burst + 2 * plan.qps >= 2_000


@pytest.mark.parametrize(("flag", "milliseconds"), [("1m", 60_000), ("0", 0), ("-1s", -1), ("-1ns", -1), ("1500us", 1)])
def test_the_over_commit_timeout_is_milliseconds_or_never(tmp_path: Path, flag: str, milliseconds: int) -> None:
    plan = plan_of(tmp_path, f"--over-commit-timeout={flag}")
    assert isinstance(plan, YarnOperatorPlan)
    assert plan.settings.over_commit_timeout_ms == milliseconds


def test_a_flag_names_another_user_and_folder(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "yarn-site.xml").write_text(site())
    (other / "blue.yarn-site.xml").write_text(site())
    plan = plan_of(tmp_path, "--yarn-user=rm", f"--hadoop-conf-dir={other}")
    assert isinstance(plan, YarnOperatorPlan)
    assert (plan.user, [one.id for one in plan.clusters]) == ("rm", [DEFAULT_CLUSTER_ID, "blue"])


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        pytest.param(("--controllers=-yarnresource",), "cannot be left out", id="no-controller"),
        pytest.param(("--controllers=other",), "there is only yarnresource", id="other-controller"),
        pytest.param(("--sync-interval=0s",), "must be more than 0", id="interval"),
        pytest.param(("--absence-grace=-1s",), "must not be negative", id="grace"),
        pytest.param(("--over-commit-timeout=1000h",), "must not be more than", id="timeout"),
        pytest.param(("--metrics-addr=x:y:z",), "--metrics-addr", id="address"),
    ],
)
def test_flags_that_cannot_be_used_are_named(tmp_path: Path, argv: tuple[str, ...], reason: str) -> None:
    plan = plan_of(tmp_path, *argv)
    assert isinstance(plan, str)
    assert reason in plan


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    assert "yarn-site.xml: the file is missing" in str(plan_of(tmp_path, text=None))
    assert "yarn-site.xml: no XML" in str(plan_of(tmp_path, text="<"))
    assert "are not set" in str(plan_of(tmp_path, HADOOP_CONF_DIR=""))
    assert "No such file" in str(plan_of(tmp_path, HADOOP_CONF_DIR=str(tmp_path / "absent")))
    tokens = tmp_path / "tokens"
    assert "No such file" in str(plan_of(tmp_path, HADOOP_TOKEN_FILE_LOCATION=str(tokens)))
    tokens.write_bytes(b"nonsense")
    assert "HDTS" in str(plan_of(tmp_path, HADOOP_TOKEN_FILE_LOCATION=str(tokens)))
    tokens.write_bytes(b"HDTS\x00\x01\x00\x01i\x01p\x01K\x01s\x00")
    plan = plan_of(tmp_path, HADOOP_TOKEN_FILE_LOCATION=str(tokens))
    assert isinstance(plan, YarnOperatorPlan)
    assert [(one.identifier, one.password, one.kind, one.service) for one in plan.tokens] == [(b"i", b"p", "K", "s")]


async def test_it_serves_leads_and_ends(tmp_path: Path) -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    manager = FakeResourceManager(yarn)
    cluster = EmbeddedCluster(ClusterSettings(port=0))
    await cluster.start()
    try:
        async with running(manager):
            client = cluster.client
            assert client is not None
            (tmp_path / "kubeconfig").write_text(cluster.kubeconfig())
            for name in (NAMESPACE, "default"):
                await client.create(NAMESPACES, {"metadata": {"name": name}})
            lent = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "2Gi"}
            unwrap(await client.create(NODES, {"metadata": {"name": "n1"}}))
            patch = {"status": {"allocatable": lent, "capacity": lent}}
            unwrap(await client.patch(NODES, "n1", patch, kind="merge", subresource="status"))
            labels, annotations = (
                {"app.kubernetes.io/component": "node-manager"},
                {"yarn.hadoop.apache.org/node-id": "nm-0:8041"},
            )
            pod = {
                "metadata": {"name": "nm", "labels": labels, "annotations": annotations},
                "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
            }
            unwrap(await client.create(PODS, pod, "default"))
            metrics, health = free_port(), free_port()
            plan = plan_of(
                tmp_path,
                f"--metrics-addr=127.0.0.1:{metrics}",
                f"--health-probe-addr=127.0.0.1:{health}",
                "--sync-interval=50ms",
                text=site(manager),
            )
            assert isinstance(plan, YarnOperatorPlan)
            stop = asyncio.Event()
            connection = load_connection({}, WallClock(), path=str(tmp_path / "kubeconfig"))
            task = asyncio.create_task(serve_operator(plan, connection, Logs(), stop))
            await until(lambda: task.done() or yarn.capability(node) == ResourceMessage(2048, 2))
            assert not task.done(), task.result()
            async with aiohttp.ClientSession() as session:

                async def get(port: int, path: str) -> str:
                    async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                        assert answer.status == 200, await answer.text()
                        return await answer.text()

                assert "ok" in await get(health, "/healthz")
                assert "[+]informer-sync ok" in await get(health, "/readyz?verbose")
                text = await get(metrics, "/metrics")
                assert f'koord_yarn_operator_cluster_up{{cluster="{DEFAULT_CLUSTER_ID}"}}' in text
                assert 'leader_election_master_status{name="koordinator-yarn-operator"} 1' in text
                assert '"nodeManagers":1' in (await get(metrics, "/apis/v1/yarn/clusters")).replace(" ", "")
            lease = unwrap(await client.get(LEASES, "koordinator-yarn-operator", NAMESPACE))
            assert (lease.spec.holder_identity or "").startswith("host1_")
            stop.set()
            assert await task == 0
            lease = unwrap(await client.get(LEASES, "koordinator-yarn-operator", NAMESPACE))
            assert not lease.spec.holder_identity
    finally:
        await cluster.stop()
