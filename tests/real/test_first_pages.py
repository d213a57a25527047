"""What a newcomer pastes first, the commands of README, runs against `koord up` with a real kubectl."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.document_blocks import ROOT
from tests.koord_up_process import koord_up
from tests.real.kubectl import find
from tests.real.tutorial_page import read_page, run_page

pytestmark = pytest.mark.real

PAGES = (ROOT / "README.md",)
TIMEOUT_S = 240


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_does_what_it_says(path: Path) -> None:
    find()
    page = read_page(path)
    assert page.start.startswith("make up")  # whose cluster is this one, on any free port
    with koord_up("--nodes", "3") as cluster:
        wrong = run_page(page, cluster.kubeconfig, TIMEOUT_S)
    assert not wrong, "\n\n".join(wrong)
