"""Tests of the chart need Helm; where it is not built they say so and are skipped."""

from __future__ import annotations

import pytest

from tests.charts.helm import helm_binary


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    if not helm_binary().is_file():
        pytest.skip("no helm built: run `python -m tools.assets helm` first")
