"""A share of a real card in a real container, from the pod to the measured limit (`make test-gpu`).

`koord up` is the control plane, and a real kubelet, containerd and koordlet make this machine its node. koordlet
reports the card, koord-manager offers it, the webhook and koord-scheduler give a pod its share, the kubelet starts the
pod, and koordlet's NRI hook gives the container its limits. What the container measures is what counts; with
KOORD_GPU_FIGURES the reports are kept in that file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_session import ROOT, why_no_mps
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, L_GPU_ISOLATION_PROVIDER
from koord.koordlet.hooks import gpu_env
from tests.gpu import nvidia_runtime
from tests.koord_up_process import koord_up_plane
from tools import nodeagent, realnode
from tools.nodeagent import PODS, Api, until
from tools.realnode import NODE, Node

_SKIPPED = why_no_mps() or realnode.missing()
pytestmark = pytest.mark.skipif(bool(_SKIPPED), reason=_SKIPPED or "there are a card and a runtime")

CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
HAMI_LIBRARY = os.environ.get("KOORD_HAMI_CORE", "")
FIGURES = os.environ.get("KOORD_GPU_FIGURES", "")
GATES = "Accelerators=true,GPUEnvInject=true,MPSControlDaemon=true,HamiCoreVGPUMonitor=true"
_NEEDS_HAMI = pytest.mark.skipif(not HAMI_LIBRARY, reason="KOORD_HAMI_CORE names no library")
HELD_BYTES = 2 << 30
HOLD = f"""
import time
from koord.gpu.driver import CudaCard, CudaDriver
card = CudaCard.open(CudaDriver.open())
print(card.allocate({HELD_BYTES}), flush=True)
time.sleep(600)
"""
_UP = re.compile(r"^koordlet_gpu_mps_daemon_up\{[^}]*\} 1(\.0)?$", re.MULTILINE)
NODE_PATH = f"/api/v1/nodes/{NODE}"


def _driver_folders() -> list[str]:
    """Return the folders of the driver's libraries that this process has open."""
    import ctypes

    ctypes.CDLL("libcuda.so.1")
    ctypes.CDLL("libnvidia-ml.so.1")
    maps = Path("/proc/self/maps").read_text()
    found = re.findall(r"(/\S+)/lib(?:cuda|nvidia-ml)\.so\S*", maps)
    return sorted(set(found))


def site_packages() -> list[str]:
    """Return where this process takes packages from, which need not be below its prefix."""
    return [path for path in sys.path if path.endswith("-packages")]


