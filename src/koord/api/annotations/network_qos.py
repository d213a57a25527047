"""koordinator.sh/networkQOS: bandwidth limits of one pod, in bits per second."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_NETWORK_QOS


class PodNetworkQOS(Part, frozen=True, kw_only=True):
    """PodNetworkQOS holds quantities as text; the terway hook requires both, the tc hook takes a missing one as 0."""

    ingress_limit: str = ""
    egress_limit: str = ""


def parse(annotations: Mapping[str, str]) -> PodNetworkQOS | Malformed | None:
    return read(annotations, A_NETWORK_QOS, PodNetworkQOS, _amounts)


def _amounts(value: PodNetworkQOS) -> list[str]:
    return [limit for limit in (value.ingress_limit, value.egress_limit) if limit]


def dump(value: PodNetworkQOS) -> str:
    return written(value)
