"""What is installed has the privileges that docs/security.md lists, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from koord.cli.manifests.daemonsets import GATE_MOUNTS
from koord.cli.manifests.manifests import manifests

Obj = dict[str, Any]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "security.md").read_text()
ACCOUNTS = {"koord-manager", "koord-scheduler", "koord-descheduler", "koordlet"}


@pytest.fixture(scope="module")
def installed() -> list[Obj]:
    made = manifests(runtime_hooks="proxy", koordlet_gates=",".join(f"{gate}=true" for gate in GATE_MOUNTS))
    assert isinstance(made, list)
    return made


def rows_of(table: str) -> dict[str, tuple[str, str]]:
    """Return the rows of a table that the page says is compared: the first column, and the two others."""
    part = PAGE.partition(f"<!-- {table}: compared with the DaemonSet -->")[2].partition(f"<!-- end of {table} -->")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \|$", part, re.M)
    return {name: (value, why) for name, value, why in rows}


def koordlet_pod(objects: list[Obj]) -> Obj:
    (found,) = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "DaemonSet"]
    return dict(found)


def test_the_page_lists_the_settings_of_koordlet(installed: list[Obj]) -> None:
    pod = koordlet_pod(installed)
    (container,) = pod["containers"]
    found = dict(container["securityContext"])
    found |= {
        name: pod[name] for name in ("hostPID", "hostNetwork", "hostIPC", "automountServiceAccountToken") if name in pod
    }
    listed = {name: value for name, (value, _) in rows_of("settings").items()}
    assert listed == {name: str(value).lower() for name, value in found.items()}
    assert "securityContext" not in pod


def test_the_page_lists_the_mounts_of_koordlet(installed: list[Obj]) -> None:
    pod = koordlet_pod(installed)
    read_only = {one["name"] for one in pod["containers"][0]["volumeMounts"] if one.get("readOnly")}
    found = {one["hostPath"]["path"]: "read" if one["name"] in read_only else "write" for one in pod["volumes"]}
    assert {path: access for path, (access, _) in rows_of("mounts").items()} == found


def test_tokens_are_mounted_by_the_programs_alone(installed: list[Obj]) -> None:
    accounts = {one["metadata"]["name"]: one for one in installed if one["kind"] == "ServiceAccount"}
    assert set(accounts) == ACCOUNTS
    assert all(one["automountServiceAccountToken"] is False for one in accounts.values())
    for one in installed:
        if one["kind"] in ("Deployment", "DaemonSet"):
            pod = one["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is True
            assert pod["serviceAccountName"] == one["metadata"]["name"]
    assert not [one for one in installed if one["kind"] == "Secret"]


def rules_about(objects: list[Obj], resource: str) -> list[tuple[str, Obj]]:
    return [
        (one["metadata"]["name"], rule)
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
        for rule in one["rules"]
        if resource in rule["resources"]
    ]


def test_no_program_but_the_manager_has_a_right_to_secrets(installed: list[Obj]) -> None:
    assert {name for name, _ in rules_about(installed, "secrets")} == {"koord-manager-local-role"}


def test_secrets_and_webhook_configurations_are_named(installed: list[Obj]) -> None:
    for _, rule in rules_about(installed, "secrets"):
        assert rule.get("resourceNames") == ["koordinator-webhook-certs"] or rule["verbs"] == ["create"]
    configurations = [
        rule
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        for _, rule in rules_about(installed, kind)
    ]
    assert configurations
    assert all(rule["resourceNames"] for rule in configurations)


def test_the_seccomp_profile_of_the_control_plane_is_the_runtimes(installed: list[Obj]) -> None:
    pods = [one["spec"]["template"]["spec"] for one in installed if one["kind"] == "Deployment"]
    assert len(pods) == 3
    assert all(pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"} for pod in pods)


def test_the_device_daemon_has_no_token_and_no_port() -> None:
    made = manifests(components=("device-daemon",))
    assert isinstance(made, list)
    (daemon,) = made
    spec = daemon["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert "ports" not in container
    assert {one["hostPath"]["path"] for one in spec["volumes"]} == {"/", "/var/run/koordlet/xpu-device-infos"}
