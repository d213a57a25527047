"""docs/concepts/node-agent.md names every gate, every metric and no flag that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from koord.api.config.gate_tables import KOORDLET
from koord.cli.koordlet_flags import FLAGS
from koord.koordlet import readings
from koord.koordlet.metrics import Metrics

PAGE = (Path(__file__).parents[2] / "docs/concepts/node-agent.md").read_text()


def spelled_out(text: str) -> str:
    """`a_{b,c}_d` as a_b_d and a_c_d."""
    found = re.search(r"(\w*)\{([\w,]+)\}(\w*)", text)
    if found is None:
        return text
    names = " ".join(f"{found[1]}{part}{found[3]}" for part in found[2].split(","))
    return spelled_out(text[: found.start()] + names + text[found.end() :])


def test_every_gate_of_the_agent_is_named() -> None:
    assert [gate for gate in KOORDLET if not re.search(rf"\b{gate}\b", PAGE)] == []


def test_every_metric_is_named() -> None:
    metrics, words = Metrics("n"), set(re.findall(r"\w+", spelled_out(PAGE)))
    names = {family.name for registry in (metrics.internal, metrics.external) for family in registry.families()}
    assert len(names) > 10
    source = Path(readings.__file__).read_text()
    names |= set(re.findall(r'_gauge\(\s*"(\w+)"', source))
    assert {name.removeprefix("koordlet_") for name in names} - words == set()


def test_flags_that_are_named_exist() -> None:
    named = set(re.findall(r"`--([a-z][a-z-]+)[`=]", PAGE))
    assert len(named) > 15
    assert named - set(FLAGS.flags) - {"set"} == set()
