"""One real control plane for all tests of a process; where its binaries are missing, tests say so and are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools import assets, controlplane

# Files that take minutes, the longest first: begun last, one of them would run alone at the end.
LONGEST_FILES = (
    *("test_openapi_fuzz.py", "test_tutorials.py", "test_scheduler_scenarios.py", "test_manager_cases.py"),
    *("test_descheduler_cases.py", "test_kill_rounds.py", "test_first_pages.py", "test_scheduler_program.py"),
    *("test_chaos.py", "test_scheduler_preemption.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def plane() -> Iterator[controlplane.ControlPlane]:
    folder = assets.folder()
    missing = [name for name in ("etcd", "kube-apiserver") if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as running:
        yield running
