"""The recorded renderings of the chart: the default as it is, the others as what differs from it.

`python -m tests.charts.golden_files` records them again; the difference is for people to read before it is committed.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import yaml

from tests.charts.helm import Obj, render, values_file

FOLDER = Path(__file__).parent / "golden"
DEFAULT = "default"
# Name, arguments of `helm template`, release, namespace of the release.
VARIANTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "koordinator-1.8": (values_file("koordinator-1.8"), "koord", "default"),
    "proxy": (("--set", "koordlet.runtimeHooks=proxy"), "koord", "default"),
    "no-hooks": (("--set", "koordlet.runtimeHooks=none"), "koord", "default"),
    "restore": (
        ("--set", "koordlet.restore=true", "--set", "koordlet.extraArgs={--audit-verbose=1}"),
        "koord",
        "default",
    ),
    "own-namespace": (("--set", "installation.namespace="), "night-shift", "platform"),
    "edited": (values_file("edited"), "koord", "default"),
    "yarn": (values_file("yarn"), "koord", "default"),
    "scheduler-alone": (
        tuple(word for name in ("manager", "descheduler", "koordlet") for word in ("--set", f"{name}.enabled=false")),
        "koord",
        "default",
    ),
}


def text_of(objects: list[Obj]) -> str:
    """Return the objects as YAML. CustomResourceDefinitions are compared elsewhere and shown by name."""
    shown = [
        one
        if one["kind"] != "CustomResourceDefinition"
        else {"kind": one["kind"], "metadata": {"name": one["metadata"]["name"]}}
        for one in objects
    ]
    ordered = sorted(
        shown, key=lambda one: (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
    )
    return yaml.dump_all(ordered, Dumper=_Dumper, sort_keys=False, width=160)


class _Dumper(yaml.SafeDumper):
    """_Dumper writes files inside of ConfigMaps line by line, so that a difference of them can be read."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def default_text() -> str:
    return text_of(render())


def difference(name: str, default: str) -> str:
    """Return how a variant differs from the default, as a unified difference."""
    args, release, namespace = VARIANTS[name]
    made = text_of(render(*args, release=release, namespace=namespace))
    lines = difflib.unified_diff(default.splitlines(), made.splitlines(), DEFAULT, name, lineterm="", n=2)
    # Without line numbers: a line that all renderings got must not change every recording.
    return "\n".join("@@" if line.startswith("@@ ") else line for line in lines) + "\n"


def recordings() -> dict[str, str]:
    """Return the text of each recorded file."""
    default = default_text()
    return {f"{DEFAULT}.yaml": default, **{f"{name}.diff": difference(name, default) for name in VARIANTS}}


if __name__ == "__main__":
    for file, text in recordings().items():
        (FOLDER / file).write_text(text)
