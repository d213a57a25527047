"""The part of the tutorial on YARN that needs Hadoop is pasted, block by block, against `koord up`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.koord_up_process import koord_up
from tests.real.kubectl import find
from tests.real.tutorial_page import TUTORIALS, read_page, run_page
from tests.real.yarn.real_yarn import needs_yarn

pytestmark = needs_yarn()
TIMEOUT_S = 300.0


def test_the_page_with_hadoop_does_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    find()
    page = read_page(TUTORIALS / "28-hadoop-yarn.md", tier="yarn")
    assert page.steps
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # as an activated environment
    with koord_up(*shlex.split(page.start)[2:]) as cluster:
        wrong = run_page(page, cluster.kubeconfig, TIMEOUT_S)
    assert not wrong, "\n\n".join(wrong)
