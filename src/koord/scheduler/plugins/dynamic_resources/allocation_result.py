"""Write an allocation as the status of a claim has it: results, configuration, and the nodes that reach the devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from koord.api.kubernetes.affinity import NodeSelector
from koord.policy.node_match import NAME_FIELD
from koord.scheduler.plugins.dynamic_resources.allocator import ClaimAllocation
from koord.scheduler.plugins.dynamic_resources.claim_demand import ClaimDemand, SubrequestDemand
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import DeviceReach

FROM_CLASS, FROM_CLAIM = "FromClass", "FromClaim"


def allocation_result(allocation: ClaimAllocation, node_name: str) -> dict[str, Any]:
    """Return `status.allocation` of a claim whose devices are used from the node."""
    results: list[dict[str, Any]] = []
    for pick in allocation.devices:
        driver, pool, device = pick.device.id
        result: dict[str, Any] = {"request": pick.demand.request, "driver": driver, "pool": pool, "device": device}
        if pick.demand.admin_access is not None:
            result["adminAccess"] = pick.demand.admin_access
        if pick.demand.tolerations:
            result["tolerations"] = msgspec.to_builtins(pick.demand.tolerations)
        results.append(result)
    devices: dict[str, Any] = {"results": results}
    config = list(_configuration(allocation))
    if config:
        devices["config"] = config
    selector = _node_selector((pick.device.reach for pick in allocation.devices), node_name)
    return {"devices": devices} if selector is None else {"devices": devices, "nodeSelector": selector}


def _configuration(allocation: ClaimAllocation) -> Iterable[dict[str, Any]]:
    claim = allocation.claim
    by_class: dict[str, list[SubrequestDemand]] = {}
    for request, chosen in zip(claim.requests, allocation.alternatives, strict=True):
        demand = request.alternatives[chosen]
        by_class.setdefault(demand.class_name, []).append(demand)
    for demands in by_class.values():
        for config in demands[0].class_config:
            yield {"source": FROM_CLASS, "requests": [demand.request for demand in demands], **config}
    for names, config in claim.config:
        if not names:
            yield {"source": FROM_CLAIM, **config}
        elif _are_chosen(names, claim, allocation.alternatives):
            yield {"source": FROM_CLAIM, "requests": list(names), **config}


def _are_chosen(names: tuple[str, ...], claim: ClaimDemand, alternatives: tuple[int, ...]) -> bool:
    """Return whether configuration for these requests is for one that has devices."""
    return any(
        request.name in names or request.alternatives[chosen].request in names
        for request, chosen in zip(claim.requests, alternatives, strict=True)
    )


def _node_selector(reaches: Iterable[DeviceReach], node_name: str) -> dict[str, Any] | None:
    """Return the selector of the nodes that reach all devices; None for all nodes."""
    terms: list[list[dict[str, Any]]] = []
    for reach in reaches:
        if reach.node_name is not None:
            only = {"key": NAME_FIELD, "operator": "In", "values": [node_name]}
            return {"nodeSelectorTerms": [{"matchFields": [only]}]}
        if reach.selector is not None:
            terms.append(_terms(reach.selector))
    if not terms:
        return None
    # Slices have one term each, so that the conditions of all of them together are one term again.
    merged: dict[str, list[dict[str, Any]]] = {}
    for of_device in terms:
        for term in of_device:
            for field, requirements in term.items():
                held = merged.setdefault(field, [])
                held += [requirement for requirement in requirements if requirement not in held]
    return {"nodeSelectorTerms": [merged]}


def _terms(selector: NodeSelector) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.to_builtins(selector.node_selector_terms)
    return found
