"""The OCI images: the same bytes from two builds, and every program in a container with a read-only root."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.koord_up_process import KoordUpProcess, koord_up
from tests.real import container_runtime
from tests.real.container_runtime import ContainerRuntime
from tools.controlplane import free_port
from tools.oci_image import debian
from tools.oci_image.build import ROOT, Product, build, cache_folder
from tools.oci_image.declaration import FLAVOURS, USER_ID, every_package

pytestmark = [pytest.mark.real, pytest.mark.machine]

PROGRAMS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
AGENT_PROGRAMS = tuple(name for name in FLAVOURS["agent"].programs if name in PROGRAMS)
# Packages of which the agent's image has only what koordlet imports.
AGENT_PACKAGES = (
    "api",
    "devicedaemon",
    "host",
    "koordlet",
    "kube",
    "policy",
    "runtimeproxy",
    "telemetry",
    "values",
    "wire",
)
LIMIT_BYTES = {"all": 150_000_000, "agent": 70_000_000}
WAIT_S = 60
_IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
names = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
count = 0
for name in names:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print("imported", count)
"""
_SURROUNDINGS = """
import errno, json, os, sqlite3, ssl, sys
try:
    open("/etc/written", "w")
except OSError as error:
    refused = errno.errorcode[error.errno]
with open("/tmp/written", "w") as file:
    file.write("1")
print(json.dumps({
    "uid": os.getuid(), "refused": refused, "encoding": sys.getfilesystemencoding(), "sh": os.path.exists("/bin/sh"),
    "authorities": ssl.create_default_context().cert_store_stats()["x509_ca"],
    "pip": os.path.exists("/usr/bin/pip"), "rows": sqlite3.connect(":memory:").execute("select 1").fetchone(),
}))
"""


