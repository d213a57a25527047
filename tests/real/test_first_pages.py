"""What README, the tour and the other pages of docs tell a reader to paste runs against `koord up` with a real kubectl:
the commands end as the page says and print what it shows.

Commands of all pages for the same cluster share one; clusters run beside each other, as most of a page is waiting.
docs/tutorials has tests of its own, and tests/architecture knows that no block is left out.
"""

from __future__ import annotations

import itertools
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.document_blocks import ROOT
from tests.koord_up_process import koord_up
from tests.real.document_page import DocumentPage, Section, document_paths, read_document
from tests.real.kubectl import find, kubectl
from tests.real.tutorial_page import run_steps

pytestmark = pytest.mark.real

PAGES = [page for page in map(read_document, document_paths()) if page.sections]
CLUSTERS_AT_A_TIME = 6
TIMEOUT_S = 240
# What pages make; what koord's programs make of it follows its owner.
KINDS = (
    "deployments,pods,horizontalpodautoscalers,statefulsets,reservations,podgroups,podmigrationjobs,"
    "poddisruptionbudgets"
)
PartOfAPage = tuple[DocumentPage, int]


def section_of(part: PartOfAPage) -> Section:
    page, number = part
    return page.sections[number]


def folder_of_a_reader(folder: Path, section: Section) -> None:
    """Make a folder a clone that the reader may write into, with the files that the page shows."""
    for path in ROOT.iterdir():
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    for name, text in section.files:
        (folder / name).write_text(text)


def run_section(section: Section, kubeconfig: Path, folder: Path) -> list[str]:
    wrong = run_steps(section.steps, kubeconfig, TIMEOUT_S, cwd=folder)
    gone = kubectl(kubeconfig, "delete", KINDS, "--all", "--now")
    return [*wrong, f"what it made could not be deleted: {gone.err}"] if gone.code else wrong


def run_parts(parts: Sequence[PartOfAPage], done: Mapping[PartOfAPage, Future[list[str]]]) -> None:
    """Run the parts of pages that are for one cluster, and tell of each what was wrong."""
    first = section_of(parts[0])
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder_of_a_reader(folder, first)
            with koord_up(*shlex.split(first.cluster)[2:], cwd=folder) as cluster:
                for part in parts:
                    folder_of_a_reader(folder, section_of(part))
                    done[part].set_result(run_section(section_of(part), cluster.kubeconfig, folder))
    except Exception as error:  # noqa: BLE001 - each test that waits for a part gets it
        for part in parts:
            if not done[part].done():
                done[part].set_exception(error)


def start_only(section: Section, start: str) -> list[str]:
    """Start a cluster that the page gives no commands for."""
    with tempfile.TemporaryDirectory() as name:
        folder_of_a_reader(Path(name), section)
        with koord_up(*shlex.split(start)[2:], cwd=Path(name)):
            return []


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Sequence[Future[list[str]]]]]:
    """Start the pages of all tests that will run; the outcomes of each come when they are done."""
    find()
    chosen = {item.name for item in request.session.items if item.path == Path(__file__)}
    pages = [page for page in PAGES if any(f"[{page.name}]" in name for name in chosen)]
    parts = [(page, number) for page in pages for number, one in enumerate(page.sections) if one.steps]
    parts.sort(key=lambda part: section_of(part).cluster)
    outcome: dict[PartOfAPage, Future[list[str]]] = {part: Future() for part in parts}
    with ThreadPoolExecutor(CLUSTERS_AT_A_TIME) as threads:
        for _, same in itertools.groupby(parts, lambda part: section_of(part).cluster):
            threads.submit(run_parts, [*same], outcome)
        used = {section_of(part).cluster for part in parts}
        alone = {
            page.name: [
                threads.submit(start_only, one, start)
                for one in page.sections
                for start in one.starts
                if start not in used
            ]
            for page in pages
        }
        yield {
            page.name: [*alone[page.name], *(future for (of, _), future in outcome.items() if of is page)]
            for page in pages
        }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: DocumentPage, outcomes: Mapping[str, Sequence[Future[list[str]]]]) -> None:
    wrong = [text for future in outcomes[page.name] for text in future.result(timeout=4 * TIMEOUT_S)]
    assert not wrong, "\n\n".join(wrong)
