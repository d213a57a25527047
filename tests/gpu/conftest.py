"""The driver of tests is built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.fake_driver import build_fake_driver


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_driver(tmp_path_factory.mktemp("cuda"))