def missing() -> str:
    """Return why no image can be built here; empty when one can. What the cache lacks is downloaded, once."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            return f"no {tool} on this machine: images are built on Debian 12"
    locked = debian.read_lock(debian.machine_architecture())
    if unlocked := [name for name in every_package() if name not in locked]:
        return f"{debian.LOCK.name} has no {', '.join(unlocked)} for this machine"
    try:
        debian.fetch([locked[name] for name in every_package()], cache_folder() / "packages")
    except debian.PackageError as error:
        return f"the image's Debian packages cannot be had here: {error}"
    return ""


@pytest.fixture(scope="module")
def products() -> dict[str, Product]:
    if reason := missing():
        pytest.skip(reason)
    return {name: build(flavour, cache_folder()) for name, flavour in FLAVOURS.items()}


@pytest.fixture(scope="module")
def runtime(products: dict[str, Product], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerRuntime]:
    """containerd with both images, imported from their archives."""
    if reason := container_runtime.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("images")
    with container_runtime.running() as running:
        for product in products.values():
            archive = folder / f"{product.stem}.tar"
            archive.write_bytes(product.image.content)
            assert product.reference in running.import_image(archive)
        yield running


def test_another_process_builds_the_same_bytes(products: dict[str, Product], tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    environment = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "TMPDIR": str(tmp_path / "tmp"), "LC_ALL": "C"}
    command = [sys.executable, "-m", "tools.oci_image", "--flavour", "agent", "--to", str(tmp_path / "dist")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, umask=0o077, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first = products["agent"]
    assert first.image.digest in done.stdout
    again = (tmp_path / "dist" / f"{first.stem}.tar").read_bytes()
    assert hashlib.sha256(again).hexdigest() == hashlib.sha256(first.image.content).hexdigest()
    assert (tmp_path / "dist" / f"{first.stem}.cdx.json").read_text() == first.bill


@pytest.mark.parametrize("flavour", sorted(FLAVOURS))
def test_images_are_small_and_their_bill_names_every_package(products: dict[str, Product], flavour: str) -> None:
    product = products[flavour]
    assert product.image.unpacked_bytes < LIMIT_BYTES[flavour]
    listed = json.loads(product.bill)
    names = {row["name"] for row in listed["components"]}
    assert {package.name for package in FLAVOURS[flavour].packages} | {"koord", "aiohttp"} <= names
    assert ("numpy" in names) == (flavour == "all")
    assert listed["metadata"]["component"]["hashes"][0]["content"] == product.image.digest.removeprefix("sha256:")


def test_every_program_says_its_version(products: dict[str, Product], runtime: ContainerRuntime) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for flavour, programs in (("all", PROGRAMS), ("agent", AGENT_PROGRAMS)):
        for program in programs:
            assert version in runtime.run(products[flavour].reference, program, "--version"), program


def test_every_module_imports(products: dict[str, Product], runtime: ContainerRuntime) -> None:
    whole = runtime.run(products["all"].reference, "python3", "-sBc", _IMPORT_ALL, "koord")
    agent_names = [f"koord.{name}" for name in AGENT_PACKAGES]
    agent = runtime.run(products["agent"].reference, "python3", "-sBc", _IMPORT_ALL, *agent_names)
    assert int(whole.split()[1]) > int(agent.split()[1]) > 100


def test_the_agent_has_what_a_node_needs(products: dict[str, Product], runtime: ContainerRuntime) -> None:
    reference = products["agent"].reference
    assert "--feature-gates" in runtime.run(reference, "koordlet", "--help")
    assert "--remote-runtime-service-endpoint" in runtime.run(reference, "koord-runtime-proxy", "--help")
    assert "iproute2" in runtime.run(reference, "tc", "-V")
    assert "iproute2" in runtime.run(reference, "ip", "-V")


def test_containers_are_not_root_and_write_only_to_tmp(products: dict[str, Product], runtime: ContainerRuntime) -> None:
    found = json.loads(runtime.run(products["all"].reference, "python3", "-sBc", _SURROUNDINGS))
    assert found["uid"] == USER_ID
    assert found["refused"] == "EROFS"
    assert found["encoding"] == "utf-8"
    assert found["authorities"] > 50
    assert found["rows"] == [1]
    assert not found["sh"]
    assert not found["pip"]


def test_koord_scheduler_binds_a_pod(products: dict[str, Product], runtime: ContainerRuntime, tmp_path: Path) -> None:
    with koord_up("--nodes", "1") as cluster:
        config, port = tmp_path / "config", free_port()
        config.mkdir(mode=0o755)
        shutil.copy(cluster.kubeconfig, config / "kubeconfig")
        (config / "kubeconfig").chmod(0o644)
        (config / "scheduler.yaml").write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "profiles": [{"schedulerName": "from-image"}],
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": {"kubeconfig": "/config/kubeconfig"},
                }
            )
        )
        command = ["koord-scheduler", "--config=/config/scheduler.yaml", "--address=127.0.0.1", f"--port={port}"]
        pods = f"{cluster.url}/api/v1/namespaces/default/pods"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "spec": {"schedulerName": "from-image", "containers": [{"name": "web", "image": "web"}]},
        }
        log = tmp_path / "scheduler.log"
        with runtime.running(
            products["all"].reference, *command, "--secure-port=0", config=config, log=log
        ) as scheduler:
            request(cluster, pods, pod)
            deadline = time.monotonic() + WAIT_S
            while not request(cluster, f"{pods}/web")["spec"].get("nodeName"):
                assert scheduler.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        assert scheduler.returncode == 0, log.read_text()


def request(cluster: KoordUpProcess, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(asked, context=cluster.ssl(), timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error


def test_layers_hold_no_name_of_this_machine(products: dict[str, Product], tmp_path: Path) -> None:
    """Paths of the building machine would make images differ, and would tell of it."""
    archive = tmp_path / "image.tar"
    archive.write_bytes(products["agent"].image.content)
    with tarfile.open(archive) as outer:
        for blob in outer.getmembers():
            held = outer.extractfile(blob)
            if held is None or not (content := held.read()).startswith(b"\x1f\x8b"):
                continue
            layer = tmp_path / "layer.tar.gz"
            layer.write_bytes(content)
            with tarfile.open(layer) as files:
                for file in files:
                    inner = files.extractfile(file) if file.isreg() else None
                    assert inner is None or str(ROOT).encode() not in inner.read(), file.name
                    assert not file.uname, file.name
