"""Build the real parts that tests run against, into a cache outside the repo. From Go modules: a control plane (etcd,
kube-apiserver, kube-scheduler), with `node` what a node needs (kubelet, containerd, network plugins), with
`containerd17` an older containerd and with `crio` CRI-O for such a node (which needs gcc), with `cluster` what a
cluster needs that runs workloads (kube-controller-manager), with `helm` the program that renders and installs the
chart, with `promtool` the one that checks and tests rules of Prometheus, or with `e2e` Kubernetes' end-to-end suite.
From Debian's packages: with `prometheus` Prometheus, with `kernel` a guest's kernel, built from its source. From
Maven's artifacts: with `yarn` Hadoop's ResourceManager and NodeManager. From npm: with `axe` the engine that checks
the dashboard's accessibility.

Prints the folder that holds the binaries. `KUBEBUILDER_ASSETS`, when set, is used for the control plane as it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tools import axe_core

SOURCES = Path(__file__).resolve().parent.parent / "assets"
# module folder -> packages to build in it
MODULES = {
    "etcd": ("koord.local/assets/etcd",),
    "kubernetes": ("k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-scheduler"),
}
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"
NODE_MODULES = {
    "kubernetes": ("k8s.io/kubernetes/cmd/kubelet",),
    "containerd": (f"{_CONTAINERD}/containerd", f"{_CONTAINERD}/containerd-shim-runc-v2", f"{_CONTAINERD}/ctr"),
    "cni": (f"{_CNI}/main/bridge", f"{_CNI}/main/loopback", f"{_CNI}/ipam/host-local"),
}
CLUSTER_MODULES: dict[str, tuple[str, ...]] = {"kubernetes": ("k8s.io/kubernetes/cmd/kube-controller-manager",)}
_CONTAINERD_17 = "github.com/containerd/containerd/cmd"
CONTAINERD_17_MODULES = {
    "containerd17": tuple(f"{_CONTAINERD_17}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
}
_CRI_O = "github.com/cri-o/cri-o"
CRIO_MODULES: dict[str, tuple[str, ...]] = {"crio": (f"{_CRI_O}/cmd/crio", f"{_CRI_O}/test/copyimg")}
HELM_MODULES: dict[str, tuple[str, ...]] = {"helm": ("helm.sh/helm/v3/cmd/helm",)}
PROMTOOL_MODULES: dict[str, tuple[str, ...]] = {"promtool": ("github.com/prometheus/prometheus/cmd/promtool",)}
_E2E_SUITE = "k8s.io/kubernetes/test/e2e"
E2E_MODULES: dict[str, tuple[str, ...]] = {"e2e": (_E2E_SUITE, "github.com/onsi/ginkgo/v2/ginkgo")}
# Packages whose tests are compiled in place of a program.
TEST_PACKAGES = frozenset((_E2E_SUITE,))
# Storage drivers that need C libraries, and that no test uses.
# promtool without the clients of clouds that Prometheus finds its targets by: rules and metrics need none.
TAGS = {
    **dict.fromkeys(("containerd", "containerd17"), "no_btrfs,no_devmapper,no_zfs"),
    "crio": "containers_image_ostree_stub,containers_image_openpgp,exclude_graphdriver_btrfs",
    "promtool": "remove_all_sd",
}
# Without a version stamp kubectl cannot parse what the server says of itself.
STAMP = "k8s.io/component-base/version"
KUBERNETES_VERSION = "v1.35.4"
LDFLAGS = f"-s -w -X {STAMP}.gitVersion={KUBERNETES_VERSION} -X {STAMP}.gitMajor=1 -X {STAMP}.gitMinor=35"
# Without one Helm renders for Kubernetes 1.20.
HELM_LDFLAGS = " ".join(
    f"-X helm.sh/helm/v3/pkg/{package}.k8sVersion{part}={value}"
    for package in ("chartutil", "lint/rules")
    for part, value in (("Major", 1), ("Minor", 35))
)

KERNEL_SOURCE = "linux-source-6.12"  # Debian's package
KERNEL_CONFIG = Path(__file__).resolve().parent / "guest_kernel.config"
# Programs that building a kernel needs, and Debian's packages of those and of the library without a program.
KERNEL_TOOLS = ("gcc", "make", "flex", "bison", "bc", "apt-get", "dpkg-deb")
KERNEL_PACKAGES = "gcc make flex bison bc libelf-dev"


YARN_POM = SOURCES / "yarn" / "pom.xml"


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("KOORD_ASSETS") or Path(base) / "koord" / "assets")


def key(modules: Mapping[str, tuple[str, ...]] = MODULES) -> str:
    """A new folder for each set of versions and packages, so that an old cache is never taken for a new one."""
    seen = hashlib.sha256()
    for module, packages in modules.items():
        for name in ("go.mod", "go.sum"):
            seen.update((SOURCES / module / name).read_bytes())
        seen.update(" ".join((*packages, ldflags(module))).encode())
    return seen.hexdigest()[:16]


def ldflags(module: str) -> str:
    return f"{LDFLAGS} {HELM_LDFLAGS}" if module in HELM_MODULES else LDFLAGS


def folder() -> Path:
    given = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(given) if given else cache_root() / key()


def node_folder() -> Path:
    return cache_root() / f"node-{key(NODE_MODULES)}"


def cluster_folder() -> Path:
    return cache_root() / f"cluster-{key(CLUSTER_MODULES)}"


def containerd_17_folder() -> Path:
    return cache_root() / f"containerd17-{key(CONTAINERD_17_MODULES)}"


def crio_folder() -> Path:
    return cache_root() / f"crio-{key(CRIO_MODULES)}"


def helm_folder() -> Path:
    return cache_root() / f"helm-{key(HELM_MODULES)}"


def promtool_folder() -> Path:
    return cache_root() / f"promtool-{key(PROMTOOL_MODULES)}"


def e2e_folder() -> Path:
    return cache_root() / f"e2e-{key(E2E_MODULES)}"


def build(target: Path, modules: Mapping[str, tuple[str, ...]] = MODULES) -> None:
    go = shutil.which("go")
    if go is None:
        sys.exit(
            "assets: no Go toolchain found, and real parts are built from Go modules.\n"
            "Install Go 1.26 or newer, or point KUBEBUILDER_ASSETS at a folder with etcd and kube-apiserver."
        )
    partial = target.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for module, packages in modules.items():
        for package in packages:
            compiles_tests = package in TEST_PACKAGES
            binary = partial / (package.rsplit("/", 1)[-1] + (".test" if compiles_tests else ""))
            started = time.monotonic()
            print(f"assets: building {binary.name} ...", file=sys.stderr, flush=True)
            subprocess.run(
                [
                    *(go, *(("test", "-c", "-vet=off") if compiles_tests else ("build",)), "-mod=readonly"),
                    *("-tags", TAGS.get(module, ""), "-ldflags", ldflags(module)),
                    *("-o", str(binary), package),
                ],
                cwd=SOURCES / module,
                # CRI-O enters namespaces before Go's runtime starts, in C.
                env={**os.environ, "CGO_ENABLED": str(int(module in CRIO_MODULES))},
                check=True,
            )
            print(f"assets: {binary.name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if "crio" in modules:
        _build_pinns(go, partial / "pinns")
    partial.rename(target)


def _build_pinns(go: str, binary: Path) -> None:
    """Build CRI-O's program that makes namespaces, which is C and comes in the same module."""
    found = subprocess.run(
        [go, "list", "-m", "-f", "{{.Dir}}", _CRI_O], cwd=SOURCES / "crio", check=True, capture_output=True, text=True
    )
    sources = sorted(Path(found.stdout.strip()).glob("pinns/src/*.c"))
    subprocess.run(["gcc", "-std=c99", "-Os", "-static", "-o", str(binary), *map(str, sources)], check=True)


