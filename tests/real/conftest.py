"""One real control plane for all tests of a run; where its binaries are missing, the tests say so and are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools import assets, controlplane


@pytest.fixture(scope="session")
def plane() -> Iterator[controlplane.ControlPlane]:
    folder = assets.folder()
    missing = [name for name in ("etcd", "kube-apiserver") if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as running:
        yield running
