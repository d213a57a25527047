"""The size and content of a node pool's root quota. Pure: nodes and profile in, quota out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator import protocol
from koord.api.koordinator.profiles import ElasticQuotaProfile
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.node import Node
from koord.kube.client.request_builder import Unstructured
from koord.values import resources as vector
from koord.values.go_format import parse_finite_float
from koord.values.quantity import ZERO, Format, Quantity
from koord.values.resources import CPU, MEMORY, Resources
from koord.values.selector import Selector

# Larger than any cluster, and small enough that sums in thousandths stay within 64 bits.
UNLIMITED_QUANTITY = Quantity.from_value(((1 << 63) - 1) // 2000)

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


class PoolNode(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str]
    allocatable: Resources
    is_schedulable: bool  # ready, and open for new pods

    @staticmethod
    def from_node(node: Node) -> PoolNode:
        ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
        return PoolNode(
            node.metadata.name,
            node.metadata.labels,
            vector.parse(node.status.allocatable),
            ready and not node.spec.unschedulable,
        )


class NodePoolTotal(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    unschedulable_nodes: int
    ratio: float | None  # None: the profile asks for the plain sum
    total: Resources
    unschedulable: Resources


class RootQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The desired content of the quota; further labels and annotations are left alone."""

    labels: dict[str, str]
    annotations: dict[str, str]
    min: Resources
    max: Resources
    warning: str = ""  # what the profile says and cannot be used


def default_tree_id(namespace: str, name: str) -> str:
    """Return the tree id of a profile that names none: FNV-1a, 64 bits, in decimal."""
    digest = _FNV_OFFSET
    for byte in f"{namespace}/{name}".encode():
        digest = ((digest ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return str(digest)


def parse_resource_ratio(text: str | None) -> float | None:
    """Parse the ratio; what is not above 0 and up to 1 counts as 1."""
    if text is None:
        return None
    ratio = parse_finite_float(text)
    return ratio if ratio is not None and 0 < ratio <= 1 else 1.0


def sum_pool(nodes: Iterable[PoolNode], selector: Selector, ratio: float | None) -> NodePoolTotal:
    total: dict[str, Quantity] = {}
    unschedulable: dict[str, Quantity] = {}
    count = unusable = 0
    for node in nodes:
        if not selector.matches(node.labels):
            continue
        count += 1
        total = vector.add(total, node.allocatable)
        if not node.is_schedulable:
            unusable += 1
            unschedulable = vector.add(unschedulable, node.allocatable)
    return NodePoolTotal(
        nodes=count,
        unschedulable_nodes=unusable,
        ratio=ratio,
        total=_scale(total, ratio),
        unschedulable=_scale(unschedulable, ratio),
    )


def desired_root_quota(profile: ElasticQuotaProfile, tree_id: str, pool: NodePoolTotal) -> RootQuota:
    """Return the desired root quota. Unreadable resource keys count as none: the usual ones beat no quota."""
    stated = quota_codecs.quota_resource_keys(profile.metadata.annotations)
    keys = quota_codecs.DEFAULT_QUOTA_RESOURCE_KEYS if isinstance(stated, MalformedAnnotation) else stated
    return RootQuota(
        warning=str(stated) if isinstance(stated, MalformedAnnotation) else "",
        labels={
            protocol.L_QUOTA_PROFILE: profile.metadata.name,
            **profile.spec.quota_labels,
            protocol.L_QUOTA_TREE_ID: tree_id,
            protocol.L_QUOTA_IS_ROOT: protocol.TRUE,
        },
        annotations={
            protocol.A_QUOTA_TOTAL_RESOURCE: dump_json(vector.to_wire(pool.total)),
            protocol.A_QUOTA_UNSCHEDULABLE_RESOURCE: dump_json(vector.to_wire(pool.unschedulable)),
        },
        min={key: pool.total.get(key, ZERO) for key in keys},
        max=dict.fromkeys(keys, UNLIMITED_QUANTITY),
    )


def create_body(root: RootQuota, namespace: str, name: str) -> Unstructured:
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": root.labels, "annotations": root.annotations},
        "spec": {"min": vector.to_wire(root.min), "max": vector.to_wire(root.max)},
    }


def update_patch(root: RootQuota, quota: ElasticQuota) -> Unstructured | None:
    """Return the merge patch that updates the quota, or None when it is up to date."""
    metadata: Unstructured = {}
    meta = quota.metadata
    if labels := {key: value for key, value in root.labels.items() if meta.labels.get(key) != value}:
        metadata["labels"] = labels
    if notes := {
        key: text for key, text in root.annotations.items() if not _is_same_resource_list(meta.annotations, key, text)
    }:
        metadata["annotations"] = notes
    spec: Unstructured = {}
    for field, target, known in (("min", root.min, quota.spec.min), ("max", root.max, quota.spec.max)):
        if not vector.equals(target, vector.parse(known)):
            spec[field] = {**dict.fromkeys(known.keys() - target.keys()), **vector.to_wire(target)}
    patch: Unstructured = {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}
    return patch or None


def _is_same_resource_list(annotations: Mapping[str, str], key: str, text: str) -> bool:
    """Return whether the amounts are equal, however they are written."""
    if annotations.get(key) == text:
        return True
    known, target = (
        quota_codecs.parse_quota_resources(annotations, key),
        quota_codecs.parse_quota_resources({key: text}, key),
    )
    if (
        known is None
        or isinstance(known, MalformedAnnotation)
        or target is None
        or isinstance(target, MalformedAnnotation)
    ):
        return False
    return vector.equals(vector.parse(known), vector.parse(target))


def _scale(amounts: Resources, ratio: float | None) -> Resources:
    if ratio is None:
        return amounts
    return {name: _scale_quantity(name, amount, ratio) for name, amount in amounts.items()}


def _scale_quantity(name: str, amount: Quantity, ratio: float) -> Quantity:
    """Scale the quantity, truncated to milli-cpus and to whole units of all else."""
    if name == CPU:
        return Quantity.from_milli(int(amount.milli_value() * ratio))
    return Quantity.from_value(int(amount.value() * ratio), Format.BINARY_SI if name == MEMORY else Format.DECIMAL_SI)
