"""Configuration files have the same outcome here as in kube-scheduler 1.35, whose answers were recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from koord.api.config.field_error import FieldError
from koord.api.config.scheduler.configuration import defaulted, validate
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import (
    configuration_to_dict,
    dump_configuration,
    effective_configuration,
    load_configuration,
)
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.configuration.config_cases import ACCEPTED, REFUSED
from tests.scheduler.configuration.kube_scheduler import SAID

SAID_OF = json.loads(SAID.read_text())


def assembled(text: str) -> CompletedConfig | list[FieldError]:
    config = load_configuration(text)
    return config if isinstance(config, list) else CompletedConfig.complete(config, REGISTRY)


def as_theirs(tree: dict[str, Any], stated: str) -> dict[str, Any]:
    """Remove the two things that differ on purpose: we talk JSON, and Koordinator's write before the binding."""
    if "contentType" not in stated:
        tree["clientConnection"]["contentType"] = "application/vnd.kubernetes.protobuf"
    for profile in tree["profiles"]:
        pre_bind = profile["plugins"]["preBind"]
        rest = [plugin for plugin in pre_bind.get("enabled", ()) if plugin["name"] != "DefaultPreBind"]
        profile["plugins"]["preBind"] = {**pre_bind, "enabled": rest} if rest else {}
    return tree


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_effective_configuration_is_theirs(case: str) -> None:
    config = load_configuration(ACCEPTED[case])
    assert not isinstance(config, list), config
    assert validate(defaulted(config)) == []
    assert as_theirs(configuration_to_dict(defaulted(config)), ACCEPTED[case]) == SAID_OF[case]


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_written_reads_back_to_the_same(case: str) -> None:
    completed_config = assembled(ACCEPTED[case])
    assert isinstance(completed_config, CompletedConfig), completed_config
    text = dump_configuration(completed_config)
    again = assembled(text)
    assert isinstance(again, CompletedConfig), again
    assert effective_configuration(again) == effective_configuration(completed_config) == yaml.safe_load(text)


