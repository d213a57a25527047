"""`koord doctor` as a user runs it: on a cluster with and without an installation, without rights, and on none."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.cli.commands.doctor.gather import gather_facts
from koord.cli.commands.doctor.registry import CHECK_IDS, documentation_table, run_checks
from koord.cli.main import cli
from koord.cli.manifests.manifests import manifests
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.interface import ApiRequest, ApiResponse, UnstructuredBody
from koord.telemetry.clock import WallClock
from tests.koord_up_process import koord_up
from tests.manager.manager_harness import FaultyTransport, run_with_faulty_transport

PAGE = Path(__file__).parents[4] / "docs" / "doctor.md"
PLURALS = {"PriorityClass": "priorityclasses"}


def koord(kubeconfig: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, [*args, "--kubeconfig", str(kubeconfig)])


async def install(client: Client) -> None:
    """Apply what `koord manifests` prints."""
    made = manifests()
    assert not isinstance(made, str)
    for one in made:
        group, _, version = str(one["apiVersion"]).rpartition("/")
        resource = Resource(
            group=group,
            version=version,
            kind=one["kind"],
            plural=PLURALS.get(one["kind"], f"{one['kind'].lower()}s"),
            namespaced="namespace" in one["metadata"],
            model=Object,
        )
        unwrap(await client.dynamic.apply(resource, one, field_manager="test", force=True))


@pytest.fixture(scope="module")
def bare() -> Iterator[Path]:
    """A cluster of two nodes with the definitions of koord's kinds, where no program of koord runs."""
    with koord_up("--nodes", "2", "--components", "nodes") as running:
        yield running.kubeconfig


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A cluster on which the manifests were applied and no controller starts their pods."""
    with koord_up("--nodes", "2", "--components", "nodes") as running:

        async def apply() -> None:
            clock = WallClock()
            transport = HttpTransport(load_connection(os.environ, clock, path=str(running.kubeconfig)), clock)
            async with Client(transport, clock=clock, qps=0, burst=0) as client:
                await install(client)

        asyncio.run(apply())
        yield running.kubeconfig


def test_without_an_installation_it_ends_well(bare: Path) -> None:
    done = koord(bare, "doctor")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "OK       api-server: The API server's version and API groups" in done.stdout
    assert "INFO     not-installed: no program of koord is installed in namespace" in done.stdout
    assert "Not checked: leases: none of koord-manager, koord-scheduler" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_an_installation_whose_pods_do_not_start_has_errors(installed: Path) -> None:
    done = koord(installed, "doctor", "-o", "json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    found = {one["id"]: one for one in report["findings"]}
    assert report["skipped"] == []
    for name in ("program-not-ready", "webhook-unreachable-ignore", "webhook-ca-missing", "lease-missing"):
        assert name in found
    for fine in ("api-server", "crds", "rbac", "webhooks", "conflicts", "configuration", "versions"):
        assert found[fine]["severity"] == "ok"
    assert found["koordlet-missing"]["objects"] == ["node-0", "node-1"]


def test_simulated_koordlets_are_asked() -> None:
    with koord_up("--nodes", "1", "--set", "nodes.agents=true") as running:
        done = koord(running.kubeconfig, "doctor", "-o", "json")
    found = {one["check"]: one["severity"] for one in json.loads(done.stdout)["findings"]}
    assert (found["koordlets"], found["capabilities"], found["programs"]) == ("ok", "ok", "ok")


def test_only_and_node_narrow_it(installed: Path) -> None:
    only = json.loads(koord(installed, "doctor", "--only", "crds", "--only", "rbac", "-o", "json").stdout)
    assert [one["check"] for one in only["findings"]] == ["crds", "rbac"]
    node = json.loads(koord(installed, "doctor", "--node", "node-1", "-o", "json").stdout)
    assert {one["check"] for one in node["findings"]} == {"node-metrics", "koordlets", "capabilities", "hooks"}
    assert {name for one in node["findings"] for name in one["objects"]} == {"node-1"}
    gone = koord(installed, "doctor", "--node", "elsewhere")
    assert (gone.exit_code, gone.stderr) == (2, "koord: there is no node elsewhere\n")


def test_a_server_that_cannot_be_asked_is_exit_code_2(bare: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(bare.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "gone"
    path.write_text(yaml.safe_dump(config))
    done = koord(path, "doctor")
    assert done.exit_code == 2
    assert done.stderr.startswith("koord: the API server cannot be reached: ")
    config = yaml.safe_load(bare.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    path.write_text(yaml.safe_dump(config))
    assert koord(path, "doctor").exit_code == 2


def forbidden() -> ApiResponse:
    status = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "not you"}
    return ApiResponse(status=403, body=UnstructuredBody(status))


@pytest.mark.parametrize("part", ["/leases", "/secrets/", "/subjectaccessreviews", "/nodemetrics", "/configmaps"])
def test_a_missing_right_is_told_and_the_rest_is_checked(part: str) -> None:
    async def refuse(request: ApiRequest) -> ApiResponse | None:
        return forbidden() if part in f"{request.path}" else None

    async def story(client: Client, transport: FaultyTransport) -> None:
        await install(client)
        transport.disturb = refuse
        report = run_checks(await gather_facts(client, WallClock(), "koordinator-system", checks=CHECK_IDS))
        unknown = [one for one in report.findings if one.id == "not-readable"]
        assert unknown
        assert [one.what for one in unknown if "403 Forbidden: not you" not in one.what or not one.fix] == []
        assert [one for one in report.findings if one.severity == "ok"]

    run_with_faulty_transport(lambda context, transport: story(context.client, transport))


def test_denied_rights_are_named() -> None:
    async def deny(request: ApiRequest) -> ApiResponse | None:
        if "/subjectaccessreviews" not in request.path:
            return None
        asked = request.body["spec"]["resourceAttributes"]
        allowed = (asked["resource"], asked.get("subresource")) != ("nodes", "status")
        return ApiResponse(status=201, body=UnstructuredBody({**request.body, "status": {"allowed": allowed}}))

    async def story(client: Client, transport: FaultyTransport) -> None:
        await install(client)
        transport.disturb = deny
        facts = await gather_facts(client, WallClock(), "koordinator-system", checks=("rbac",))
        found = [one for one in run_checks(facts, ("rbac",)).findings if one.id == "rights-missing"]
        denied = {name for one in found for name in one.objects}
        assert denied == {"patch nodes/status"}

    run_with_faulty_transport(lambda context, transport: story(context.client, transport))


def test_the_page_has_every_check() -> None:
    assert documentation_table() in PAGE.read_text()