class GpuNode:
    def __init__(self, node: Node, api: Api, agent: nodeagent.Agent) -> None:
        self.node = node
        self.api = api
        self.agent = agent
        self.reports: dict[str, Any] = {}

    def create(self, name: str, provider: str, cores: int, ratio: int, *command: str) -> None:
        """Create a pod with this share that runs Python with these arguments."""
        # The program comes from this machine: an image of Python and koord would be larger than what is measured.
        folders = ["/usr", "/lib", "/lib64", "/etc", str(ROOT), sys.prefix, sys.base_prefix, *site_packages()]
        folders = [one for one in dict.fromkeys(folders) if Path(one).exists()]
        volumes = [{"name": f"v{i}", "hostPath": {"path": one}} for i, one in enumerate(folders)]
        mounts = [{"name": f"v{i}", "mountPath": one, "readOnly": True} for i, one in enumerate(folders)]
        asked = {CORE: str(cores), RATIO: str(ratio)}
        annotation = f"metadata.annotations['{A_DEVICE_ALLOCATED}']"
        pod = nodeagent.pod(name, {"requests": asked, "limits": asked}, labels={L_GPU_ISOLATION_PROVIDER: provider})
        del pod["spec"]["nodeName"]
        pod["spec"].update(restartPolicy="Never", volumes=volumes, schedulerName="koord-scheduler")
        container = pod["spec"]["containers"][0]
        container["command"] = [sys.executable, *command]
        container["volumeMounts"] = mounts
        container["env"] = [
            {"name": "PYTHONPATH", "value": f"{ROOT}/src"},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "KOORD_DEVICE_ALLOCATED", "valueFrom": {"fieldRef": {"fieldPath": annotation}}},
        ]
        self.api.create(PODS, pod)

    def delete(self, name: str) -> None:
        self.api.delete(f"{PODS}/{name}")
        until(lambda: self.api.get(f"{PODS}/{name}") is None, f"{name} is gone")

    def used_bytes(self, name: str) -> int:
        """Return what koordlet counts as used by the containers of a pod; 0 while it does not know."""
        metrics = self.agent.fetch("/metrics")
        found = re.search(
            rf'^koordlet_gpu_share_memory_used_bytes{{[^}}]*pod_name="{name}"[^}}]*}} (\S+)$', metrics, re.M
        )
        return 0 if found is None else int(float(found[1]))

    def measure(self, name: str, provider: str, cores: int, ratio: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run `koord gpu verify` in a pod with this share; return its report and the pod."""
        self.create(name, provider, cores, ratio, "-m", "koord", "gpu", "verify", "-o", "json")
        path = f"{PODS}/{name}"
        try:
            until(lambda: self.api.seen(path)["status"].get("phase") in ("Succeeded", "Failed"), f"{name} ends", 120)
        except AssertionError as late:
            raise AssertionError(
                f"{late}\n{json.dumps(self.api.seen(path), indent=1)}\n{self.agent.log()[-3000:]}"
            ) from None
        found = self.api.seen(path)
        logs = self.node.folder / "podlogs" / f"default_{name}_{found['metadata']['uid']}" / "main" / "0.log"
        lines = [line.split(" ", 3) for line in logs.read_text().splitlines()]
        said = "\n".join(words[3] for words in lines if words[1] == "stdout")
        assert said, f"{logs.read_text()}\n{json.dumps(found, indent=1)}"
        self.delete(name)
        self.reports[name] = json.loads(said)
        return self.reports[name], found


@pytest.fixture(scope="module")
def gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    folder = tmp_path_factory.mktemp("gpu")
    runc = shutil.which("runc")
    assert runc is not None
    nvidia_runtime.install(folder / "runtime", runc, _driver_folders())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}/runtime:{os.environ['PATH']}")
        # koordlet is not in a pod: its folders are the machine's, as containers get them mounted.
        with realnode.running(plane=koord_up_plane, nri_folder=Path("/var/run/nri")) as node:
            api = Api(node.plane)
            extra = ["-var-run-root-dir=/var/run/", "--mps-shared-memory-path=/dev/shm"]
            if HAMI_LIBRARY:
                extra.append(f"-hami-core-library-directory-path={HAMI_LIBRARY}")
            with nodeagent.running(node, folder / "koordlet", *extra, gates=GATES) as agent:
                try:
                    until(lambda: CORE in api.seen(NODE_PATH)["status"]["allocatable"], "the node offers its card", 60)
                    until(lambda: '"connected":true' in agent.fetch("/apis/v1/hooks").replace(" ", ""), "NRI is on", 60)
                    until(lambda: _UP.search(agent.fetch("/metrics")), "the MPS daemon works", 60)
                except AssertionError as late:
                    raise AssertionError(f"{late}\n{agent.log()[-3000:]}") from None
                found = GpuNode(node, api, agent)
                yield found
                if FIGURES:
                    Path(FIGURES).write_text(json.dumps({"benchmark": "gpu-container", **found.reports}, indent=2))
            nodeagent.restore(node, folder / "koordlet")


def _by_resource(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["resource"]: one for one in report["limits"]}


def test_a_container_gets_the_share_that_its_pod_asked_for(gpu_node: GpuNode) -> None:
    gpu_node.api.merge(NODE_PATH, {"metadata": {"labels": {L_GPU_ISOLATION_PROVIDER: "MPS"}}})
    report, pod = gpu_node.measure("mps", "MPS", cores=30, ratio=10)
    allocated = json.loads(pod["metadata"]["annotations"][A_DEVICE_ALLOCATED])["gpu"][0]["resources"]
    assert (allocated[CORE], allocated[RATIO]) == ("30", "10")
    assert (report["verdict"], report["provider"]) == ("holds", "MPS"), report
    limits = _by_resource(report)
    assert limits["cores"]["asked"] == limits["cores"]["granted"] == 30
    assert limits["memory"]["granted"] == pytest.approx(limits["memory"]["asked"], rel=0.001)


@_NEEDS_HAMI
def test_a_container_of_hami_core_gets_no_more_memory_than_it_asked_for(gpu_node: GpuNode) -> None:
    gpu_node.api.merge(NODE_PATH, {"metadata": {"labels": {L_GPU_ISOLATION_PROVIDER: "HAMi-core"}}})
    lock_folder = Path(gpu_env.LOCK_DIR)
    if os.path.isdir("/proc/1/root"):  # elsewhere koordlet cannot tell what the machine lacks
        shutil.rmtree(lock_folder, ignore_errors=True)
        report, _ = gpu_node.measure("unprepared", "HAMi-core", cores=30, ratio=10)
        assert report["verdict"] == "cannot tell", "a machine without the library's folder gives no card, and says so"
        assert f"{lock_folder}: to be mounted, and not on this machine" in gpu_node.agent.log()
    lock_folder.mkdir(exist_ok=True)
    lock_folder.chmod(0o777)  # as the chart's daemon of HAMi-core does
    report, _ = gpu_node.measure("hami", "HAMi-core", cores=30, ratio=10)
    assert report["provider"] == "HAMi-core", report
    limits = _by_resource(report)
    assert limits["memory"]["verdict"] == "holds", report
    assert limits["memory"]["granted"] == pytest.approx(limits["memory"]["asked"], rel=0.001)


@pytest.mark.parametrize("provider", ["MPS", pytest.param("HAMi-core", marks=_NEEDS_HAMI)])
def test_what_a_container_uses_of_its_share_is_told(gpu_node: GpuNode, provider: str) -> None:
    gpu_node.api.merge(NODE_PATH, {"metadata": {"labels": {L_GPU_ISOLATION_PROVIDER: provider}}})
    name = f"holds-{provider.lower()}"
    gpu_node.create(name, provider, 30, 10, "-c", HOLD)
    try:
        until(lambda: gpu_node.used_bytes(name) >= HELD_BYTES, "koordlet counts what the container holds", 90)
    except AssertionError as late:
        raise AssertionError(
            f"{late}\n{gpu_node.agent.fetch('/apis/v1/gpus')}\n{gpu_node.agent.log()[-2000:]}"
        ) from None
    # The context of a process takes about half a GiB of the card.
    assert gpu_node.used_bytes(name) < HELD_BYTES + (1 << 30)
    gpu_node.delete(name)
    until(lambda: not gpu_node.used_bytes(name), "nothing is counted of a pod that is gone", 60)


def test_a_container_that_asks_for_no_card_sees_none(gpu_node: GpuNode) -> None:
    plain = nodeagent.pod("plain", command="ls /dev | grep -c nvidia; true")
    plain["spec"]["restartPolicy"] = "Never"
    gpu_node.api.create(PODS, plain)
    path = f"{PODS}/plain"
    until(lambda: gpu_node.api.seen(path)["status"].get("phase") == "Succeeded", "the pod ends", 60)
    uid = gpu_node.api.seen(path)["metadata"]["uid"]
    logs = gpu_node.node.folder / "podlogs" / f"default_plain_{uid}" / "main" / "0.log"
    assert logs.read_text().split()[-1] == "0"
