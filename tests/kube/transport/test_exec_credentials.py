"""Credential plugins as real programs: what they are told, what they may print, when they run again."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koord.kube.config.connection import BadConfig, Connection, ExecAuth, PemSource, SettingOrigin
from koord.kube.transport import credentials
from koord.kube.transport.credentials import (
    ExecCredentialSource,
    ExecPluginFailed,
    exec_info_json,
    parse_exec_credential,
)
from koord.telemetry.clock import VIRTUAL_EPOCH, ManualClock

V1 = "client.authentication.k8s.io/v1"
ORIGIN = SettingOrigin("config", "users[u].exec")
SERVER = Connection(server="https://h", origin=SettingOrigin("config", "clusters[c].server"))

# Prints what PRINT holds with the number of the run in it, and keeps a copy of what it was told.
PLUGIN = f"""#!{sys.executable}
import os, pathlib, sys
here = pathlib.Path(__file__).parent
runs = here / "runs"
number = int(runs.read_text()) + 1 if runs.exists() else 1
runs.write_text(str(number))
(here / "told").write_text(os.environ["KUBERNETES_EXEC_INFO"])
(here / "argv").write_text(" ".join(sys.argv[1:]))
(here / "mode").exists() and sys.exit("the vault is sealed")
print((here / "print").read_text().replace("RUN", str(number)))
"""


class Plugin:
    """A program in a folder of its own, and the spec that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "plugin"
        self.program.write_text(PLUGIN)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.prints({"token": "token-RUN"})

    def prints(self, status: dict[str, Any], api_version: str = V1) -> None:
        credential = {"apiVersion": api_version, "kind": "ExecCredential", "status": status}
        (self.folder / "print").write_text(json.dumps(credential))

    def spec(self, **more: Any) -> ExecAuth:
        given = {"origin": ORIGIN, "api_version": V1, "command": str(self.program), "environ": dict(os.environ)}
        return ExecAuth(**{"interactive_mode": "Never", **given, **more})

    @property
    def runs(self) -> int:
        file = self.folder / "runs"
        return int(file.read_text()) if file.exists() else 0

    def fails(self, failing: bool = True) -> None:
        file = self.folder / "mode"
        file.touch() if failing else file.unlink()


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def at(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_plugin_runs_once_and_its_token_is_shared(plugin: Plugin) -> None:
    credential_source = ExecCredentialSource(plugin.spec(args=("get", "token")), SERVER, ManualClock())
    grants = await asyncio.gather(*(credential_source.credential() for _ in range(20)))
    assert {credential.authorization for credential in grants} == {"Bearer token-1"}
    assert plugin.runs == 1
    assert (plugin.folder / "argv").read_text() == "get token"


async def test_a_token_is_renewed_before_its_end(plugin: Plugin) -> None:
    clock = ManualClock()
    plugin.prints({"token": "token-RUN", "expirationTimestamp": at(VIRTUAL_EPOCH + 900)})
    credential_source = ExecCredentialSource(plugin.spec(), SERVER, clock)
    assert (await credential_source.credential()).authorization == "Bearer token-1"
    clock.advance(900 - credentials.EXPIRY_SKEW_S - 1)
    assert (await credential_source.credential()).authorization == "Bearer token-1"
    clock.advance(1)
    assert (await credential_source.credential()).authorization == "Bearer token-2"


async def test_a_token_shorter_than_the_skew_is_still_used(plugin: Plugin) -> None:
    clock = ManualClock()
    plugin.prints({"token": "token-RUN", "expirationTimestamp": at(VIRTUAL_EPOCH + 30)})
    credential_source = ExecCredentialSource(plugin.spec(), SERVER, clock)
    await credential_source.credential()
    clock.advance(20)
    assert (await credential_source.credential()).authorization == "Bearer token-1"


async def test_a_rejected_token_is_renewed_once_for_all_who_used_it(plugin: Plugin) -> None:
    credential_source = ExecCredentialSource(plugin.spec(), SERVER, ManualClock())
    used = await credential_source.credential()
    for _ in range(5):
        assert credential_source.rejected(used)
        assert (await credential_source.credential()).authorization == "Bearer token-2"
    assert plugin.runs == 2


async def test_a_failing_renewal_keeps_a_token_that_still_holds(plugin: Plugin) -> None:
    clock = ManualClock()
    plugin.prints({"token": "token-RUN", "expirationTimestamp": at(VIRTUAL_EPOCH + 900)})
    credential_source = ExecCredentialSource(plugin.spec(), SERVER, clock)
    await credential_source.credential()
    plugin.fails()
    clock.advance(870)
    assert (await credential_source.credential()).authorization == "Bearer token-1"
    clock.advance(30)
    with pytest.raises(ExecPluginFailed, match="ended with 1: the vault is sealed") as caught:
        await credential_source.credential()
    assert not caught.value.sent
    plugin.fails(False)
    plugin.prints({"token": "token-RUN"})
    assert (await credential_source.credential()).authorization == "Bearer token-4"


async def test_a_certificate_may_be_printed(plugin: Plugin) -> None:
    plugin.prints({"clientCertificateData": "CERT", "clientKeyData": "KEY"})
    credential = await ExecCredentialSource(plugin.spec(), SERVER, ManualClock()).credential()
    assert credential.authorization == ""
    assert credential.certificate is not None
    assert (credential.certificate.certificate.data, credential.certificate.key.data) == (b"CERT", b"KEY")


async def test_the_plugin_is_told_of_the_cluster_when_it_asks(plugin: Plugin, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("PEM")
    cluster = Connection(
        server="https://h",
        origin=SERVER.origin,
        ca=PemSource(origin=SettingOrigin("config", "ca"), path=str(ca)),
        tls_server_name="name",
        proxy_url="http://p:1",
    )
    spec = plugin.spec(provide_cluster_info=True, cluster_config={"audience": "a"}, env={"X": "y"})
    await ExecCredentialSource(spec, cluster, ManualClock()).credential()
    assert json.loads((plugin.folder / "told").read_text()) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://h",
                "tls-server-name": "name",
                "certificate-authority-data": "UEVN",
                "proxy-url": "http://p:1",
                "config": {"audience": "a"},
            },
        },
    }


