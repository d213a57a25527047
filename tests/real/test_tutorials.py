"""Every page of docs/tutorials is pasted, block by block, against `koord up` with a real kubectl: the commands end as
the page says, print what it shows, and leave nothing behind.

Pages that start their cluster with the same command share one, up to some pages. Several clusters run at the same
time, as most of a page is waiting.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.koord_up_process import koord_up
from tests.real.kubectl import find, kubectl
from tests.real.tutorial_page import TutorialPage, read_page, run_page, tutorial_paths

pytestmark = pytest.mark.real

PAGES = [read_page(path) for path in tutorial_paths()]
PAGES_OF_A_CLUSTER = 6
CLUSTERS_AT_A_TIME = 3
PAGE_TIMEOUT_S = 240
# What tutorials make; what koord's programs make of it follows its owner.
KINDS = (
    "namespaces,pods,deployments,jobs,priorityclasses,serviceaccounts,elasticquotas,elasticquotaprofiles,reservations,"
    "podgroups,podmigrationjobs,clustercolocationprofiles,poddisruptionbudgets"
)

REPORTED = "node.koordinator.sh/"  # labels that koord-manager writes, as the model of a node's cards


def cluster_state(kubeconfig: Path) -> dict[str, object]:
    """Return what a page must leave as it was: objects, settings and labels of nodes that no program writes."""
    names = kubectl(kubeconfig, "get", KINDS, "-A", "-o", "name")
    nodes = kubectl(kubeconfig, "get", "nodes", "-o", "json")
    settings = kubectl(kubeconfig, "get", "configmaps", "-n", "koordinator-system", "-o", "json")
    for said in (names, nodes, settings):
        assert said.code == 0, said.err
    labels = {
        one["metadata"]["name"]: [key for key in sorted(one["metadata"]["labels"]) if not key.startswith(REPORTED)]
        for one in json.loads(nodes.out)["items"]
    }
    data = {one["metadata"]["name"]: one["data"] for one in json.loads(settings.out)["items"]}
    return {"objects": sorted(names.out.split()), "configmaps": data, "labels": labels}


def start_of(page: TutorialPage) -> str:
    return page.start


def run_pages(pages: Sequence[TutorialPage], done: Mapping[str, Future[list[str]]]) -> None:
    """Run pages on one cluster, and tell of each what was wrong."""
    try:
        with koord_up(*shlex.split(pages[0].start)[2:]) as cluster:
            for page in pages:
                before = cluster_state(cluster.kubeconfig)
                wrong = run_page(page, cluster.kubeconfig, PAGE_TIMEOUT_S)
                after = cluster_state(cluster.kubeconfig)
                if not wrong and after != before:
                    wrong = [f"it left behind {after}\nwhere there was {before}"]
                done[page.name].set_result(wrong)
    except Exception as error:  # noqa: BLE001 - each test that waits for a page gets it
        for page in pages:
            if not done[page.name].done():
                done[page.name].set_exception(error)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[list[str]]]]:
    """Start the pages of all tests that will run; the outcome of each comes when it is done."""
    find()
    chosen = {item.name for item in request.session.items if item.path == Path(__file__)}
    pages = sorted((page for page in PAGES if any(page.name in name for name in chosen)), key=start_of)
    outcome: dict[str, Future[list[str]]] = {page.name: Future() for page in pages}
    shares = [
        same[first : first + PAGES_OF_A_CLUSTER]
        for same in ([*group] for _, group in itertools.groupby(pages, start_of))
        for first in range(0, len(same), PAGES_OF_A_CLUSTER)
    ]
    with ThreadPoolExecutor(CLUSTERS_AT_A_TIME) as threads:
        for share in shares:
            threads.submit(run_pages, share, outcome)
        yield outcome


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: TutorialPage, outcomes: Mapping[str, Future[list[str]]]) -> None:
    wrong = outcomes[page.name].result(timeout=2 * PAGE_TIMEOUT_S * PAGES_OF_A_CLUSTER)
    assert not wrong, "\n\n".join(wrong)
