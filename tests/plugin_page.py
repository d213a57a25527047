"""The examples of docs/plugins.md as what an installed package would offer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"


def example_code(name: str) -> str:
    (code,) = re.findall(rf"<!-- example: {name} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)


def example(name: str) -> dict[str, Any]:
    """Run an example of the page; return what it defines."""
    defined: dict[str, Any] = {"__name__": f"example_{name.replace('-', '_')}"}
    exec(compile(example_code(name), f"{PAGE.name}: {name}", "exec"), defined)
    return defined


class Offer(msgspec.Struct, frozen=True):
    """An entry point that loads an object at hand, or fails with its words."""

    name: str
    offered: Any = None
    broken: str = ""

    @property
    def value(self) -> str:
        return f"a_package:{self.name}"

    def load(self) -> Any:
        if self.broken:
            raise ImportError(self.broken)
        return self.offered
