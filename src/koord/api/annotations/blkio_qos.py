"""This module holds the codecs of a pod's own QoS settings, which override the strategies of the node's
NodeSLO: CPU burst, cpuQOS, memoryQOS, networkQOS, blkioQOS, resctrl and oom_score_adj.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.protocol import A_BLKIO_QOS
from koord.api.slo_strategy import BlkIOQOS


def parse(annotations: Mapping[str, str]) -> BlkIOQOS | Malformed | None:
    """Parse koordinator.sh/blkioQOS: one pod's own disk limits, by volume. Pods without it are left alone."""
    return read(annotations, A_BLKIO_QOS, BlkIOQOS)


def dump(value: BlkIOQOS) -> str:
    return written(value)
