"""Charts of benchmarks: axes with round numbers, and every bar with its label, value and unit inside the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bar_chart import WIDTH, Panel, axis_ticks, bar_chart, number

SVG = "{http://www.w3.org/2000/svg}"
BARS = ("alone", "unmanaged", "managed")
amounts = st.floats(0, 1e9).filter(lambda value: value == 0 or value > 1e-6)


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        pytest.param(0, [0, 1], id="nothing"),
        pytest.param(100, [0, 20, 40, 60, 80, 100], id="round"),
        pytest.param(18.2, [0, 5, 10, 15, 20], id="above-the-last"),
        pytest.param(0.808, [0, 0.2, 0.4, 0.6, 0.8, 1.0], id="small"),
    ],
)
def test_ticks_of_an_axis(most: float, ticks: list[float]) -> None:
    assert axis_ticks(most) == pytest.approx(ticks)


@given(most=amounts)
def test_an_axis_begins_at_0_reaches_the_longest_bar_and_has_few_ticks(most: float) -> None:
    ticks = axis_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-6)
    assert 2 <= len(ticks) <= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(0, "0", id="zero"),
        pytest.param(0.13377, "0.134", id="small"),
        pytest.param(19.96, "20", id="middle"),
        pytest.param(1234567.8, "1234568", id="no-exponent"),
    ],
)
def test_numbers_have_three_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


@given(values=st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=6))
def test_every_bar_is_in_the_picture_with_its_value(values: list[tuple[float, float, float]]) -> None:
    panels = [Panel(title=f"<{place}> & more", unit="ms", values=one) for place, one in enumerate(values)]
    picture = ET.fromstring(bar_chart("title", ["note", "another"], BARS, panels))
    height = float(picture.attrib["height"])
    bars = [one for one in picture.iter(f"{SVG}rect") if one.attrib["class"].startswith("bar")]
    assert len(bars) == 3 * len(panels)
    for one in bars:
        assert float(one.attrib["x"]) >= 0
        assert float(one.attrib["x"]) + float(one.attrib["width"]) <= WIDTH
        assert float(one.attrib["y"]) + float(one.attrib["height"]) <= height
    texts = [one.text for one in picture.iter(f"{SVG}text")]
    for panel in panels:
        assert panel.title in texts
        assert {f"{number(value)} ms" for value in panel.values} <= set(texts)


def test_the_picture_has_colours_for_light_and_dark_pages() -> None:
    text = bar_chart("title", ["note", "another"], BARS, [Panel(title="t", unit="ms", values=(1, 2, 3))])
    assert "prefers-color-scheme: dark" in text
