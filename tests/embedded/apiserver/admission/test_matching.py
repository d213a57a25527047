"""Webhook rules match the requests that they should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.admission.matching import (
    RuleTarget,
    WebhookRule,
    any_labels_match,
    parse_rule,
    parse_selector,
)

POD = RuleTarget("CREATE", "", "v1", "pods")
STATUS = RuleTarget("UPDATE", "", "v1", "pods", "status")
NODE = RuleTarget("CREATE", "", "v1", "nodes", namespaced=False)
DEPLOYMENT = RuleTarget("CREATE", "apps", "v1", "deployments")


@pytest.mark.parametrize(
    ("rule", "target", "answer"),
    [
        pytest.param(WebhookRule(), POD, True, id="anything-is-main-resources"),
        pytest.param(WebhookRule(), STATUS, False, id="a-star-alone-means-no-subresource"),
        pytest.param(WebhookRule(resources=("*/*",)), STATUS, True, id="everything-below-too"),
        pytest.param(WebhookRule(resources=("*/*",)), POD, True, id="and-what-is-above"),
        pytest.param(WebhookRule(resources=("pods/*",)), STATUS, True, id="all-of-pods"),
        pytest.param(WebhookRule(resources=("*/status",)), STATUS, True, id="every-status"),
        pytest.param(WebhookRule(resources=("*/status",)), POD, False, id="status-is-not-the-pod"),
        pytest.param(WebhookRule(resources=("pods",)), STATUS, False, id="the-pod-is-not-its-status"),
        pytest.param(WebhookRule(resources=("nodes", "pods")), POD, True, id="one-of-several"),
        pytest.param(WebhookRule(operations=("UPDATE",)), POD, False, id="other-operation"),
        pytest.param(WebhookRule(operations=("UPDATE", "CREATE")), POD, True, id="one-of-the-operations"),
        pytest.param(WebhookRule(api_groups=("apps",)), POD, False, id="other-group"),
        pytest.param(WebhookRule(api_groups=("",)), POD, True, id="core-group"),
        pytest.param(WebhookRule(api_groups=("",)), DEPLOYMENT, False, id="core-group-is-not-all"),
        pytest.param(WebhookRule(api_versions=("v2",)), POD, False, id="other-version"),
        pytest.param(WebhookRule(scope="Namespaced"), NODE, False, id="nodes-are-in-no-namespace"),
        pytest.param(WebhookRule(scope="Cluster"), NODE, True, id="nodes-are-the-cluster's"),
        pytest.param(WebhookRule(scope="Cluster"), POD, False, id="pods-are-in-namespaces"),
        pytest.param(parse_rule({}), POD, False, id="an-empty-rule-is-about-nothing"),
    ],
)
def test_matches(rule: WebhookRule, target: RuleTarget, answer: bool) -> None:
    assert rule.matches(target) is answer


_WORDS = st.sampled_from(["a", "b", "*"])
_TARGETS = st.builds(RuleTarget, *[st.sampled_from(["a", "b"])] * 4)


@given(target=_TARGETS, words=st.lists(_WORDS, min_size=4, max_size=4))
def test_a_star_only_ever_widens(target: RuleTarget, words: list[str]) -> None:
    operation, group, version, resource = ((word,) for word in words)
    narrow = WebhookRule(operations=operation, api_groups=group, api_versions=version, resources=resource)
    assert WebhookRule().matches(target)
    if narrow.matches(target):
        pairs = zip(words, (target.operation, target.group, target.version, target.plural), strict=True)
        assert all(word in ("*", value) for word, value in pairs)


@pytest.mark.parametrize(
    ("stated", "labels", "answer"),
    [
        pytest.param(None, [{}], True, id="no-selector"),
        pytest.param({}, [{}], True, id="empty-selector"),
        pytest.param({"matchLabels": {"a": "b"}}, [{"a": "b"}], True, id="label"),
        pytest.param({"matchLabels": {"a": "b"}}, [{}, {"a": "b"}], True, id="old-object-has-it"),
        pytest.param({"matchLabels": {"a": "b"}}, [None, {}], False, id="neither"),
        pytest.param({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, [{}, None], True, id="absence"),
    ],
)
def test_selectors(stated: dict[str, object] | None, labels: list[dict[str, str] | None], answer: bool) -> None:
    assert any_labels_match(parse_selector(stated), *labels) is answer
