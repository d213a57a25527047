"""Looking a kind up by what a program, a URL, an object or a user says."""

from __future__ import annotations

import pytest

from koord.api.builtin import CORE_EVENTS, DEPLOYMENTS, EVENTS_EVENTS, NAMESPACES, NODES, PODS
from koord.api.core import Pod
from koord.api.meta import Object
from koord.api.registry import ALL, REGISTRY, Registry
from koord.api.resource import Resource


@pytest.mark.parametrize("resource", ALL, ids=lambda r: f"{r.kind}-{r.group or 'core'}-{r.version}")
def test_every_kind_is_found_by_its_own_names(resource: Resource[Object]) -> None:
    assert REGISTRY.by_kind(resource.group, resource.version, resource.kind) is resource
    assert REGISTRY.of(resource.api_version, resource.kind) is resource
    assert REGISTRY.resolve(f"{resource.plural}.{resource.version}.{resource.group}") is resource
    preferred = REGISTRY.by_plural(resource.group, resource.plural)
    assert preferred is not None
    assert preferred.kind == resource.kind
    for name in (resource.plural, resource.singular, resource.kind, *resource.short_names):
        assert REGISTRY.resolve(f"{name}.{resource.group}") is preferred, name


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
    assert REGISTRY.resolve(text) is found


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
    assert Registry((PODS, rival)).resolve("po") is rival


def test_lookups_that_find_nothing() -> None:
    assert REGISTRY.of("apps/v1", "Pod") is None
    assert REGISTRY.of("v1", "Deployment") is None
    assert REGISTRY.by_kind("", "v2", "Pod") is None
    assert REGISTRY.by_plural("apps", "pods") is None


def test_a_kind_listed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="v1 Pod is listed twice"):
        Registry((PODS, NODES, PODS))


def test_paths() -> None:
    assert PODS.path("shop", "web-1", "status") == "/api/v1/namespaces/shop/pods/web-1/status"
    assert DEPLOYMENTS.path() == "/apis/apps/v1/deployments"
    assert NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert NAMESPACES.path(name="shop") == "/api/v1/namespaces/shop"


def test_the_table_keeps_the_model_type() -> None:
    model: type[Pod] = PODS.model  # a type checker reads this line too
    assert model is Pod
