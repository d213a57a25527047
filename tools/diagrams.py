"""Draw the pictures of docs/architecture.md from docs/diagrams/*.toml.

Run as `python -m tools.diagrams`. A picture cannot go stale unseen: every module and function that a description names
is imported, rows and arrows of the packages come from the import rules and the imports themselves, and a test draws
all of it again and compares.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from html import escape
from pathlib import Path
from typing import Any

import grimp
import msgspec

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "diagrams"

# Light by default, dark where the reader's system is. Colours are stated twice: not every renderer knows variables.
STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.page { fill: #ffffff; }
.band { fill: #f4f6f8; stroke: #d8dee4; }
.box { fill: #ffffff; stroke: #57606a; }
.aside { fill: #fff8e6; stroke: #9a6700; }
.program { fill: #e8f1ff; stroke: #0b5cad; }
.title { font-size: 17px; font-weight: 600; }
.name { font-size: 13px; font-weight: 600; }
.code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace; font-size: 11px; fill: #0b5cad; }
.note { font-size: 12px; fill: #57606a; }
.line { fill: none; stroke: #57606a; stroke-width: 1.3; }
.tip { fill: #57606a; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .page { fill: #0d1117; }
  .band { fill: #161b22; stroke: #30363d; }
  .box { fill: #0d1117; stroke: #8b949e; }
  .aside { fill: #2a2210; stroke: #d29922; }
  .program { fill: #10243e; stroke: #58a6ff; }
  .code { fill: #79c0ff; }
  .note { fill: #9ea7b3; }
  .line { stroke: #8b949e; }
  .tip { fill: #8b949e; }
}
""".strip()
NOTE_PX = 6.3  # the width of a character of a note, by which lines are broken
CODE_PX = 6.65
LINE_PX = 16


class DiagramError(Exception):
    """A description names something that does not exist, or does not fit its form."""


class Aside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens beside the journey at one step, such as when it fails."""

    name: str
    code: str
    text: str = ""
    arrow: str = ""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One hop of a journey. `code` is module:attribute; `arrow` labels the way to the next step."""

    name: str
    code: str
    text: str = ""
    arrow: str = ""
    aside: Aside | None = None


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps that run in one program or task."""

    name: str
    steps: list[Step]


class Journey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    parts: list[Part]

    def codes(self) -> Iterable[str]:
        for part in self.parts:
            for step in part.steps:
                yield step.code
                if step.aside is not None:
                    yield step.aside.code


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the picture says of one package. `x` is its middle; its row and arrows are not for us to say."""

    x: int
    text: str


class Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    programs: dict[str, str]
    packages: dict[str, Package]


class Svg:
    """Collects shapes in three layers: bands, arrows, boxes with their text."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._bands: list[str] = []
        self._arrows: list[str] = []
        self._boxes: list[str] = []

    def box(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        (self._bands if kind == "band" else self._boxes).append(shape)

    def text(self, kind: str, x: float, y: float, text: str, anchor: str = "start") -> None:
        at = f'x="{x:g}" y="{y:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self._boxes.append(f'<text class="{kind}" {at}>{escape(text)}</text>')

    def arrow(self, path: str) -> None:
        self._arrows.append(f'<path class="line" marker-end="url(#tip)" d="{path}"/>')

    def render(self, title: str, height: float) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:g}" '
                f'width="{self.width}" height="{height:g}" role="img" aria-label="{escape(title)}">',
                f"<style>\n{STYLE}\n</style>",
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                'orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
                f'<rect class="page" width="{self.width}" height="{height:g}"/>',
                f'<text class="title" x="24" y="32">{escape(title)}</text>',
                *self._bands,
                *self._arrows,
                *self._boxes,
                "</svg>\n",
            ]
        )


def resolve(code: str) -> object:
    """Return what `package.module:Class.method` names. Raise DiagramError where there is no such thing."""
    module, _, attribute = code.partition(":")
    try:
        found: object = importlib.import_module(module)
        return reduce(getattr, attribute.split(".") if attribute else (), found)
    except (ImportError, AttributeError) as error:
        raise DiagramError(f"{code}: {error}") from None


def broken(text: str, width: float) -> list[str]:
    """Return the lines of a note that fit the width."""
    lines: list[str] = []
    for word in text.split():
        if lines and (len(lines[-1]) + 1 + len(word)) * NOTE_PX <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def draw_journey(journey: Journey) -> str:
    """Draw the steps from top to bottom, in bands by program, with what happens beside them on the right."""
    svg, y = Svg(1060), 52.0
    main_x, main_width, aside_x, aside_width = 44.0, 500.0, 690.0, 330.0
    below_arrow: float | None = None  # where the arrow into the next step starts
    label = ""
    for part in journey.parts:
        top = y
        svg.text("note", svg.width - 36, top + 20, part.name, "end")
        y += 34
        for step in part.steps:
            height = _box_height(step, main_width)
            if below_arrow is not None:
                svg.arrow(f"M{main_x + 60:g} {below_arrow:g} V{y - 1:g}")
                if label:
                    svg.text("note", main_x + 72, y - 9, label)
            _draw_box(svg, "box", main_x, y, main_width, step)
            if step.aside is not None:
                aside = step.aside
                svg.arrow(f"M{main_x + main_width:g} {y + 24:g} H{aside_x - 1:g}")
                for number, line in enumerate(broken(aside.arrow, aside_x - main_x - main_width - 16)):
                    svg.text("note", main_x + main_width + 8, y + 18 + (number and 4) + number * LINE_PX, line)
                _draw_box(svg, "aside", aside_x, y, aside_width, aside)
                below = y + max(height, _box_height(aside, aside_width))
            else:
                below = y + height
            below_arrow, label = y + height, step.arrow
            y = below + 32
        y -= 16
        svg.box("band", 24, top, svg.width - 48, y - top)
        y += 18
    return svg.render(journey.title, y + 4)


def _box_height(hop: Step | Aside, width: float) -> float:
    lines = len(_code_lines(hop.code, width)) + len(broken(hop.text, width - 24))
    return 30 + LINE_PX * lines + (4 if hop.text else 0)


def _code_lines(code: str, width: float) -> list[str]:
    """Return the code in one line, or its attribute in a second one where one is too long."""
    code = code.removeprefix("koord.")
    module, _, attribute = code.partition(":")
    return [code] if len(code) * CODE_PX <= width - 24 else [f"{module}:", attribute]


def _draw_box(svg: Svg, kind: str, x: float, y: float, width: float, hop: Step | Aside) -> None:
    svg.box(kind, x, y, width, _box_height(hop, width))
    svg.text("name", x + 12, y + 20, hop.name)
    y += 37
    for line in _code_lines(hop.code, width):
        svg.text("code", x + 12, y, line)
        y += LINE_PX
    for line in broken(hop.text, width - 24):
        svg.text("note", x + 12, y + 3, line)
        y += LINE_PX


def package_imports() -> dict[str, set[str]]:
    """Return which top-level package imports which, without those that it reaches through another one anyway."""
    graph = grimp.build_graph("koord", cache_dir=None)
    tops = {name.split(".")[1] for name in graph.find_children("koord")} - {"__main__"}
    direct = {
        one: {
            other
            for other in tops - {one}
            if graph.direct_import_exists(importer=f"koord.{one}", imported=f"koord.{other}", as_packages=True)
        }
        for one in tops
    }
    return transitive_reduction(direct)


def transitive_reduction(direct: Mapping[str, set[str]]) -> dict[str, set[str]]:
    return {one: {other for other in direct[one] if not _is_reached(direct, one, other)} for one in direct}


def _is_reached(direct: Mapping[str, set[str]], start: str, goal: str) -> bool:
    """Return whether the goal is imported by something that the start imports."""
    seen, waiting = set[str](), [one for one in direct[start] if one != goal]
    while waiting:
        one = waiting.pop()
        if goal in direct[one]:
            return True
        if one not in seen:
            seen.add(one)
            waiting += direct[one]
    return False


def import_layers() -> list[list[str]]:
    """Return the rows of packages, top first, as the import rules state them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["id"] == "layers")
    return [[name.strip(" ()") for name in row.split("|")] for row in layers]


