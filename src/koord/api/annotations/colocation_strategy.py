"""node.koordinator.sh/colocation-strategy: one node's override of the colocation config."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.config.slo.colocation import ColocationStrategy
from koord.api.protocol import A_COLOCATION_STRATEGY


def parse(annotations: Mapping[str, str]) -> ColocationStrategy | Malformed | None:
    """Parse a node's override of the colocation config. Readers ignore a malformed one and keep the ConfigMap's."""
    return read(annotations, A_COLOCATION_STRATEGY, ColocationStrategy)


def dump(value: ColocationStrategy) -> str:
    return written(value)
