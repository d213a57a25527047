"""Find devices for claims on one node: a depth-first search over claims, requests and devices, in their order.

The first solution counts. A device is used once, unless a request has access as an administrator. The search is bounded
by a number of steps, so that it is the same on every machine.

    claim -> request -> alternative -> device: not in use, selected, tolerated, within counters and constraints

Write an allocation as the status of a claim has it: results, configuration, and the nodes that reach the devices.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.dynamic_resources import DeviceTaint, DeviceToleration
from koord.policy.node_match import NAME_FIELD
from koord.scheduler.plugins.dynamic_resources.claim_demand import (
    MAX_RESULTS,
    ClaimDemand,
    RequestDemand,
    SubrequestDemand,
)
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import (
    ClaimableDevice,
    CounterId,
    DeviceId,
    DevicePool,
    DeviceReach,
    PoolId,
    ReachablePool,
    counters_left,
)
from koord.values.quantity import Quantity

CANNOT_ALLOCATE = "cannot allocate all claims"
INVALID_POOLS = "invalid resource pools were encountered"
TIMED_OUT = "timed out trying to allocate devices"
MAX_DEVICES = 256  # of one pod: the search recurses once per device
TAINT_EFFECTS = ("NoSchedule", "NoExecute")
_DeviceOfPool = tuple[ClaimableDevice, DevicePool]


class AllocatorFeatures(msgspec.Struct, frozen=True):
    """The feature gates of Kubernetes that the allocator reads."""

    taints: bool = False
    partitionable: bool = False
    max_steps: int = 0  # 0 for no bound
    admin_access: bool = True


class ChosenDevice(msgspec.Struct, frozen=True):
    demand: SubrequestDemand
    device: ClaimableDevice


class ClaimAllocation(msgspec.Struct, frozen=True):
    """The devices chosen for one claim, and by request the index of the alternative that was chosen."""

    claim: ClaimDemand
    devices: tuple[ChosenDevice, ...]
    alternatives: tuple[int, ...]


class AllocationRefusal(msgspec.Struct, frozen=True):
    """Say that the node cannot serve the claims; an error, unlike a refusal, ends the attempt at the pod."""

    reason: str
    claim: int = -1  # the index of the claim whose name comes before the reason
    is_error: bool = False


class _SearchStopped(Exception):
    """Raised inside of this module only: `allocate` returns its refusal."""

    def __init__(self, refusal: AllocationRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def allocate(
    pools: Sequence[ReachablePool],
    claims: Sequence[ClaimDemand],
    in_use: Container[DeviceId],
    features: AllocatorFeatures,
) -> tuple[ClaimAllocation, ...] | AllocationRefusal:
    """Return devices for all claims, or why there are none."""
    search = _Search(pools, claims, in_use, features)
    try:
        search.gather_all_devices()
        if search.find(0, 0):
            return search.allocations()
    except _SearchStopped as stopped:
        return stopped.refusal
    is_invalid = any(each.pool.is_invalid and not each.pool.is_incomplete for each in pools)
    return AllocationRefusal(INVALID_POOLS if is_invalid else CANNOT_ALLOCATE)


class _Search:
    def __init__(
        self,
        pools: Sequence[ReachablePool],
        claims: Sequence[ClaimDemand],
        in_use: Container[DeviceId],
        features: AllocatorFeatures,
    ) -> None:
        self._all_pools = pools
        self._usable: dict[str | None, tuple[_DeviceOfPool, ...]] = {}  # by driver, None for all
        self._claims = claims
        self._in_use = in_use
        self._features = features
        self._steps = 0
        self._taken: set[DeviceId] = set()  # by requests without access as an administrator
        self._picks: list[list[ChosenDevice]] = [[] for _ in claims]
        self._alternatives: list[list[int]] = [[0] * len(claim.requests) for claim in claims]
        self._shared: list[list[list[Hashable]]] = [[[] for _ in claim.constraints] for claim in claims]
        self._counters: dict[PoolId, dict[CounterId, Quantity]] = {}
        self._all_devices: dict[SubrequestDemand, list[_DeviceOfPool]] = {}

    def allocations(self) -> tuple[ClaimAllocation, ...]:
        return tuple(
            ClaimAllocation(claim, tuple(picks), tuple(chosen))
            for claim, picks, chosen in zip(self._claims, self._picks, self._alternatives, strict=True)
        )

    def find(self, c: int, r: int) -> bool:
        """Find devices for request `r` of claim `c` and for all that comes after it."""
        while c < len(self._claims) and r == len(self._claims[c].requests):
            c, r = c + 1, 0
        if c == len(self._claims):
            return True
        request = self._claims[c].requests[r]
        return any(self._find_alternative(c, r, i, request) for i in range(len(request.alternatives)))

    def _find_alternative(self, c: int, r: int, i: int, request: RequestDemand) -> bool:
        demand = request.alternatives[i]
        self._alternatives[c][r] = i
        if demand.takes_all:
            devices = self._all_devices[demand]
            return bool(devices) and self._take_all(c, r, demand, devices)
        if not self._within_results(c, demand.count) or not self._are_free(demand):
            return False
        return self._take_some(c, r, demand, demand.count, 0)

    def _are_free(self, demand: SubrequestDemand) -> bool:
        """Return whether as many devices are free as are asked for, so that no combination of fewer is tried."""
        if demand.count == 1 or demand.admin_access:
            return True
        free = (d for d, _ in self._candidates(demand) if d.id not in self._in_use and d.id not in self._taken)
        return sum(1 for _ in islice(free, demand.count)) == demand.count

    def _candidates(self, demand: SubrequestDemand) -> tuple[_DeviceOfPool, ...]:
        """Return the devices that may be given to a request, before selectors are asked about the rest."""
        driver = demand.driver
        known = self._usable.get(driver)
        if known is None:
            found = [
                each.usable if self._features.partitionable else each.usable_without_counters
                for each in self._all_pools
                if driver is None or each.pool.id[0] == driver
            ]
            known = self._usable[driver] = found[0] if len(found) == 1 else tuple(chain.from_iterable(found))
        return known

    def _within_results(self, c: int, more: int) -> bool:
        """Return whether the claim may have that many results more."""
        if sum(map(len, self._picks)) + more > MAX_DEVICES:
            return False
        return len(self._picks[c]) + more <= MAX_RESULTS

    def _take_some(self, c: int, r: int, demand: SubrequestDemand, left: int, start: int) -> bool:
        """Take that many devices from `start` on: the order of devices within a request makes no difference."""
        if not left:
            return self.find(c, r + 1)
        candidates = self._candidates(demand)
        for at in range(start, len(candidates) - left + 1):
            device, pool = candidates[at]
            if not demand.admin_access and (device.id in self._in_use or device.id in self._taken):
                continue
            self._count_step()
            if self._is_selected(c, demand, device) and self._take(c, demand, device, pool):
                if self._take_some(c, r, demand, left - 1, at + 1):
                    return True
                self._release(c, demand, device, pool)
        return False

    def gather_all_devices(self) -> None:
        """Find what requests for all devices are about, before anything is tried: a pool in doubt ends the search.

        So does a request that is not allowed.
        """
        for c, claim in enumerate(self._claims):
            for request in claim.requests:
                for demand in request.alternatives:
                    if demand.admin_access and not self._features.admin_access:
                        words = f", request {request.name}: admin access is requested, but the feature is disabled"
                        raise _SearchStopped(AllocationRefusal(words, c, is_error=True))
                    if demand.takes_all:
                        self._all_devices[demand] = self._gather(c, demand)

    def _gather(self, c: int, demand: SubrequestDemand) -> list[_DeviceOfPool]:
        for each in self._all_pools:
            state = "being updated" if each.pool.is_incomplete else "invalid" if each.pool.is_invalid else ""
            if state:
                where = "/".join(each.pool.id)
                name = demand.request.rpartition("/")[2]  # of an alternative: kube-scheduler's words have it alone
                words = f", request {name}: asks for all devices, but resource pool {where} is currently {state}"
                raise _SearchStopped(AllocationRefusal(words, c, is_error=True))
        return [(device, pool) for device, pool in self._candidates(demand) if self._is_selected(c, demand, device)]

    def _take_all(self, c: int, r: int, demand: SubrequestDemand, devices: Sequence[_DeviceOfPool]) -> bool:
        if not self._within_results(c, len(devices)):
            return False
        held: list[_DeviceOfPool] = []
        for device, pool in devices:
            self._count_step()
            is_used = not demand.admin_access and (device.id in self._in_use or device.id in self._taken)
            if is_used or not self._take(c, demand, device, pool, must=True):
                break
            held.append((device, pool))
        if len(held) == len(devices) and self.find(c, r + 1):
            return True
        for device, pool in reversed(held):
            self._release(c, demand, device, pool)
        return False

    def _count_step(self) -> None:
        self._steps += 1
        if self._features.max_steps and self._steps > self._features.max_steps:
            raise _SearchStopped(AllocationRefusal(TIMED_OUT))

    # One device --------------------------------------------------------------------------------------------------

    def _is_selected(self, c: int, demand: SubrequestDemand, device: ClaimableDevice) -> bool:
        for whose, programs in ((f"class {demand.class_name}", demand.class_selectors), ("", demand.selectors)):
            for i, program in enumerate(programs):
                answer = device.matches(program)
                if answer is False:
                    return False
                if answer is not True:
                    words = f": selector #{i}: {answer}"
                    refusal = AllocationRefusal(f"{whose}{words}", is_error=True)
                    raise _SearchStopped(refusal if whose else AllocationRefusal(words, c, is_error=True))
        return True

    def _take(
        self, c: int, demand: SubrequestDemand, device: ClaimableDevice, pool: DevicePool, *, must: bool = False
    ) -> bool:
        """Take a device that is not in use, if taints, counters and constraints let it be.

        A constraint on a device that a request for all of them `must` have ends the search: no other choice is left.
        """
        if any(pick.device.id == device.id for pick in self._picks[c]):
            return False
        if self._features.taints and not tolerates_taints(demand.tolerations, device.taints):
            return False
        if not self._consume(device, pool):
            return False
        values = self._constraint_values(c, demand, device)
        if values is None:
            self._give_back(device, pool)
            if must:
                raise _SearchStopped(_constrained(c, demand, device))
            return False
        for held, value in values:
            held.append(value)
        self._picks[c].append(ChosenDevice(demand, device))
        if not demand.admin_access:
            self._taken.add(device.id)
        return True

    def _release(self, c: int, demand: SubrequestDemand, device: ClaimableDevice, pool: DevicePool) -> None:
        self._picks[c].pop()
        for constraint, held in zip(self._claims[c].constraints, self._shared[c], strict=True):
            if constraint.concerns(demand):
                held.pop()
        if not demand.admin_access:
            self._taken.discard(device.id)
        self._give_back(device, pool)

    def _constraint_values(
        self, c: int, demand: SubrequestDemand, device: ClaimableDevice
    ) -> list[tuple[list[Hashable], Hashable]] | None:
        """Return what each constraint on the request would hold more; None where one of them does not allow it."""
        found: list[tuple[list[Hashable], Hashable]] = []
        for constraint, held in zip(self._claims[c].constraints, self._shared[c], strict=True):
            if constraint.concerns(demand):
                value = device.attribute(constraint.attribute)
                fits = value not in held if constraint.is_distinct else not held or held[0] == value
                if value is None or not fits:
                    return None
                found.append((held, value))
        return found

    def _consume(self, device: ClaimableDevice, pool: DevicePool) -> bool:
        """Take what a device needs of its pool's counters, if they have it; administrators need it too."""
        if not device.consumes:
            return True
        left = self._counters.get(pool.id)
        if left is None:
            used = (other for other in pool.devices.values() if other.id in self._in_use)
            left = self._counters[pool.id] = counters_left(pool, used)
        if any(left[counter] < amount for counter, amount in device.consumes):
            return False
        for counter, amount in device.consumes:
            left[counter] -= amount
        return True

    def _give_back(self, device: ClaimableDevice, pool: DevicePool) -> None:
        for counter, amount in device.consumes:
            self._counters[pool.id][counter] += amount


def _constrained(c: int, demand: SubrequestDemand, device: ClaimableDevice) -> AllocationRefusal:
    name, what = demand.request.rpartition("/")[2], "/".join(device.id)
    words = f", request {name}: cannot add device {what} because a claim constraint would not be satisfied"
    return AllocationRefusal(words, c, is_error=True)


def tolerates_taints(tolerations: Sequence[DeviceToleration], taints: Sequence[DeviceTaint]) -> bool:
    return all(
        taint.effect not in TAINT_EFFECTS or any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def preference_score(allocations: Sequence[ClaimAllocation], most: int) -> int:
    """Return how good the chosen alternatives are: the first of a list counts `most`, the next one less."""
    return sum(
        most - chosen
        for allocation in allocations
        for request, chosen in zip(allocation.claim.requests, allocation.alternatives, strict=True)
        if request.is_list
    )


def devices_by_id(allocations: Sequence[ClaimAllocation]) -> Mapping[DeviceId, ClaimableDevice]:
    """Return the devices that are in use from now on: those without access as an administrator."""
    return {
        pick.device.id: pick.device
        for allocation in allocations
        for pick in allocation.devices
        if not pick.demand.admin_access
    }


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
