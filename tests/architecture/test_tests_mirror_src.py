"""Tests lie where the code lies: tests/a/b proves src/koord/a/b."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What proves several packages together, needs a real peer, or proves what is outside of src.
ELSEWHERE = {
    "journeys",
    "real",
    "tools",
    "bench",
    "charts",
    "install",
    "guest",
    "architecture",
    "properties",
    "simulation",
}

HOSTILE = "hostile"  # clients and disks that mean harm meet a whole program


def test_each_test_has_its_package() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests")
        for path in ROOT.glob("tests/**/test_*.py")
        if path.relative_to(ROOT / "tests").parts[0] not in ELSEWHERE and path.parent.name != HOSTILE
    }
    assert sorted(str(folder) for folder in folders if not (ROOT / "src" / "koord" / folder).is_dir()) == []