def draw_whole(whole: Whole) -> str:
    """Draw the programs over the packages, one row per layer."""
    imports = package_imports()
    if missing := set(imports) ^ set(whole.packages):
        raise DiagramError(f"whole.toml and src/koord differ in {', '.join(sorted(missing))}")
    svg, width, height, pitch = Svg(1976), 196.0, 62.0, 104.0
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    if set(scripts) != set(whole.programs):
        raise DiagramError("whole.toml does not name the programs of pyproject.toml")
    step = (svg.width - 48) / len(scripts)
    top_y = 56.0
    places: dict[str, tuple[float, float]] = {}
    rows = [[name for name in row if name in imports] for row in import_layers()]
    for number, row in enumerate(one for one in rows if one):
        for name in row:
            places[name] = (whole.packages[name].x, top_y + pitch * (number + 1))
    for number, (program, text) in enumerate(whole.programs.items()):
        x = 24 + step * number
        svg.box("program", x + 6, top_y, step - 12, height)
        svg.text("name", x + step / 2, top_y + 22, program, "middle")
        for line_number, line in enumerate(broken(text, step - 24)):
            svg.text("note", x + step / 2, top_y + 40 + line_number * LINE_PX, line, "middle")
        resolve(scripts[program])
        entry = scripts[program].split(".")[1]
        svg.arrow(f"M{x + step / 2:g} {top_y + height:g} V{places[entry][1] - 1:g}")
    for name, (x, y) in places.items():
        if name == "cli":  # as wide as the programs that start there
            svg.box("box", 30, y, svg.width - 60, height)
        else:
            svg.box("box", x - width / 2, y, width, height)
        svg.text("name", x, y + 20, f"koord.{name}", "middle")
        for number, line in enumerate(broken(whole.packages[name].text, width - 16 if name != "cli" else 900)):
            svg.text("note", x, y + 38 + number * LINE_PX, line, "middle")
        below = sorted(imports[name], key=lambda other: places[other])
        for number, other in enumerate(below):
            to_x, to_y = places[other]
            from_x = to_x if name == "cli" else x + (number - (len(below) - 1) / 2) * 36
            from_y, bend = y + height, (to_y - y - height) * 0.6
            to_x += max(-70.0, min(70.0, (from_x - to_x) / 5))
            svg.arrow(
                f"M{from_x:g} {from_y:g} C{from_x:g} {from_y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y - 1:g}"
            )
    return svg.render(whole.title, max(y for _, y in places.values()) + height + 24)


def load(path: Path) -> Whole | Journey:
    kind: type[Any] = Whole if path.stem == "whole" else Journey
    try:
        found: Whole | Journey = msgspec.toml.decode(path.read_bytes(), type=kind)
    except msgspec.ValidationError as error:
        raise DiagramError(f"{path.name}: {error}") from None
    return found


def draw(found: Whole | Journey) -> str:
    """Draw one picture after checking every name in it."""
    if isinstance(found, Whole):
        return draw_whole(found)
    for code in found.codes():
        resolve(code)
    return draw_journey(found)


def main(paths: Sequence[Path] = ()) -> int:
    for path in paths or sorted(FOLDER.glob("*.toml")):
        try:
            path.with_suffix(".svg").write_text(draw(load(path)))
        except DiagramError as error:
            print(f"diagrams: {path.name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
