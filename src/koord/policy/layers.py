"""The co-location strategy of one node: the ConfigMap's, then the node's own annotation, then its labels.

Reading and completing the ConfigMap's part is left to the configuration; here every layer is laid over
the one below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from koord.values.selector import Selector

S = TypeVar("S")


class Layer(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The strategy of the nodes that `selector` matches, complete: already merged over the cluster's."""

    name: str
    selector: Selector
    strategy: S


class Layers(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    cluster: S
    nodes: tuple[Layer[S], ...] = ()

    def layer(self, labels: Mapping[str, str]) -> Layer[S] | None:
        """Return the first node strategy that matches; it wins alone, whatever follows it."""
        return next((layer for layer in self.nodes if layer.selector.matches(labels)), None)

    def of(self, labels: Mapping[str, str]) -> S:
        layer = self.layer(labels)
        return self.cluster if layer is None else layer.strategy
