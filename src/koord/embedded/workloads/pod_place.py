"""The index of pods by node, which several controllers share."""

from __future__ import annotations

from koord.api.core import Pod
from koord.kube.informer import Informer

_INDEX = "node"


def index_by_node(pods: Informer[Pod]) -> None:
    if not pods.has_index(_INDEX):
        pods.add_index(_INDEX, lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ())


def on_node(pods: Informer[Pod], node: str) -> list[Pod]:
    return pods.by_index(_INDEX, node)


def nodes_with_pods(pods: Informer[Pod]) -> list[str]:
    return pods.index_values(_INDEX)
