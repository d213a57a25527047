"""The committed chart is what `make chart` writes, and its values are described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.schema import crd_manifests
from tools.chart.object_path import add, replace, set_flag
from tools.chart.output import CHART, generated_files
from tools.chart.template_text import Block, Insert, Lines, When, document, scalar
from tools.chart.values import IGNORED, read_values
from tools.monitoring import output as monitoring

WRITTEN_BY_HAND = {
    "NOTES.txt",
    "_helpers.tpl",
    "alert-rules.yaml",
    "checks.yaml",
    "crds.yaml",
    "dashboards.yaml",
    "hami-daemon.yaml",
    "monitors.yaml",
    "network-policies.yaml",
    "yarn-copilot.yaml",
}


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return generated_files()


def test_the_committed_files_are_what_is_written(generated: dict[Path, str]) -> None:
    stale = [str(path) for path, text in generated.items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run `make chart`"


def test_no_file_is_left_of_an_earlier_shape(generated: dict[Path, str]) -> None:
    templates = {path.name for path in (CHART / "templates").iterdir()}
    assert templates == WRITTEN_BY_HAND | {path.name for path in generated if path.parent.name == "templates"}
    written = {*generated, *monitoring.generated_files()}
    data = {path for path in written if path.is_relative_to(CHART / "files")}
    assert set((CHART / "files").rglob("*.yaml")) == data


def test_each_definition_has_its_switch() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values["crds"]) - {"managed", "keep"} == {crd["spec"]["names"]["plural"] for crd in crd_manifests()}


def test_the_schema_knows_every_default_and_nothing_else() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(value: Any, known: dict[str, Any], path: str) -> None:
        if known.get("additionalProperties") is False and "properties" in known and isinstance(value, dict):
            assert set(value) <= set(known["properties"]), path
            for key, inner in value.items():
                check(inner, known["properties"][key], f"{path}.{key}")

    assert schema["additionalProperties"] is False
    check(values, schema, "")
    for ignored in IGNORED:
        here = schema
        for part in ignored.path.split("."):
            here = here["properties"][part]
        assert ignored.reason in here["description"]


def test_a_value_without_a_description_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a\.b"):
        read_values("a:\n  # -- one\n  c: 1\n  b: 2\n")


def test_a_description_may_take_several_lines_and_state_a_schema() -> None:
    (value,) = read_values('a:\n  # -- one\n  # two\n  # @schema {"type": "string"}\n  b: ""\n')
    assert (value.path, value.help, value.schema) == (("a", "b"), "one two", {"type": "string"})


class TestTemplateText:
    def test_conditions_stand_around_fields_and_items(self) -> None:
        text = document({"a": When(".x", 1, 2), "b": [When(".y", "z"), {"c": "d", "e": []}]}, ".on")
        assert text.splitlines() == [
            "{{- if .on }}",
            "---",
            "{{- if .x }}",
            "a: 1",
            "{{- else }}",
            "a: 2",
            "{{- end }}",
            "b:",
            "{{- if .y }}",
            "- z",
            "{{- end }}",
            "- c: d",
            "  e: []",
            "{{- end }}",
        ]

    def test_blocks_are_indented_as_their_place_wants(self) -> None:
        text = document({"a": {"b": Insert("toYaml .x"), Insert("more"): None, "f": Block("one\ntwo")}})
        assert text.splitlines()[1:] == [
            "a:",
            "  b:",
            "    {{- toYaml .x | nindent 4 }}",
            "  {{- more | nindent 2 }}",
            "  f: |",
            "    one",
            "    two",
        ]
        assert document({"a": [Lines(("{{- range .x }}", "- {{ . }}", "{{- end }}"))]}).count("\n") == 5

    @pytest.mark.parametrize("value", ["", "yes", "1", "a: b", "*", "'", True, 7, None, "{}"])
    def test_scalars_keep_their_type(self, value: Any) -> None:
        assert yaml.safe_load(f"a: {scalar(value)}")["a"] == value


class TestObjectPath:
    def obj(self) -> dict[str, Any]:
        return {"kind": "Pod", "metadata": {"name": "p"}, "list": [{"a": 1}], "args": ["--v=4", "--x"]}

    def test_a_path_that_is_gone_is_an_error(self) -> None:
        obj = self.obj()
        replace(obj, "list/0/a", 2)
        assert obj["list"] == [{"a": 2}]
        with pytest.raises(KeyError, match="Pod p has no list/0/b"):
            replace(obj, "list/0/b", 2)
        with pytest.raises(KeyError, match="has list/0/a already"):
            add(obj, "list/0/a", 2)

    def test_a_flag_that_is_gone_is_an_error(self) -> None:
        obj = self.obj()
        set_flag(obj, "--v", "5")
        assert obj["args"][0] == "--v=5"
        with pytest.raises(ValueError):
            set_flag(obj, "--y", "1")
