"""Every page of docs/tutorials is pasted, block by block, against `koord up` with a real kubectl: the commands end as
the page says, print what it shows, and leave nothing behind.

Pages that start their cluster with the same command share one.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.koord_up_process import KoordUpProcess, koord_up
from tests.real.kubectl import find, kubectl
from tests.real.tutorial_page import TutorialPage, read_page, run_page, tutorial_paths

pytestmark = pytest.mark.real

PAGES = [read_page(path) for path in tutorial_paths()]
PAGE_TIMEOUT_S = 180
# What tutorials make; what koord's programs make of it follows its owner.
KINDS = (
    "namespaces,pods,deployments,jobs,priorityclasses,serviceaccounts,elasticquotas,elasticquotaprofiles,reservations,"
    "podgroups,podmigrationjobs,clustercolocationprofiles,poddisruptionbudgets"
)


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, KoordUpProcess]]:
    """The clusters that run, by the command that started them; at most one at a time, to spare the machine."""
    find()
    with contextlib.ExitStack() as stack:
        running: dict[str, KoordUpProcess] = {}
        yield _Clusters(stack, running)


class _Clusters(dict[str, KoordUpProcess]):
    def __init__(self, stack: contextlib.ExitStack, running: dict[str, KoordUpProcess]) -> None:
        super().__init__(running)
        self._stack = stack

    def __missing__(self, start: str) -> KoordUpProcess:
        self._stack.close()
        self.clear()
        self[start] = started = self._stack.enter_context(koord_up(*shlex.split(start)[2:]))
        return started


def cluster_state(kubeconfig: Path) -> dict[str, object]:
    names = kubectl(kubeconfig, "get", KINDS, "-A", "-o", "name")
    assert names.code == 0, names.err
    settings = kubectl(kubeconfig, "get", "configmaps", "-n", "koordinator-system", "-o", "json")
    data = {one["metadata"]["name"]: one["data"] for one in json.loads(settings.out)["items"]}
    labels = kubectl(
        kubeconfig, "get", "nodes", "--show-labels", "--no-headers", "-o", "custom-columns=L:.metadata.labels"
    )
    return {"objects": sorted(names.out.split()), "configmaps": data, "nodes": sorted(labels.out.splitlines())}


@pytest.mark.parametrize("page", sorted(PAGES, key=lambda page: page.start), ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: TutorialPage, clusters: dict[str, KoordUpProcess]) -> None:
    kubeconfig = clusters[page.start].kubeconfig
    before = cluster_state(kubeconfig)
    wrong = run_page(page, kubeconfig, PAGE_TIMEOUT_S)
    assert not wrong, "\n\n".join(wrong)
    assert cluster_state(kubeconfig) == before
