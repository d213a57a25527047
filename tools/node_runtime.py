"""The container runtimes of a real node: which programs they need, and their configuration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from koord.host.cgroup.layout import SYSTEMD
from tools import assets, image
from tools.controlplane import patience_s

CONTAINERD_2, CONTAINERD_17, CRI_O = "containerd 2.2", "containerd 1.7", "cri-o"
CONMON = Path("/usr/bin/conmon")
_CGROUPS = Path("/sys/fs/cgroup")


def program(runtime: str) -> str:
    """Return the name of the runtime's daemon."""
    return "crio" if runtime == CRI_O else "containerd"


def folder_of(runtime: str) -> Path:
    """Return the folder of the runtime's programs."""
    folders = {CONTAINERD_17: assets.containerd_17_folder, CRI_O: assets.crio_folder}
    return folders.get(runtime, assets.node_folder)()


def missing(runtime: str) -> str:
    """Why the runtime cannot run here; empty when it can."""
    part = {CONTAINERD_17: "containerd17", CRI_O: "crio"}.get(runtime, "node")
    if not (folder_of(runtime) / program(runtime)).is_file():
        return f"no {runtime} built: run `python -m tools.assets {part}` first"
    if runtime == CRI_O and not CONMON.is_file():
        return f"no {CONMON} on this machine: install Debian's package conmon"
    return ""


def command(runtime: str, folder: Path) -> list[str]:
    """Return the command that starts the daemon with the configuration that `configure` wrote."""
    binary = str(folder_of(runtime) / program(runtime))
    if runtime == CRI_O:
        return [binary, "--config", str(folder / "crio.conf"), "--config-dir", str(folder / "crio.conf.d")]
    return [binary, "-c", str(folder / "containerd.toml")]


def configure(runtime: str, folder: Path, nri_socket: Path, driver: str) -> None:
    if runtime == CRI_O:
        (folder / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        (folder / "crio.conf").write_text(_crio(folder, nri_socket, driver, _runc_for_crio(folder)))
    else:
        text = _containerd_17 if runtime == CONTAINERD_17 else _containerd
        (folder / "containerd.toml").write_text(text(folder, nri_socket, driver))


def copy_image(folder: Path, archive: Path) -> None:
    """Give CRI-O the image of `tools.image` under all its names: it has no client that does. Its daemon may run."""
    name, other = image.NAMES
    words = [str(assets.crio_folder() / "copyimg"), "--root", f"{folder}/crio/root"]
    words += ["--runroot", f"{folder}/crio/runroot", "--storage-driver", "overlay"]
    words += ["--signature-policy", f"{folder}/policy.json", "--image-name", name, "--add-name", other]
    words += ["--import-from", f"oci-archive:{archive}:{name.rpartition(':')[2]}"]
    subprocess.run(words, check=True, capture_output=True, timeout=patience_s(60))


def _containerd(folder: Path, nri_socket: Path, driver: str) -> str:
    runc = shutil.which("runc")
    return f"""\
version = 3
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/run/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  use_local_image_pull = true
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "registry.local/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = {str(driver == SYSTEMD).lower()}
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{assets.node_folder()}"]
    conf_dir = "{folder}/cni"
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = "{nri_socket}"
  plugin_path = "{folder}/nri/plugins"
  plugin_config_path = "{folder}/nri/conf.d"
"""


def _containerd_17(folder: Path, nri_socket: Path, driver: str) -> str:
    return f"""\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.local/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{shutil.which("runc")}"
        SystemdCgroup = {str(driver == SYSTEMD).lower()}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{assets.node_folder()}"
    conf_dir = "{folder}/cni"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{nri_socket}"
  plugin_path = "{folder}/nri/plugins"
  plugin_config_path = "{folder}/nri/conf.d"
"""


# Takes the limits of huge pages out of a container's specification before runc sees it.
_WITHOUT_HUGE_PAGES = """\
#!{python} -IS
import json, os, sys
words = sys.argv[1:]
if "create" in words and "--bundle" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    if spec.get("linux", {{}}).get("resources", {{}}).pop("hugepageLimits", None):
        with open(path, "w") as file:
            json.dump(spec, file)
os.execv({runc!r}, [{runc!r}, *words])
"""


def _runc_for_crio(folder: Path) -> str:
    """Return runc, on nodes of cgroup v1 without a tree of hugetlb behind a script that drops limits of huge pages.

    The kubelet sends limits of 0 for every size. CRI-O passes them on where /proc/cgroups names the controller, though
    it is not mounted there, and runc then refuses the container; containerd leaves them out.
    """
    runc = str(shutil.which("runc"))
    if (_CGROUPS / "cgroup.controllers").is_file() or (_CGROUPS / "hugetlb").is_dir():
        return runc
    script = folder / "runc-without-huge-pages"
    script.write_text(_WITHOUT_HUGE_PAGES.format(python=sys.executable, runc=runc))
    script.chmod(0o755)
    return str(script)


def _crio(folder: Path, nri_socket: Path, driver: str, runc: str) -> str:
    binaries, own = assets.crio_folder(), folder / "crio"
    return f"""\
[crio]
root = "{own}/root"
runroot = "{own}/runroot"
storage_driver = "overlay"
log_dir = "{own}/log"
version_file = "{own}/version"
clean_shutdown_file = "{own}/clean.shutdown"
[crio.api]
listen = "{folder}/run/crio.sock"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "{driver}"
conmon_cgroup = "pod"
pinns_path = "{binaries}/pinns"
container_exits_dir = "{own}/exits"
container_attach_socket_dir = "{own}/attach"
namespaces_dir = "{own}/namespaces"
apparmor_profile = "unconfined"
irqbalance_config_restore_file = "disable"
enable_criu_support = false
hooks_dir = []
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{own}/runc"
monitor_path = "{CONMON}"
monitor_cgroup = "pod"
monitor_env = ["PATH={os.environ.get("PATH", "")}"]
[crio.image]
pause_image = "registry.local/pause:1"
signature_policy = "{folder}/policy.json"
signature_policy_dir = "{own}/policies"
[crio.network]
network_dir = "{folder}/cni"
plugin_dirs = ["{assets.node_folder()}"]
[crio.nri]
enable_nri = true
nri_listen = "{nri_socket}"
nri_plugin_dir = "{folder}/nri/plugins"
nri_plugin_config_dir = "{folder}/nri/conf.d"
"""
