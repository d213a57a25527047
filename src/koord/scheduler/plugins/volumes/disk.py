"""VolumeRestrictions keeps pods apart that may not use one disk, or one ReadWriteOncePod claim, at the same
time.
"""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.volume import Volume
from koord.scheduler.state.pod import PodInfo

_MEMO = "volumes/disks"


def disks(pod: PodInfo) -> tuple[Volume, ...]:
    """Return the pod's inline disks that could conflict with another pod's."""
    known: tuple[Volume, ...] | None = pod.shape.memo.get(_MEMO)
    if known is None:
        known = pod.shape.memo[_MEMO] = tuple(
            v
            for v in pod.shape.spec.volumes
            if v.gce_persistent_disk is not None
            or v.aws_elastic_block_store is not None
            or v.iscsi is not None
            or v.rbd is not None
        )
    return known


def any_clash(wanted: Iterable[Volume], held: Iterable[Volume]) -> bool:
    others = tuple(held)
    return any(_clash(one, other) for one in wanted for other in others)


def _clash(a: Volume, b: Volume) -> bool:
    """Return whether two mounts of one disk conflict. Readers may share a disk, except for EBS."""
    if a.gce_persistent_disk is not None and b.gce_persistent_disk is not None:
        one, other = a.gce_persistent_disk, b.gce_persistent_disk
        return one.pd_name == other.pd_name and not (one.read_only and other.read_only)
    if a.aws_elastic_block_store is not None and b.aws_elastic_block_store is not None:
        return a.aws_elastic_block_store.volume_id == b.aws_elastic_block_store.volume_id
    if a.iscsi is not None and b.iscsi is not None:
        return a.iscsi.iqn == b.iscsi.iqn and not (a.iscsi.read_only and b.iscsi.read_only)
    if a.rbd is not None and b.rbd is not None:
        image, held = a.rbd, b.rbd
        if image.read_only and held.read_only:
            return False
        same = (image.pool, image.image) == (held.pool, held.image)
        return same and not set(image.monitors).isdisjoint(held.monitors)
    return False
