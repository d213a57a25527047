"""One real cluster for all tests of an installation, with the image imported; where a part is missing they are
skipped with the reason. KOORD_IMAGE_ARCHIVE names an image that `make image` made of the same sources; without it one
is built.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from tests.charts.helm import helm_binary
from tests.install.cluster import InstalledCluster
from tests.real import test_image
from tools import realcluster
from tools.oci_image.build import build, cache_folder
from tools.oci_image.declaration import FLAVOURS


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("KOORD_IMAGE_ARCHIVE")
    if given:
        return Path(given)
    if reason := test_image.missing():
        pytest.skip(reason)
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    archive.write_bytes(build(FLAVOURS["all"], cache_folder()).image.content)
    return archive


@pytest.fixture(scope="session")
def cluster(image_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledCluster]:
    if reason := realcluster.missing():
        pytest.skip(reason)
    if not helm_binary().is_file():
        pytest.skip("no helm built: run `python -m tools.assets helm` first")
    folder = tmp_path_factory.mktemp("install")
    with realcluster.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        node.ctr("images", "import", str(image_archive))
        yield InstalledCluster(node, tree, folder)