def test_the_plugin_is_told_nothing_it_did_not_ask_for(plugin: Plugin) -> None:
    assert json.loads(exec_info_json(plugin.spec(), SERVER, None))["spec"] == {"interactive": False}


@pytest.mark.parametrize(
    ("mode", "terminal", "told"),
    [
        pytest.param("Never", True, False, id="never"),
        pytest.param("IfAvailable", True, True, id="available"),
        pytest.param("IfAvailable", False, False, id="not-available"),
        pytest.param("Always", True, True, id="always"),
    ],
)
def test_interactive(plugin: Plugin, mode: str, terminal: bool, told: bool) -> None:
    spec = plugin.spec(interactive_mode=mode, terminal=terminal)
    assert json.loads(exec_info_json(spec, SERVER, None))["spec"]["interactive"] is told


async def test_a_plugin_that_needs_a_person_is_not_run_without_one(plugin: Plugin) -> None:
    with pytest.raises(BadConfig, match="needs a person at the terminal"):
        await ExecCredentialSource(plugin.spec(interactive_mode="Always"), SERVER, ManualClock()).credential()
    assert plugin.runs == 0


async def test_a_missing_program_repeats_the_install_hint_without_control_characters(plugin: Plugin) -> None:
    spec = plugin.spec(command="no-such-plugin", install_hint="\x1b[31mget it at example.test")
    with pytest.raises(BadConfig, match=r"there is no program no-such-plugin; \[31mget it at example.test"):
        await ExecCredentialSource(spec, SERVER, ManualClock()).credential()


async def test_a_plugin_that_hangs_is_ended(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "EXEC_TIMEOUT_S", 0.0)
    plugin.program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(1000)\n")
    with pytest.raises(ExecPluginFailed, match="printed nothing within"):
        await ExecCredentialSource(plugin.spec(), SERVER, ManualClock()).credential()


@pytest.mark.parametrize(
    ("output", "told"),
    [
        pytest.param("hello", "did not print an ExecCredential", id="no-json"),
        pytest.param('{"kind":"\xff"}', "did not print an ExecCredential", id="not-utf8"),
        pytest.param("[]", "did not print an ExecCredential", id="a-list"),
        pytest.param('{"apiVersion":"x","kind":"ExecCredential"}', 'printed "x ExecCredential"', id="other-version"),
        pytest.param(f'{{"apiVersion":"{V1}","kind":"Pod"}}', "not client.authentication.k8s.io/v1", id="other-kind"),
        pytest.param(f'{{"apiVersion":"{V1}","kind":"ExecCredential"}}', "neither a token nor", id="no-status"),
        pytest.param(
            f'{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"clientKeyData":"k"}}}}',
            "without the other",
            id="key-alone",
        ),
        pytest.param(
            f'{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"t","expirationTimestamp":"soon"}}}}',
            "did not print an ExecCredential",
            id="odd-time",
        ),
    ],
)
def test_what_a_plugin_may_not_print(plugin: Plugin, output: str, told: str) -> None:
    with pytest.raises(BadConfig, match=r"config: users\[u\].exec: ") as caught:
        parse_exec_credential(plugin.spec(), SERVER, output.encode("latin-1"))
    assert told in str(caught.value)
