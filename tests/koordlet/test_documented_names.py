"""docs/concepts/node-agent.md names every gate, every metric and no flag that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS
from koord.koordlet import scrape_metrics
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.koordlet.metrics import KoordletMetrics

PAGE = (Path(__file__).parents[2] / "docs/concepts/node-agent.md").read_text()


def spelled_out(text: str) -> str:
    """`a_{b,c}_d` as a_b_d and a_c_d."""
    found = re.search(r"(\w*)\{([\w,]+)\}(\w*)", text)
    if found is None:
        return text
    names = " ".join(f"{found[1]}{part}{found[3]}" for part in found[2].split(","))
    return spelled_out(text[: found.start()] + names + text[found.end() :])


def test_every_gate_of_the_agent_is_named() -> None:
    rows = {name: effect for name, _, effect in re.findall(r"^\| (\w+) \| (on|off) \| (.*) \|$", PAGE, re.MULTILINE)}
    wanted = {
        name: f"{gate.effect}; not built: {gate.why}" if gate.unbuilt else gate.effect
        for name, gate in KOORDLET_GATES.items()
    }
    assert rows == wanted


def test_every_metric_is_named() -> None:
    metrics, words = KoordletMetrics("n"), set(re.findall(r"\w+", spelled_out(PAGE)))
    names = {family.name for registry in (metrics.internal, metrics.external) for family in registry.families()}
    assert len(names) > 10
    source = Path(scrape_metrics.__file__).read_text()
    names |= set(re.findall(r'_gauge\(\s*"(\w+)"', source))
    assert {name.removeprefix("koordlet_") for name in names} - words == set()


def test_flags_that_are_named_exist() -> None:
    named = set(re.findall(r"`--([a-z][a-z-]+)[`=]", PAGE))
    assert len(named) > 15
    assert named - set(KOORDLET_FLAGS.flags) - {"set"} == set()
