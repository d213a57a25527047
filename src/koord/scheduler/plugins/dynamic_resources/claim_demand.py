"""Prepare what claims ask for: requests with their device classes looked up and their selectors compiled.

Claims with equal specs share one demand, so that pods made from one template are judged alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.kubernetes.dynamic_resources import (
    DeviceClass,
    DeviceRequest,
    DeviceSelectorTerm,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from koord.api.model import encode
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import SelectorProgram, selector_program

ALL_MODE = "All"
EXACT_COUNT_MODE = "ExactCount"
MAX_RESULTS = 32  # of one claim
MAX_ALTERNATIVES = 8
_DEMANDS_KEPT = 4096


class SubrequestDemand(msgspec.Struct, frozen=True, eq=False):
    """SubrequestDemand is one alternative of a request, with what its class adds; a request without a list has one."""

    request: str  # as results name it: with the name of the alternative
    main_request: str
    class_name: str
    class_selectors: tuple[SelectorProgram, ...] = ()
    selectors: tuple[SelectorProgram, ...] = ()
    class_config: tuple[dict[str, Any], ...] = ()
    takes_all: bool = False
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()

    @property
    def driver(self) -> str | None:
        """Return the driver of all devices that can be given, as the selector says that is asked first."""
        first = next(iter((*self.class_selectors, *self.selectors)), None)
        return None if first is None else first.driver


class RequestDemand(msgspec.Struct, frozen=True, eq=False):
    """A request: the alternatives in order of preference, or a single one where it states no list."""

    name: str
    alternatives: tuple[SubrequestDemand, ...]
    is_list: bool = False


class ConstraintDemand(msgspec.Struct, frozen=True, eq=False):
    """The devices of these requests, or of all, have one attribute in common, or each another value of it."""

    attribute: str
    requests: frozenset[str] = frozenset()
    is_distinct: bool = False

    def concerns(self, demand: SubrequestDemand) -> bool:
        return not self.requests or demand.request in self.requests or demand.main_request in self.requests


class ClaimDemand(msgspec.Struct, frozen=True, eq=False):
    """ClaimDemand is all that a claim asks for. Equal claims have the very same demand."""

    requests: tuple[RequestDemand, ...]
    constraints: tuple[ConstraintDemand, ...] = ()
    config: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = ()  # requests, opaque configuration

    @property
    def has_alternatives(self) -> bool:
        return any(request.is_list for request in self.requests)


class ClaimDemands:
    """Make demands and keep them until a device class changes."""

    def __init__(
        self,
        find_class: Callable[[str], DeviceClass | None],
        classes_version: Callable[[], int],
        *,
        lists: bool = True,
    ) -> None:
        """Look classes up with `find_class`; without `lists` no request may have alternatives."""
        self._lists = lists
        self._find_class = find_class
        self._classes_version = classes_version
        self._version = -1
        self._known: dict[bytes, ClaimDemand] = {}

    def demand_of(self, claim: ResourceClaim) -> ClaimDemand | Reject | Fault:
        """Return the demand of a claim, or why no device can be given to it whatever nodes have."""
        if self._version != self._classes_version() or len(self._known) >= _DEMANDS_KEPT:
            self._known.clear()
            self._version = self._classes_version()
        key = encode(claim.spec.devices)
        known = self._known.get(key)
        if known is not None:
            return known
        made = self._make(claim)
        if isinstance(made, ClaimDemand):
            self._known[key] = made
        return made

    def _make(self, claim: ResourceClaim) -> ClaimDemand | Reject | Fault:
        requests: list[RequestDemand] = []
        for request in claim.spec.devices.requests:
            made = self._request(f"{claim.metadata.namespace}/{claim.metadata.name}", request)
            if not isinstance(made, RequestDemand):
                return made
            requests.append(made)
        constraints = tuple(
            ConstraintDemand(
                each.match_attribute or each.distinct_attribute or "",
                frozenset(each.requests),
                each.match_attribute is None,
            )
            for each in claim.spec.devices.constraints
        )
        config = tuple((each.requests, {"opaque": each.opaque}) for each in claim.spec.devices.config)
        return ClaimDemand(tuple(requests), constraints, config)

    def _request(self, key: str, request: DeviceRequest) -> RequestDemand | Reject | Fault:
        asked: list[tuple[str, ExactDeviceRequest | DeviceSubRequest]] = []
        if request.exactly is not None:
            asked = [(request.name, request.exactly)]
        elif request.first_available and not self._lists:
            words = "has subrequests, but the DRAPrioritizedList feature is disabled"
            return unresolvable(f"resource claim {key}, request {request.name}: {words}")
        else:
            asked = [(f"{request.name}/{alternative.name}", alternative) for alternative in request.first_available]
        if not asked:
            return unresolvable(f"resource claim {key}, request {request.name}: unknown request type")
        alternatives: list[SubrequestDemand] = []
        for name, wanted in asked:
            made = self._device_demand(request.name, name, wanted)
            if not isinstance(made, SubrequestDemand):
                return made
            alternatives.append(made)
        return RequestDemand(request.name, tuple(alternatives), request.exactly is None)

    def _device_demand(
        self, main_request: str, name: str, wanted: ExactDeviceRequest | DeviceSubRequest
    ) -> SubrequestDemand | Reject | Fault:
        if not wanted.device_class_name:
            return Fault(f"request {name}: unsupported request type")
        device_class = self._find_class(wanted.device_class_name)
        if device_class is None:
            return unresolvable(f"request {name}: device class {wanted.device_class_name} does not exist")
        mode = wanted.allocation_mode or EXACT_COUNT_MODE
        if mode not in (ALL_MODE, EXACT_COUNT_MODE):
            return Fault(f"request {name}: unsupported count mode {mode}")
        return SubrequestDemand(
            request=name,
            main_request=main_request,
            class_name=wanted.device_class_name,
            class_selectors=_programs(device_class.spec.selectors),
            selectors=_programs(wanted.selectors),
            class_config=tuple({"opaque": each.opaque} for each in device_class.spec.config),
            takes_all=mode == ALL_MODE,
            count=wanted.count or 1,
            admin_access=wanted.admin_access if isinstance(wanted, ExactDeviceRequest) else None,
            tolerations=wanted.tolerations,
        )


def _programs(selectors: tuple[DeviceSelectorTerm, ...]) -> tuple[SelectorProgram, ...]:
    return tuple(selector_program(each.cel.expression if each.cel is not None else "") for each in selectors)
