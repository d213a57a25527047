"""Looking a kind up by what a program, a URL, an object or a user says."""

from __future__ import annotations

import pytest

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, DEPLOYMENTS, EVENTS_EVENTS, NAMESPACES, NODES, PODS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.api.registry import ALL_KINDS, KIND_REGISTRY, KindRegistry


@pytest.mark.parametrize("resource", ALL_KINDS, ids=lambda r: f"{r.kind}-{r.group or 'core'}-{r.version}")
def test_every_kind_is_found_by_its_own_names(resource: Resource[Object]) -> None:
    assert KIND_REGISTRY.by_kind(resource.group, resource.version, resource.kind) is resource
    assert KIND_REGISTRY.by_api_version(resource.api_version, resource.kind) is resource
    assert KIND_REGISTRY.by_user_text(f"{resource.plural}.{resource.version}.{resource.group}") is resource
    preferred = KIND_REGISTRY.by_plural(resource.group, resource.plural)
    assert preferred is not None
    assert preferred.kind == resource.kind
    for name in (resource.plural, resource.singular, resource.kind, *resource.short_names):
        assert KIND_REGISTRY.by_user_text(f"{name}.{resource.group}") is preferred, name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("pods", PODS, id="plural"),
        pytest.param("pod", PODS, id="singular"),
        pytest.param("Pod", PODS, id="kind"),
        pytest.param("PODS", PODS, id="any-case"),
        pytest.param("po", PODS, id="short-name"),
        pytest.param("no", NODES, id="short-name-of-nodes"),
        pytest.param("deploy.apps", DEPLOYMENTS, id="short-name-with-group"),
        pytest.param("deployments.v1.apps", DEPLOYMENTS, id="name-version-group"),
        pytest.param("events", CORE_EVENTS, id="shared-name-means-core"),
        pytest.param("ev", CORE_EVENTS, id="shared-short-name-means-core"),
        pytest.param("events.events.k8s.io", EVENTS_EVENTS, id="shared-name-with-group"),
        pytest.param("pods.v1.", PODS, id="core-group-spelled-out"),
        pytest.param("deployments.batch", None, id="wrong-group"),
        pytest.param("deployments.v2.apps", None, id="wrong-version"),
        pytest.param("podz", None, id="unknown"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_resolve(text: str, found: Resource[Object] | None) -> None:
    assert KIND_REGISTRY.by_user_text(text) is found


def test_a_full_name_wins_over_a_short_one() -> None:
    rival = Resource(
        group="example.com",
        version="v1",
        kind="Po",
        plural="pos",
        singular="po",
        namespaced=True,
        model=Pod,
    )
    assert KindRegistry((PODS, rival)).by_user_text("po") is rival


def test_lookups_that_find_nothing() -> None:
    assert KIND_REGISTRY.by_api_version("apps/v1", "Pod") is None
    assert KIND_REGISTRY.by_api_version("v1", "Deployment") is None
    assert KIND_REGISTRY.by_kind("", "v2", "Pod") is None
    assert KIND_REGISTRY.by_plural("apps", "pods") is None


def test_a_kind_listed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="v1 Pod is listed twice"):
        KindRegistry((PODS, NODES, PODS))


def test_paths() -> None:
    assert PODS.path("shop", "web-1", "status") == "/api/v1/namespaces/shop/pods/web-1/status"
    assert DEPLOYMENTS.path() == "/apis/apps/v1/deployments"
    assert NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert NAMESPACES.path(name="shop") == "/api/v1/namespaces/shop"


def test_the_table_keeps_the_model_type() -> None:
    model: type[Pod] = PODS.model  # a type checker reads this line too
    assert model is Pod
