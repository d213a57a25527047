"""One real cluster for all tests of an installation, with the image imported; where a part is missing they are
skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from tests.charts.helm import helm_binary
from tests.install.cluster import InstalledCluster
from tests.real import test_image
from tools import realcluster
from tools.oci_image.build import Product, build, cache_folder
from tools.oci_image.declaration import FLAVOURS


@pytest.fixture(scope="session")
def image() -> Product:
    if reason := test_image.missing():
        pytest.skip(reason)
    return build(FLAVOURS["all"], cache_folder())


@pytest.fixture(scope="session")
def cluster(image: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledCluster]:
    if reason := realcluster.missing():
        pytest.skip(reason)
    if not helm_binary().is_file():
        pytest.skip("no helm built: run `python -m tools.assets helm` first")
    folder = tmp_path_factory.mktemp("install")
    with realcluster.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        archive = folder / "image.tar"
        archive.write_bytes(image.image.content)
        node.ctr("images", "import", str(archive))
        archive.unlink()
        yield InstalledCluster(node, tree, folder)