def kernel_folder() -> Path:
    """Return the folder of the kernel with this configuration: a new one when the configuration changes."""
    seen = hashlib.sha256(KERNEL_SOURCE.encode() + KERNEL_CONFIG.read_bytes())
    return cache_root() / f"kernel-{seen.hexdigest()[:16]}"


def build_kernel(target: Path) -> None:
    """Build a kernel of Debian's source with the options that cgroup v2 and core scheduling need.

    Debian's own kernels have no core scheduling. It takes a quarter of an hour on two processors.
    """
    missing = [name for name in KERNEL_TOOLS if shutil.which(name) is None]
    if missing:
        sys.exit(f"assets: a kernel needs {', '.join(missing)}; Debian: apt-get install {KERNEL_PACKAGES}")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        print("assets: building a kernel ...", file=sys.stderr, flush=True)
        subprocess.run(["apt-get", "download", "-q", KERNEL_SOURCE], check=True, cwd=work, stdout=sys.stderr)
        package = next(Path(work).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), f"{work}/x"], check=True)
        archive = next(Path(work).glob("x/usr/src/linux-source-*.tar.xz"))
        tree = Path(work) / "linux"
        tree.mkdir()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(tree), "--strip-components=1"], check=True)
        make = ["make", "-s", f"-j{os.cpu_count() or 1}"]
        subprocess.run([*make, "tinyconfig"], check=True, cwd=tree, stdout=sys.stderr)
        merge = ["scripts/kconfig/merge_config.sh", "-m", ".config", str(KERNEL_CONFIG)]
        subprocess.run(merge, check=True, cwd=tree, stdout=subprocess.DEVNULL)
        subprocess.run([*make, "olddefconfig"], check=True, cwd=tree, stdout=sys.stderr)
        _check_kernel_options((tree / ".config").read_text())
        subprocess.run([*make, "bzImage"], check=True, cwd=tree, stdout=sys.stderr)
        shutil.copy(tree / "arch/x86/boot/bzImage", partial / "vmlinuz")
        shutil.copy(tree / ".config", partial / "config")
    print(f"assets: a kernel in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    partial.rename(target)


def prometheus_folder() -> Path:
    return cache_root() / "prometheus-debian"


def fetch_prometheus(target: Path) -> None:
    """Take Prometheus out of Debian's package, which is not installed: it would start a service."""
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        sys.exit(f"assets: Prometheus comes from Debian's package, and there is no {', '.join(missing)} here")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        # Root's apt would leave its rights for the download and then could not write into a folder of root's.
        download = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
        subprocess.run(download, check=True, cwd=work, stdout=sys.stderr)
        subprocess.run(["dpkg-deb", "-x", str(next(Path(work).glob("*.deb"))), f"{work}/x"], check=True)
        shutil.copy(f"{work}/x/usr/bin/prometheus", partial / "prometheus")
    partial.rename(target)


def yarn_folder() -> Path:
    """Return the folder of Hadoop's jars: a new one when their versions change."""
    return cache_root() / f"yarn-{hashlib.sha256(YARN_POM.read_bytes()).hexdigest()[:16]}"


def build_yarn(target: Path) -> None:
    """Copy the jars of YARN's daemons and of all that they need from Maven Central: 155 files, 89 MB."""
    missing = [name for name in ("mvn", "java") if shutil.which(name) is None]
    if missing:
        sys.exit(f"assets: YARN needs {', '.join(missing)}; Debian: apt-get install maven openjdk-17-jre-headless")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    started = time.monotonic()
    print("assets: copying Hadoop's jars ...", file=sys.stderr, flush=True)
    copy = ("dependency:copy-dependencies", f"-DoutputDirectory={partial}", "-DincludeScope=runtime")
    subprocess.run(["mvn", "-q", "-B", "-f", str(YARN_POM), *copy], check=True, stdout=sys.stderr)
    print(f"assets: Hadoop's jars in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    partial.rename(target)


def _check_kernel_options(config: str) -> None:
    """End when an option is not as wanted: one that depends on others is dropped without a word."""
    kept = set(config.splitlines())
    wanted = [line for line in KERNEL_CONFIG.read_text().splitlines() if line.startswith("CONFIG_")]
    lost = [line for line in wanted if not line.endswith("=n") and line not in kept]
    on = [line for line in wanted if line.endswith("=n") and line.replace("=n", "=y") in kept]
    if lost or on:
        sys.exit(f"assets: the kernel's configuration does not take {', '.join(lost + on)}")


def main() -> None:
    if sys.argv[1:] == ["kernel"]:
        target = kernel_folder()
        if not target.is_dir():
            build_kernel(target)
        print(target)
        return
    if sys.argv[1:] == ["prometheus"]:
        target = prometheus_folder()
        if not target.is_dir():
            fetch_prometheus(target)
        print(target)
        return
    if sys.argv[1:] == ["yarn"]:
        target = yarn_folder()
        if not target.is_dir():
            build_yarn(target)
        print(target)
        return
    if sys.argv[1:] == ["axe"]:
        print(axe_core.fetch(cache_root()).parent)
        return
    if sys.argv[1:] == ["node"]:
        target, modules = node_folder(), NODE_MODULES
    elif sys.argv[1:] == ["cluster"]:
        target, modules = cluster_folder(), CLUSTER_MODULES
    elif sys.argv[1:] == ["containerd17"]:
        target, modules = containerd_17_folder(), CONTAINERD_17_MODULES
    elif sys.argv[1:] == ["crio"]:
        target, modules = crio_folder(), CRIO_MODULES
    elif sys.argv[1:] == ["helm"]:
        target, modules = helm_folder(), HELM_MODULES
    elif sys.argv[1:] == ["promtool"]:
        target, modules = promtool_folder(), PROMTOOL_MODULES
    elif sys.argv[1:] == ["e2e"]:
        target, modules = e2e_folder(), E2E_MODULES
    elif not sys.argv[1:]:
        target, modules = folder(), MODULES
    else:
        names = "node containerd17 crio cluster helm promtool prometheus e2e kernel yarn axe"
        sys.exit(f"assets: say one of {names}, or nothing, not {' '.join(sys.argv[1:])}")
    if not target.is_dir():
        if modules is MODULES and os.environ.get("KUBEBUILDER_ASSETS"):
            sys.exit(f"assets: KUBEBUILDER_ASSETS names {target}, which is not a folder")
        build(target, modules)
    print(target)


if __name__ == "__main__":
    main()
