"""Small valid objects that stories start from."""

from __future__ import annotations

from typing import Any


def pod(name: str, **more: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "example/app:1"}], **more.pop("spec", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **more.pop("metadata", {})}, "spec": spec}


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {"k": "v"}}


def template(app: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "image": "example/app:1", "ports": [{"containerPort": 80}]}]},
    }


def workload(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    base = {"selector": {"matchLabels": {"app": name}}, "template": template(name)}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {**base, **spec}}


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **more.pop("metadata", {})}, **more}


def crd(group: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        **more.pop("version", {}),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": more.pop("scope", "Namespaced"),
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [version],
            **more,
        },
    }
