"""The settings of interference detection: defaults, limits with one clear error, and the way into a NodeSLO."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.config.field_error import FieldError
from koord.api.config.slo.slo_documents import (
    DEFAULT_INTERFERENCE,
    InterferenceStrategy,
    interference_of_extensions,
    with_interference,
)
from koord.api.koordinator.slo import Extensions
from koord.manager.configuration.documents import ParsedDocument, RejectedDocument, parse_interference
from koord.manager.configuration.inspection import inspect_slo_config
from koord.manager.webhooks.configmap import find_unusable_values


def stated(**values: Any) -> Extensions:
    return Extensions(object={"interference": values})


@pytest.mark.parametrize("extensions", [None, Extensions(), Extensions(object={"other": 1})])
def test_a_silent_node_slo_reports(extensions: Extensions | None) -> None:
    found = interference_of_extensions(extensions)
    assert found == DEFAULT_INTERFERENCE
    assert (found.enable, found.action, found.correlation_threshold) == (True, "report", 0.35)


def test_what_is_stated_is_laid_over_the_defaults() -> None:
    found = interference_of_extensions(stated(action="throttle", sampleSeconds=5))
    assert isinstance(found, InterferenceStrategy)
    assert (found.action, found.sample_seconds, found.throttle_percent) == ("throttle", 5, 10)


WRONG = [
    pytest.param({"action": "kill"}, "action", "must be one of 'report', 'throttle', 'evict'", id="action"),
    pytest.param({"sampleSeconds": 0}, "sampleSeconds", "must be from 1 to 60", id="no-time"),
    pytest.param({"outliers": 6}, "outliers", "must be from 1 to 5", id="outliers"),
    pytest.param({"correlationThreshold": 2}, "correlationThreshold", "must be from 0.05 to 1", id="correlation"),
    pytest.param({"throttlePercent": 100}, "throttlePercent", "must be from 1 to 99", id="no-throttle"),
]


@pytest.mark.parametrize(("values", "field", "rule"), WRONG)
def test_a_value_that_no_node_can_use_is_one_clear_error(values: dict[str, Any], field: str, rule: str) -> None:
    found = interference_of_extensions(stated(**values))
    assert isinstance(found, FieldError)
    assert (found.field, found.rule) == (f"extensions.interference.{field}", rule)
    text = json.dumps({"clusterStrategy": values})
    rejected = parse_interference(text)
    assert isinstance(rejected, RejectedDocument)
    assert (rejected.error.field, rejected.error.rule) == (f"clusterStrategy.{field}", rule)
    (finding,) = inspect_slo_config({"interference-config": text})
    assert (finding.severity, finding.key, finding.error) == ("error", "interference-config", rejected.error)


def test_a_text_where_a_number_belongs_is_an_error() -> None:
    found = interference_of_extensions(stated(sampleSeconds="often"))
    assert isinstance(found, FieldError)
    assert found.field == "extensions.interference"


def test_the_webhook_names_the_value() -> None:
    from koord.api.config.slo.slo_documents import INTERFERENCE, InterferenceConfig

    config = InterferenceConfig(cluster_strategy=InterferenceStrategy(action="kill"))
    assert find_unusable_values(INTERFERENCE, config) == {
        "InterferenceCfg.ClusterStrategy.Action": "Action must be one of 'report', 'throttle', 'evict'"
    }


def test_node_entries_are_laid_over_the_cluster() -> None:
    document = {
        "clusterStrategy": {"action": "throttle", "throttleSeconds": 60},
        "nodeStrategies": [{"name": "careful", "nodeSelector": {"matchLabels": {"a": "b"}}, "action": "report"}],
    }
    parsed = parse_interference(json.dumps(document))
    assert isinstance(parsed, ParsedDocument)
    assert parsed.remarks == ()
    (layer,) = parsed.value.nodes
    assert (layer.strategy.action, layer.strategy.throttle_seconds) == ("report", 60)


def test_extensions_of_others_stay() -> None:
    both = with_interference(Extensions(object={"other": {"a": 1}}), InterferenceStrategy(action="evict"))
    assert both == Extensions(object={"other": {"a": 1}, "interference": {"action": "evict"}})
    assert with_interference(both, InterferenceStrategy()) == Extensions(object={"other": {"a": 1}})
    assert with_interference(None, InterferenceStrategy()) is None
    untouched = Extensions(object={"other": 1})
    assert with_interference(untouched, InterferenceStrategy()) is untouched
