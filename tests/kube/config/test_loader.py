"""Which files are read, in which order, and what a pod's own account gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koord.kube.config import loader
from koord.kube.config.connection import BadConfig, TokenAuth, TokenFileAuth
from koord.kube.config.kubeconfig import ConnectionOverrides
from koord.kube.config.loader import kubeconfig_paths, load_connection
from koord.telemetry.clock import ManualClock

CLOCK = ManualClock()


def write(file: Path, server: str, token: str = "t") -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": server}}],
        "users": [{"name": "x", "user": {"token": token}}],
    }
    file.write_text(json.dumps(config))
    return str(file)


def test_an_explicit_path_is_the_only_file_read(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", "https://one"), write(tmp_path / "two", "https://two")
    assert load_connection({"KUBECONFIG": one}, CLOCK, path=two).server == "https://two"


def test_several_files_merge_first_wins_and_missing_ones_are_skipped(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", "https://one"), write(tmp_path / "two", "https://two")
    got = load_connection({"KUBECONFIG": f"{tmp_path}/none:{one}::{two}"}, CLOCK)
    assert (got.server, got.auth) == ("https://one", TokenAuth(token="t"))


def test_home_is_the_last_place_for_a_file(tmp_path: Path) -> None:
    write(tmp_path / ".kube" / "config", "https://home")
    assert load_connection({"HOME": str(tmp_path)}, CLOCK).server == "https://home"


def test_the_environment_names_each_file_once() -> None:
    assert kubeconfig_paths({"KUBECONFIG": "/a:/b:/a", "HOME": "/h"}) == ["/a", "/b"]


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="nothing-set"),
        pytest.param({"KUBECONFIG": "/nowhere/config"}, id="named-file-is-missing"),
        pytest.param({"HOME": "/nowhere"}, id="no-file-at-home"),
    ],
)
def test_nothing_to_load_says_what_to_set(environ: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match="set KUBECONFIG, or run inside a cluster"):
        load_connection(environ, CLOCK)


def test_an_explicit_path_must_exist(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="it cannot be read"):
        load_connection({}, CLOCK, path=str(tmp_path / "none"))


def test_a_folder_is_not_a_config(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="it cannot be read"):
        load_connection({}, CLOCK, path=str(tmp_path))


def test_dates_stay_text(tmp_path: Path) -> None:
    file = tmp_path / "config"
    write(file, "https://x")
    file.write_text(file.read_text().replace('"t"', "2026-01-01"))
    assert load_connection({}, CLOCK, path=str(file)).auth == TokenAuth(token="2026-01-01")


def account(folder: Path) -> dict[str, str]:
    for name, text in (("token", "abc"), ("ca.crt", "PEM"), ("namespace", "team\n")):
        (folder / name).write_text(text)
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    got = loader.in_cluster_connection(account(tmp_path), account=str(tmp_path))
    assert (got.server, got.namespace) == ("https://10.0.0.1:443", "team")
    assert isinstance(got.auth, TokenFileAuth)
    assert got.ca is not None
    assert (got.auth.path, got.ca.path) == (f"{tmp_path}/token", f"{tmp_path}/ca.crt")


def test_an_ipv6_service_address_gets_brackets(tmp_path: Path) -> None:
    environ = {**account(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert loader.in_cluster_connection(environ, account=str(tmp_path)).server == "https://[fd00::1]:443"


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_pod_without_its_account_is_told_which_file_is_missing(tmp_path: Path, name: str) -> None:
    environ = account(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(BadConfig, match=f"{name}: there is no such file; let the pod mount"):
        loader.in_cluster_connection(environ, account=str(tmp_path))


def test_outside_a_pod_the_environment_is_named() -> None:
    with pytest.raises(BadConfig, match="KUBERNETES_SERVICE_HOST"):
        loader.in_cluster_connection({})


def test_a_file_is_preferred_to_the_pods_account(tmp_path: Path) -> None:
    environ = {"KUBECONFIG": write(tmp_path / "c", "https://file"), **account(tmp_path)}
    assert load_connection(environ, CLOCK, choice=ConnectionOverrides(namespace="n")).server == "https://file"
