"""The archive of `koord support-bundle`: what is in it, what is not, and who may read it."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from pathlib import Path

from click.testing import CliRunner

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, PODS, SECRETS
from koord.cli.commands.doctor.gather import gather_facts
from koord.cli.commands.doctor.registry import CHECK_IDS, run_checks
from koord.cli.commands.support_bundle.collection import build_archive, collect_bundle
from koord.cli.main import cli
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, BytesResponseBody
from koord.telemetry.clock import WallClock
from tests.koord_up_process import koord_up
from tests.manager.manager_harness import FaultyTransport, run_with_faulty_transport

SECRET = "s3cr3tS4uce0123456789"
SPACE = "koordinator-system"
POD = {
    "metadata": {"name": "koordlet-x", "labels": {"koord-app": "koordlet"}},
    "spec": {"containers": [{"name": "koordlet", "image": "koord:1", "env": [{"name": "A", "value": SECRET}]}]},
}


async def logs(request: ApiRequest) -> ApiResponse | None:
    if not request.path.endswith("/log"):
        return None
    return ApiResponse(status=200, body=BytesResponseBody(f"started\ntoken={SECRET}\n".encode()))


def test_objects_and_logs_are_in_it_and_secrets_are_not() -> None:
    async def story(client: Client, transport: FaultyTransport) -> None:
        unwrap(await client.dynamic.create(NAMESPACES, {"metadata": {"name": SPACE}}))
        unwrap(await client.dynamic.create(PODS, POD, SPACE))
        made = {"metadata": {"name": "hidden"}, "stringData": {"a": SECRET}}
        unwrap(await client.dynamic.create(SECRETS, made, SPACE))
        unwrap(
            await client.dynamic.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"password": SECRET}}, SPACE)
        )
        transport.disturb = logs
        facts = await gather_facts(client, WallClock(), SPACE, checks=CHECK_IDS)
        content = await collect_bundle(client, facts, run_checks(facts), 10)
        assert content.files["logs/koordlet-x/koordlet.log"] == b"started\ntoken=REDACTED\n"
        assert json.loads(content.files["objects/core/v1/pods.json"])["items"][0]["metadata"]["name"] == "koordlet-x"
        assert {"doctor.json", "versions.json", "left-out.txt"} <= set(content.files)
        assert not [name for name in content.files if "secrets" in name]
        archive = build_archive(content, 0.0)
        assert archive == build_archive(content, 0.0)
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for entry in opened.getmembers():
                file = opened.extractfile(entry)
                assert file is not None
                assert SECRET not in file.read().decode()

    run_with_faulty_transport(lambda context, transport: story(context.client, transport))


def test_as_a_user_runs_it(tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    with koord_up("--nodes", "1", "--components", "nodes") as running:
        where = ("--kubeconfig", str(running.kubeconfig))
        done = CliRunner().invoke(cli, ["support-bundle", "-o", str(target), *where])
        assert done.exit_code == 0
        assert done.stdout.startswith(f"{target}: ")
        assert "Left out:\n  Secrets: they are never read" in done.stdout
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        lost = CliRunner().invoke(cli, ["support-bundle", "-o", str(tmp_path / "no" / "x.tar.gz"), *where])
        assert lost.exit_code == 2
        assert lost.stderr.startswith(f"koord: cannot write {tmp_path / 'no' / 'x.tar.gz'}: ")
    with tarfile.open(target) as opened:
        names = opened.getnames()
    assert "koord-support-bundle/objects/core/v1/nodes.json" in names
