"""No program logs a credential, with all that it can log switched on: neither its token nor the webhooks' keys."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from koord.cli.manifests.manifests import manifests
from tests.charts.test_program_metrics import NODE, PROGRAMS, free_port, read_until
from tests.koord_up_process import KoordUpProcess, koord_up
from tests.real.kubectl import kubectl

pytestmark = pytest.mark.real

SYSTEM = "koordinator-system"
INSTALLED = ("Namespace", "Secret", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/koordinator-webhook-certs"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "1", "--components", "workloads,nodes") as running:
        made = manifests(components=("namespace", "manager"))
        assert isinstance(made, list)
        objects = yaml.safe_dump_all([one for one in made if one["kind"] in INSTALLED])
        said = kubectl(running.kubeconfig, "apply", "--server-side", "-f", "-", stdin=objects)
        assert said.code == 0, said.err
        yield running


def keys(cluster: KoordUpProcess) -> list[str]:
    """Return each line of the private keys of the webhooks that the API server has; none where no program made any."""
    asked = urllib.request.Request(f"{cluster.url}{SECRET}", headers={"Authorization": f"Bearer {cluster.token}"})
    try:
        with urllib.request.urlopen(asked, context=cluster.ssl(), timeout=30) as answer:
            data = json.load(answer)["data"]
    except urllib.error.HTTPError:
        return []
    found = [value for name, value in data.items() if "key" in name]
    lines = [line for value in found for line in base64.b64decode(value).decode().splitlines()]
    return [*found, *(line for line in lines if not line.startswith("-----"))]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.usefixtures("kubepods")
def test_a_program_logs_no_credential(program: str, cluster: KoordUpProcess, tmp_path: Path) -> None:
    module, flags, path, wanted = PROGRAMS[program]
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")  # where nobody answers
    port = free_port()
    given = [flag.format(port=port, folder=tmp_path) for flag in flags]
    if program == "koord-manager":
        given = [flag for flag in given if not flag.startswith("--feature-gates")]  # its webhooks have keys
        wanted = (*wanted, "koord_manager_webhook_certificate_not_after_seconds")
    log = tmp_path / "log"
    command = [sys.executable, "-m", f"koord.cli.daemons.{module}", f"--kubeconfig={cluster.kubeconfig}", "--v=10"]
    with log.open("wb") as out:
        serving = {"WEBHOOK_PORT": str(free_port()), "WEBHOOK_CERT_DIR": str(tmp_path / "certs")}
        environment = {**os.environ, **serving, "NODE_NAME": NODE, "POD_NAMESPACE": SYSTEM}
        process = subprocess.Popen([*command, *given], stdout=out, stderr=out, env=environment)
        try:
            read_until(process, f"http://127.0.0.1:{port}{path}", wanted, log)
        finally:
            process.terminate()
            process.wait(timeout=30)
    text = log.read_text()
    assert text, "nothing is logged"
    secrets = [cluster.token, *keys(cluster)]
    assert program != "koord-manager" or len(secrets) > 1, "the manager made no key"
    assert [one for one in secrets if one in text] == []
    assert "PRIVATE KEY" not in text
