"""The mutating and validating admission of ElasticQuotas, and the events that the topology should remember."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.annotations import quota_resources
from koord.api.model import convert
from koord.api.protocol import A_QUOTA_NAMESPACES, DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.api.sigs_scheduling import ElasticQuota
from koord.manager.webhooks.quota import self_check, tree_check
from koord.manager.webhooks.quota.info import QuotaInfo
from koord.manager.webhooks.quota.topology import Admitted, Event, Released, Topology
from koord.manager.webhooks.quota.tree_check import Rules
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.values import resources as vector
from koord.values.quantity import QuantityError

_SHOWN_PODS = 2


class PodsView(Protocol):
    """Lists the pods of the cluster by what binds them to a quota."""

    def labelled(self, quota: str) -> Sequence[str]:
        """Return the names of the pods whose label names the quota."""
        ...

    def any_in(self, namespace: str) -> bool: ...


class Ruling(msgspec.Struct, frozen=True):
    """The decision, and the event for the topology unless the request was a dry run."""

    verdict: Verdict
    event: Event | None = None


class Unreadable(msgspec.Struct, frozen=True):
    why: str


def read(plain: dict[str, object] | None, request: AdmissionRequest) -> tuple[ElasticQuota, QuotaInfo] | Unreadable:
    if plain is None:
        return Unreadable("there is no content to decode")
    try:
        quota = convert(plain, ElasticQuota)
        info = QuotaInfo.of(quota)
        vector.parse(quota.status.used)  # so that no check meets an amount that is none
    except (msgspec.ValidationError, QuantityError) as error:
        return Unreadable(str(error))
    return quota, info if info.namespace else msgspec.structs.replace(info, namespace=request.namespace)


def validate(request: AdmissionRequest, tree: Topology, pods: PodsView, rules: Rules, now: float) -> Ruling:
    if request.sub_resource:
        return Ruling(Allowed())
    match request.operation:
        case "CREATE":
            found = read(request.object, request)
            if isinstance(found, Unreadable):
                return Ruling(Denied(400, found.why))
            return _create(*found, tree, rules, now)
        case "UPDATE":
            found, before = read(request.object, request), read(request.old_object, request)
            if isinstance(found, Unreadable):
                return Ruling(Denied(400, found.why))
            if isinstance(before, Unreadable):
                return Ruling(Denied(400, before.why))
            return _update(found, before, tree, pods, rules, now)
        case "DELETE":
            name = request.name or _name_in(request.old_object)
            fault = _delete_fault(name, tree, pods)
            return Ruling(Denied(400, fault)) if fault else Ruling(Allowed(), Released(name, now))
        case _:
            return Ruling(Allowed())


def _create(quota: ElasticQuota, info: QuotaInfo, tree: Topology, rules: Rules, now: float) -> Ruling:
    if tree.get(info.name) is not None:
        return Ruling(Denied(400, f"AddQuota quota already exist:{info.name}"))
    for namespace in info.namespaces:
        if owner := tree.owner_of(namespace, besides=info.name):
            words = f"AddQuota quota {info.name}'s annotation namespace {namespace} is already bound to quota {owner}"
            return Ruling(Denied(400, words))
    fault = self_check.fault_of(quota, info) or tree_check.fault_of(info, None, tree, rules, lambda: False)
    return Ruling(Denied(400, fault)) if fault else Ruling(Allowed(), Admitted(info, now))


def _update(
    new: tuple[ElasticQuota, QuotaInfo],
    before: tuple[ElasticQuota, QuotaInfo],
    tree: Topology,
    pods: PodsView,
    rules: Rules,
    now: float,
) -> Ruling:
    quota, info = new
    if _asks_nothing(new, before):
        return Ruling(Allowed())
    name = info.name
    if name in (SYSTEM_QUOTA, ROOT_QUOTA):
        return Ruling(Denied(400, f"invalid quota {name}"))
    for namespace in info.namespaces:
        if owner := tree.owner_of(namespace, besides=name):
            bound = f"namespace {namespace} is already bound to quota {owner}"
            # The misspelling is upstream's, and scripts may look for it.
            words = f"UpdadteQuota, quota {name} update namespaces, but {bound}"
            return Ruling(Denied(400, words))
    known = tree.get(name)
    if known is None:
        return Ruling(Denied(400, f"UpdateQuota quota not exist in quotaInfoMap:{name}"))

    def has_pods() -> bool:
        claimed = quota_resources.namespaces(before[0].metadata.annotations)
        return bool(pods.labelled(name)) or any(pods.any_in(namespace) for namespace in (name, *claimed))

    fault = self_check.fault_of(quota, info) or tree_check.fault_of(info, known, tree, rules, has_pods)
    return Ruling(Denied(400, fault)) if fault else Ruling(Allowed(), Admitted(info, now))


def _asks_nothing(new: tuple[ElasticQuota, QuotaInfo], before: tuple[ElasticQuota, QuotaInfo]) -> bool:
    """Return whether nothing that is checked changes."""
    (quota, info), (old_quota, old) = new, before
    claims = (one.metadata.annotations.get(A_QUOTA_NAMESPACES, "") for one in (quota, old_quota))
    return (
        info.parent == old.parent
        and info.is_parent == old.is_parent
        and info.tree_id == old.tree_id
        and next(claims) == next(claims)
        and info.min == old.min
        and info.max == old.max
    )


def _delete_fault(name: str, tree: Topology, pods: PodsView) -> str | None:
    if name in (SYSTEM_QUOTA, ROOT_QUOTA, DEFAULT_QUOTA):
        return f"can not delete quotaGroup :{name}"
    if tree.get(name) is None:
        return f"not found quota:{name}"
    if children := tree.children(name):
        return f"delete quota failed, quota {name} has {len(children)} child quotas"
    if bound := sorted(pods.labelled(name)):
        shown = [*bound[:_SHOWN_PODS], *(["..."] if len(bound) > _SHOWN_PODS else [])]
        return f"delete quota failed, quota {name} has {len(bound)} child pods: {', '.join(shown)}"
    return None


def _name_in(plain: dict[str, object] | None) -> str:
    meta = (plain or {}).get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else ""
