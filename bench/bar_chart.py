"""Bar charts as SVG, one panel for each measure with its own axis and unit, readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

import msgspec

WIDTH, COLUMNS = 960, 2
MARGIN, GAP = 24, 32
BAR, SPACE = 22, 8  # heights
LABEL = 92  # left of the bars
VALUE = 74  # right of the longest bar
# Colours that people tell apart who see no difference between red and green.
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .panel { font-weight: 600 }
  .note, .tick { fill: #59636e; font-size: 12px }
  .axis { stroke: #59636e; stroke-width: 1 }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .bar0 { fill: #56789a } .bar1 { fill: #d55e00 } .bar2 { fill: #009e73 }
  .page { fill: #ffffff }
  .value { paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note, .tick { fill: #9198a1 }
    .axis { stroke: #9198a1 }
    .grid { stroke: #3d444d }
    .bar0 { fill: #7fa3c7 } .bar1 { fill: #ff8c42 } .bar2 { fill: #2fc79a }
    .page { fill: #0d1117 }
    .value { stroke: #0d1117 }
  }
"""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One measure: what it is, its unit, and a value for each bar."""

    title: str
    unit: str
    values: tuple[float, ...]
    note: str = ""


def axis_ticks(most: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to `most` or the next one above it, at most `count` steps."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    return [number * step for number in range(math.ceil(most / step - 1e-9) + 1)]


def number(value: float) -> str:
    """Return three digits that matter, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{float(f'{value:.3g}'):g}"


def bar_chart(title: str, notes: Sequence[str], bars: Sequence[str], panels: Sequence[Panel]) -> str:
    """Return the chart. `bars` are the labels of each panel's bars."""
    body = len(bars) * (BAR + SPACE)
    panel_height = 46 + body + 40
    panel_width = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) / COLUMNS
    rows = -(-len(panels) // COLUMNS)
    above = 66 + 18 * len(notes)
    height = above + rows * (panel_height + 12) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="{MARGIN}" y="36">{escape(title)}</text>',
    ]
    lines += [
        f'<text class="note" x="{MARGIN}" y="{58 + 18 * place}">{escape(note)}</text>'
        for place, note in enumerate(notes)
    ]
    for place, panel in enumerate(panels):
        x = MARGIN + place % COLUMNS * (panel_width + GAP)
        y = above + place // COLUMNS * (panel_height + 12)
        lines += _panel(panel, bars, x, y, panel_width)
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel, bars: Sequence[str], x: float, y: float, width: float) -> list[str]:
    ticks = axis_ticks(max(panel.values))
    room = width - LABEL - VALUE
    scale = room / ticks[-1]
    left, top = x + LABEL, y + 46
    bottom = top + len(bars) * (BAR + SPACE)
    lines = [f'<text class="panel" x="{x:.1f}" y="{y + 14:.1f}">{escape(panel.title)}</text>']
    lines.append(f'<text class="note" x="{x:.1f}" y="{y + 32:.1f}">{escape(panel.note)}</text>')
    for tick in ticks:
        at = left + tick * scale
        lines.append(f'<line class="grid" x1="{at:.1f}" y1="{top - 4:.1f}" x2="{at:.1f}" y2="{bottom:.1f}"/>')
        lines.append(
            f'<text class="tick" x="{at:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{number(tick)}</text>'
        )
    for order, (label, value) in enumerate(zip(bars, panel.values, strict=True)):
        at = top + order * (BAR + SPACE)
        middle = at + BAR / 2 + 4.5
        lines.append(f'<text x="{left - 8:.1f}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        long = max(value * scale, 1)
        lines.append(f'<rect class="bar{order}" x="{left:.1f}" y="{at:.1f}" width="{long:.1f}" height="{BAR}" rx="2"/>')
        said = f"{number(value)} {panel.unit}"
        lines.append(f'<text class="value" x="{left + value * scale + 6:.1f}" y="{middle:.1f}">{escape(said)}</text>')
    lines.append(f'<line class="axis" x1="{left:.1f}" y1="{bottom:.1f}" x2="{left + room:.1f}" y2="{bottom:.1f}"/>')
    lines.append(
        f'<text class="tick" x="{left + room:.1f}" y="{bottom + 32:.1f}" text-anchor="end">{escape(panel.unit)}</text>'
    )
    return lines
