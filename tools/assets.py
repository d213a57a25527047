"""Build the real control plane (etcd, kube-apiserver, kube-scheduler) from Go modules into a cache outside the repo.

Prints the folder that holds the binaries. `KUBEBUILDER_ASSETS`, when set, is used as it is and nothing is built.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "assets"
# module folder -> packages to build in it
MODULES = {
    "etcd": ("koord.local/assets/etcd",),
    "kubernetes": ("k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-scheduler"),
}
# Without a version stamp kubectl cannot parse what the server says of itself.
STAMP = "k8s.io/component-base/version"
LDFLAGS = f"-s -w -X {STAMP}.gitVersion=v1.35.4 -X {STAMP}.gitMajor=1 -X {STAMP}.gitMinor=35"


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("KOORD_ASSETS") or Path(base) / "koord" / "assets")


def key() -> str:
    """A new folder for each set of versions and packages, so that an old cache is never taken for a new one."""
    seen = hashlib.sha256()
    for module, packages in MODULES.items():
        for name in ("go.mod", "go.sum"):
            seen.update((SOURCES / module / name).read_bytes())
        seen.update(" ".join((*packages, LDFLAGS)).encode())
    return seen.hexdigest()[:16]


def folder() -> Path:
    given = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(given) if given else cache_root() / key()


def build(target: Path) -> None:
    go = shutil.which("go")
    if go is None:
        sys.exit(
            "assets: no Go toolchain found, and the real control plane is built from Go modules.\n"
            "Install Go 1.25 or newer, or point KUBEBUILDER_ASSETS at a folder with etcd and kube-apiserver."
        )
    partial = target.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for module, packages in MODULES.items():
        for package in packages:
            binary = partial / package.rsplit("/", 1)[-1]
            started = time.monotonic()
            print(f"assets: building {binary.name} ...", file=sys.stderr, flush=True)
            subprocess.run(
                [go, "build", "-mod=readonly", "-ldflags", LDFLAGS, "-o", str(binary), package],
                cwd=SOURCES / module,
                env={**os.environ, "CGO_ENABLED": "0"},
                check=True,
            )
            print(f"assets: {binary.name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    partial.rename(target)


def main() -> None:
    target = folder()
    if not target.is_dir():
        if os.environ.get("KUBEBUILDER_ASSETS"):
            sys.exit(f"assets: KUBEBUILDER_ASSETS names {target}, which is not a folder")
        build(target)
    print(target)


if __name__ == "__main__":
    main()