# Which field is named, and some words that tell what it may hold.
WHERE = {
    "unknown-fields": {"foo": "known are apiVersion, kind, parallelism", "profiles[0].bar": "known are schedulerName"},
    "field-in-another-case": {"Parallelism": "known are"},
    "key-twice": {"parallelism": "set twice, in lines 4 and 5"},
    "key-twice-in-args": {"profiles[0].pluginConfig[0].args.ignoredResources": "set twice"},
    "old-version": {"apiVersion": "must be 'kubescheduler.config.k8s.io/v1'"},
    "another-kind": {"kind": "must be 'KubeSchedulerConfiguration'"},
    "no-kind": {"kind": "must be 'KubeSchedulerConfiguration'"},
    "no-version": {"apiVersion": "must be 'kubescheduler.config.k8s.io/v1'"},
    "empty": {"apiVersion": "must be", "kind": "must be"},
    "a-list": {"": "must be a map"},
    "not-yaml": {"": "is not YAML"},
    "word-for-a-number": {"parallelism": "Expected `int"},
    "number-as-text": {"parallelism": "Expected `int"},
    "half-a-number": {"parallelism": "Expected `int"},
    "number-for-a-list": {"profiles": "Expected `array`"},
    "number-too-large": {"parallelism": "must be from 1 to 2147483647"},
    "no-parallelism": {"parallelism": "must be from 1 to"},
    "two-profiles-of-one-name": {"profiles[1].schedulerName": "duplicate"},
    "second-profile-without-name": {"profiles[1].schedulerName": "is required"},
    "empty-name": {"profiles[0].schedulerName": "is required"},
    "percentages": {
        "percentageOfNodesToScore": "must be from 0 to 100",
        "profiles[0].percentageOfNodesToScore": "must be from 0 to 100",
    },
    "backoff-of-zero": {"podInitialBackoffSeconds": "must be greater than 0"},
    "backoff-that-shrinks": {"podMaxBackoffSeconds": "must be 5 or greater"},
    "lease-shorter-than-renewal": {"leaderElection.leaseDuration": "must be greater than renewDeadline"},
    "duration-without-unit": {"leaderElection.leaseDuration": "unit"},
    "resource-lock": {"leaderElection.resourceLock": "must be 'leases'"},
    "negative-burst": {"clientConnection.burst": "must be 0 or greater"},
    "no-queue-sort": {
        "profiles[0].plugins.queueSort": (
            'only one queue sort plugin required for profile with scheduler name "a", but got 0'
        )
    },
    "no-binder": {"profiles[0].plugins.bind": 'at least one bind plugin is needed for profile with scheduler name "a"'},
    "nothing-at-all": {"profiles[0].plugins.queueSort": "but got 0", "profiles[0].plugins.bind": "at least one"},
    "two-queue-sorts": {"profiles[0].plugins.queueSort.enabled": "one plugin only"},
    "queue-sorts-differ": {"profiles[1].plugins.queueSort": "must be the same for all profiles"},
    "queue-sort-args-differ": {"profiles[1].pluginConfig": 'different queue sort plugin args for profile "b"'},
    "unknown-plugin": {"profiles[0].plugins.filter.enabled[0].name": 'FilterPlugin "Foo" does not exist; known are'},
    "unknown-plugin-everywhere": {
        "profiles[0].plugins.multiPoint.enabled[19].name": 'PreFilterPlugin "Foo" does not exist; known are'
    },
    "plugin-without-name": {"profiles[0].plugins.filter.enabled[0].name": 'FilterPlugin "" does not exist'},
    "plugin-at-a-point-it-lacks": {
        "profiles[0].plugins.preFilter.enabled[0].name": (
            'plugin "NodeName" does not extend PreFilterPlugin plugin; its points are: filter'
        )
    },
    "plugin-twice-at-a-point": {"profiles[0].plugins.filter.enabled[1].name": "enabled twice"},
    "plugin-twice-everywhere": {"profiles[0].plugins.multiPoint.enabled[19].name": "enabled twice"},
    "plugin-of-the-past": {"profiles[0].plugins.filter.enabled[0].name": "Kubernetes removed it"},
    "args-of-the-past": {"profiles[0].pluginConfig[0].name": "Kubernetes removed"},
    "negative-weight": {"profiles[0].plugins.score": "total score of Score plugins could overflow"},
    "weight-too-large": {"profiles[0].plugins.score.enabled[0].weight": "to 2147483647"},
    "args-twice": {"profiles[0].pluginConfig[1]": "is a duplicate"},
    "args-with-unknown-field": {"profiles[0].pluginConfig[0].args.a": "known are"},
    "args-of-wrong-type": {"profiles[0].pluginConfig[0].args.hardPodAffinityWeight": "Expected `int"},
    "args-out-of-range": {"profiles[0].pluginConfig[0].args.hardPodAffinityWeight": "must be from 0 to 100"},
    "args-of-another-kind": {"profiles[0].pluginConfig[0].args.kind": "must be 'InterPodAffinityArgs'"},
    "args-of-no-kind": {"profiles[0].pluginConfig[0].args.kind": "must be 'InterPodAffinityArgs'"},
    "scoring-of-no-kind": {
        "profiles[0].pluginConfig[0].args.scoringStrategy.type": "must be one of 'LeastAllocated', 'MostAllocated'"
    },
    "shape-without-its-gate": {"profiles[0].pluginConfig[0].args.shape": "StorageCapacityScoring"},
    "negative-timeout": {"profiles[0].pluginConfig[0].args.filterTimeout": "must be 0s or longer"},
    "affinity-that-cannot-be-read": {
        "profiles[0].pluginConfig[0].args": 'initializing plugin "NodeAffinity": parsing addedAffinity'
    },
    "two-extenders-that-bind": {"extenders": "only one extender can implement bind"},
    "extender-without-weight": {"extenders[0].weight": "must be greater than 0"},
    "extender-with-unknown-field": {"extenders[0].foo": "known are urlPrefix"},
    "extender-for-cpu": {"extenders[0].managedResources[0].name": "must be an extended resource name"},
    "extender-for-one-thing-twice": {"extenders[0].managedResources[1].name": "once"},
    "extender-that-trusts-all-and-one": {"extenders[0].tlsConfig.insecure": "must be false"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_they_refuse_is_refused_by_name(case: str) -> None:
    assert isinstance(SAID_OF[case], str), "kube-scheduler takes it"
    errors = assembled(REFUSED[case])
    assert isinstance(errors, list), "it was taken"
    said = {error.field: error.rule for error in errors}
    assert list(said) == list(WHERE[case])
    for field, words in WHERE[case].items():
        assert words in said[field]
