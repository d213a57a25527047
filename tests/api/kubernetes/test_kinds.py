"""The table of kinds: each kind stands in it once, and knows its paths."""

from __future__ import annotations

from koord.api.koordinator.custom_kinds import ALL_KINDS, KINDS_BY_API_VERSION
from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, NAMESPACES, NODES, PODS
from koord.api.kubernetes.pod import Pod


def test_no_kind_is_listed_twice() -> None:
    assert len(KINDS_BY_API_VERSION) == len(ALL_KINDS)


def test_paths() -> None:
    assert PODS.path("shop", "web-1", "status") == "/api/v1/namespaces/shop/pods/web-1/status"
    assert DEPLOYMENTS.path() == "/apis/apps/v1/deployments"
    assert NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert NAMESPACES.path(name="shop") == "/api/v1/namespaces/shop"


def test_the_table_keeps_the_model_type() -> None:
    model: type[Pod] = PODS.model  # a type checker reads this line too
    assert model is Pod
