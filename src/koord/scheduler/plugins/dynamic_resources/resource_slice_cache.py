"""Keep the devices that drivers publish in ResourceSlices: pools of devices, and the devices that a node can reach.

A pool is what the slices of its newest generation say together. It is incomplete while fewer slices of that generation
are there than they announce, and invalid where they contradict each other; neither is allocated from. A change marks
the rows of the nodes that it concerns; a change of slices that are not of one node moves `wide_version`, which taking
and freeing their devices moves too, and `wide_layout`.

Apply the selectors of device classes and requests to the devices of slices, with the words of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.dynamic_resources import DeviceAttribute, DeviceTaint, ResourceSlice, SliceDevice
from koord.api.kubernetes.node import Node
from koord.cel.device_selector import (
    AttributeValue,
    DeviceName,
    DeviceSelector,
    cel_device,
    compile_selector,
    driver_required,
    names_read,
)
from koord.cel.kubernetes_functions import parse_version
from koord.cel.syntax import CelError
from koord.policy.node_match import NodeTerms
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.values.quantity import ZERO, Quantity, QuantityError

_PROGRAMS_KEPT = 1024


class SelectorProgram:
    """A compiled selector, or why it does not compile. There is one of each expression, so that it is a cheap key."""

    __slots__ = ("_compiled", "driver", "names")

    def __init__(self, expression: str) -> None:
        self._compiled: DeviceSelector | CelError = compile_selector(expression)
        # What it reads of a device; None where that may be anything.
        self.names: frozenset[DeviceName] | None = frozenset()
        self.driver: str | None = None  # of all devices that it takes, where it says so
        if not isinstance(self._compiled, CelError):
            self.names = names_read(self._compiled.tree)
            self.driver = driver_required(self._compiled.tree)

    def matches(self, device: Mapping[str, Any]) -> bool | str:
        """Return whether a device is selected, or in words why that cannot be said."""
        if isinstance(self._compiled, CelError):
            return f"CEL compile error: {self._compiled.message}"
        found = self._compiled.matches(device)
        return f"CEL runtime error: {found.message}" if isinstance(found, CelError) else found


@lru_cache(maxsize=_PROGRAMS_KEPT)
def selector_program(expression: str) -> SelectorProgram:
    return SelectorProgram(expression)


def attribute_value(attribute: DeviceAttribute) -> AttributeValue:
    """Return the value of an attribute in CEL's types; a version that is none stays text."""
    if attribute.int_value is not None:
        return attribute.int_value
    if attribute.bool_value is not None:
        return attribute.bool_value
    if attribute.version_value is not None:
        return parse_version(attribute.version_value) or attribute.version_value
    return attribute.string_value or ""


def selected_device(device: SliceDevice, driver: str) -> Mapping[str, Any]:
    """Return what a selector sees of a device."""
    return cel_device(
        driver,
        {name: attribute_value(given) for name, given in device.attributes.items()},
        {name: quantity_or_zero(given.value) for name, given in device.capacity.items()},
        allow_multiple_allocations=bool(device.allow_multiple_allocations),
    )


def quantity_or_zero(text: str | int | float) -> Quantity:
    """Return a quantity. No server stores one that cannot be read, so nothing is lost with zero."""
    try:
        return Quantity.parse(text)
    except QuantityError:
        return ZERO


DeviceId = tuple[str, str, str]  # driver, pool, device
PoolId = tuple[str, str]  # driver, pool
CounterId = tuple[str, str]  # counter set, counter
_ANSWERS_KEPT = 64


class DeviceReach:
    """The nodes that a slice or a device is for: one node, those of a selector, or all."""

    __slots__ = ("node_name", "selector", "terms")

    def __init__(self, node_name: str | None, selector: NodeSelector | None, *, everywhere: bool) -> None:
        self.node_name = node_name
        self.selector = selector
        none = NodeTerms(NodeSelector())
        self.terms = NodeTerms(selector) if selector is not None else None if everywhere else none

    def includes(self, node: Node) -> bool:
        if self.node_name is not None:
            return node.metadata.name == self.node_name
        return self.terms is None or self.terms.matches(node)


class ClaimableDevice:
    """A device of a slice, with what selectors said of it so far."""

    __slots__ = ("_answers", "_attributes", "_capacities", "_selected", "consumes", "id", "reach", "spec")

    def __init__(self, spec: SliceDevice, driver: str, pool: str, reach: DeviceReach) -> None:
        self.spec = spec
        self.id: DeviceId = (driver, pool, spec.name)
        self.reach = reach
        self.consumes: tuple[tuple[CounterId, Quantity], ...] = tuple(
            ((taken.counter_set, name), quantity_or_zero(counter.value))
            for taken in spec.consumes_counters
            for name, counter in taken.counters.items()
        )
        self._selected: Mapping[str, Any] | None = None
        self._attributes: dict[str, Hashable] | None = None
        self._capacities: dict[str, Hashable] | None = None
        self._answers: dict[SelectorProgram, bool | str] = {}

    @property
    def taints(self) -> tuple[DeviceTaint, ...]:
        return self.spec.taints

    def matches(self, program: SelectorProgram) -> bool | str:
        """Return whether a selector is true for the device, or why that cannot be said; asked once per selector."""
        known = self._answers.get(program)
        if known is None:
            if self._selected is None:
                self._selected = selected_device(self.spec, self.id[0])
            if len(self._answers) >= _ANSWERS_KEPT:
                self._answers.clear()
            known = self._answers[program] = program.matches(self._selected)
        return known

    def attribute(self, name: str) -> Hashable:
        """Return an attribute by its full name as (type, value); None where the device does not have it."""
        if self._attributes is None:
            self._attributes = {
                self._full_name(key): (_type_name(given), attribute_value(given))
                for key, given in self.spec.attributes.items()
            }
        return self._attributes.get(name)

    def capacity(self, name: str) -> Hashable:
        """Return a capacity by its full name, as it is written; None where the device does not have it."""
        if self._capacities is None:
            self._capacities = {self._full_name(key): given.value for key, given in self.spec.capacity.items()}
        return self._capacities.get(name)

    def _full_name(self, key: str) -> str:
        return key if "/" in key else f"{self.id[0]}/{key}"


def _type_name(attribute: msgspec.Struct) -> str:
    return next((name for name in attribute.__struct_fields__ if getattr(attribute, name) is not None), "")


class _Slice:
    """A slice with its devices prepared."""

    __slots__ = ("devices", "object", "reach", "selects_per_device")

    def __init__(self, given: ResourceSlice) -> None:
        spec = given.spec
        self.object = given
        self.selects_per_device = bool(spec.per_device_node_selection)
        self.reach = DeviceReach(
            spec.node_name, spec.node_selector, everywhere=bool(spec.all_nodes) or self.selects_per_device
        )
        self.devices = tuple(
            ClaimableDevice(device, spec.driver, spec.pool.name, self._reach_of(device)) for device in spec.devices
        )

    def _reach_of(self, device: SliceDevice) -> DeviceReach:
        if not self.selects_per_device:
            return self.reach
        return DeviceReach(device.node_name, device.node_selector, everywhere=bool(device.all_nodes))


class DevicePool:
    """The slices of one pool, as they were when it was made."""

    def __init__(self, pool_id: PoolId, slices: Iterable[_Slice]) -> None:
        self.id = pool_id
        known = sorted(slices, key=lambda each: each.object.metadata.name)
        generation = max(each.object.spec.pool.generation for each in known)
        self.slices = [each for each in known if each.object.spec.pool.generation == generation]
        self.is_incomplete = len(self.slices) != self.slices[0].object.spec.pool.resource_slice_count
        self.devices: dict[str, ClaimableDevice] = {d.id[2]: d for each in self.slices for d in each.devices}
        self._reachable: dict[tuple[int | tuple[int, ...], ...], ReachablePool] = {}
        self.counters: dict[CounterId, Quantity] = {
            (given.name, name): quantity_or_zero(counter.value)
            for each in self.slices
            for given in each.object.spec.shared_counters
            for name, counter in given.counters.items()
        }

    @cached_property
    def is_invalid(self) -> bool:
        """Return whether two devices have one name, or a device takes from counters that are not there."""
        names = sum(len(each.devices) for each in self.slices)
        taken = {counter for device in self.devices.values() for counter, _ in device.consumes}
        return names != len(self.devices) or not taken <= self.counters.keys()

    def reachable(self, node: Node) -> ReachablePool | None:
        """Return what the node can use of the pool; None where no slice of it is for the node.

        Nodes that can use the same get the same object: a fabric's devices are not listed once per node.
        """
        chosen: list[int | tuple[int, ...]] = []
        is_for_node = False
        for each in self.slices:
            if each.selects_per_device:
                usable = tuple(i for i, device in enumerate(each.devices) if device.reach.includes(node))
                is_for_node = is_for_node or bool(usable)
                chosen.append(usable)
            else:
                reached = each.reach.includes(node)
                is_for_node = is_for_node or reached
                chosen.append(len(each.devices) if reached else 0)
        if not is_for_node:
            return None
        key = tuple(chosen)
        known = self._reachable.get(key)
        if known is None:
            found: list[ClaimableDevice] = []
            for each, part in zip(self.slices, chosen, strict=True):
                found += each.devices[:part] if isinstance(part, int) else [each.devices[i] for i in part]
            known = self._reachable[key] = ReachablePool(self, tuple(found))
        return known


class ReachablePool:
    """ReachablePool is a pool with the devices of it that a node can use."""

    def __init__(self, pool: DevicePool, devices: tuple[ClaimableDevice, ...]) -> None:
        self.pool = pool
        self.devices = devices

    @cached_property
    def usable(self) -> tuple[tuple[ClaimableDevice, DevicePool], ...]:
        """Return the devices that may be given, each with its pool: none of a pool in doubt.

        Devices with binding conditions are left alone: nobody here waits for these (DRADeviceBindingConditions).
        """
        pool = self.pool
        if pool.is_incomplete or pool.is_invalid:
            return ()
        return tuple((device, pool) for device in self.devices if not device.spec.binding_conditions)

    @cached_property
    def usable_without_counters(self) -> tuple[tuple[ClaimableDevice, DevicePool], ...]:
        """Return what may be given by somebody who cannot count what devices take from counters."""
        return tuple(pair for pair in self.usable if not pair[0].consumes)

    @cached_property
    def part_of_pool(self) -> tuple[str, ...]:
        """Return the names of the devices where they are not all that the pool has."""
        names = tuple(device.id[2] for device in self.devices)
        return () if len(names) == len(self.pool.devices) else names


class ResourceSliceCache:
    """The pools of all drivers; one for all profiles, got with `state.derived(ResourceSliceCache)`."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._slices: dict[PoolId, dict[str, _Slice]] = {}  # by name of the slice
        self._pools: dict[PoolId, DevicePool] = {}  # made when they are asked for
        self._pools_of_node: dict[str, dict[PoolId, int]] = {}  # by node: how many slices of a pool are for it alone
        self._wide_pools: dict[PoolId, int] = {}  # how many slices of a pool are not for one node
        self._touched: set[str] = set()
        self._views: dict[str, tuple[int, Node, tuple[ReachablePool, ...]]] = {}
        self.wide_version = 0
        self.wide_layout = 0
        self.change_listeners: list[Callable[[str], None]] = []  # called with a node whose devices changed or moved

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Handle an event. Each profile's plugin calls this; only the first of equal calls changes anything."""
        if new is not None and self._known_slice(new) is new:
            return
        for gone in (old, new):
            if gone is not None:
                self._remove(gone)
        if new is not None:
            self._add(new)
        self._notify()

    def _known_slice(self, given: ResourceSlice) -> ResourceSlice | None:
        known = self._slices.get((given.spec.driver, given.spec.pool.name), {}).get(given.metadata.name)
        return None if known is None else known.object

    def pool(self, pool_id: PoolId) -> DevicePool | None:
        known = self._pools.get(pool_id)
        if known is None and pool_id in self._slices:
            known = self._pools[pool_id] = DevicePool(pool_id, self._slices[pool_id].values())
        return known

    def pools_of(self, node: NodeInfo) -> tuple[ReachablePool, ...]:
        """Return the pools with devices for a node, in the order of their names."""
        assert node.node is not None
        known = self._views.get(node.name)
        if known is not None and known[0] == self.wide_layout and known[1] is node.node:
            return known[2]
        pool_ids = sorted({*self._pools_of_node.get(node.name, ()), *self._wide_pools})
        view = tuple(self._reachable_pools(pool_ids, node.node))
        if len(self._views) > 2 * self._state.node_count + 64:  # most are of nodes that are gone
            self._views.clear()
        self._views[node.name] = (self.wide_layout, node.node, view)
        return view

    def is_wide(self, pool_id: PoolId) -> bool:
        """Return whether some slice of a pool is not for one node."""
        return pool_id in self._wide_pools

    def local_devices(self, node_name: str) -> Iterator[ClaimableDevice]:
        """Yield the devices of slices that are for this node alone, whether or not the node is known."""
        for pool_id in self._pools_of_node.get(node_name, ()):
            pool = self.pool(pool_id)
            for each in pool.slices if pool is not None else ():
                if each.object.spec.node_name == node_name:
                    yield from each.devices

    def _reachable_pools(self, pool_ids: Iterable[PoolId], node: Node) -> Iterator[ReachablePool]:
        for pool_id in pool_ids:
            pool = self.pool(pool_id)
            found = pool.reachable(node) if pool is not None else None
            if found is not None:
                yield found

    def devices_changed(self, ids: Iterable[DeviceId]) -> None:
        """Note that devices were taken or freed."""
        for driver, pool, _ in ids:
            self._note_pool_changed((driver, pool), forget_views=False)
        self._notify()

    def _add(self, new: ResourceSlice) -> None:
        pool_id = (new.spec.driver, new.spec.pool.name)
        self._slices.setdefault(pool_id, {})[new.metadata.name] = _Slice(new)
        self._count(new, 1)
        self._pools.pop(pool_id, None)
        self._note_pool_changed(pool_id, forget_views=True)

    def _remove(self, old: ResourceSlice) -> None:
        pool_id = (old.spec.driver, old.spec.pool.name)
        held = self._slices.get(pool_id, {})
        known = held.get(old.metadata.name)
        if known is None:
            return
        self._note_pool_changed(pool_id, forget_views=True)
        del held[old.metadata.name]
        self._count(known.object, -1)
        self._pools.pop(pool_id, None)
        if not held:
            del self._slices[pool_id]

    def _count(self, given: ResourceSlice, change: int) -> None:
        pool_id = (given.spec.driver, given.spec.pool.name)
        node_name = given.spec.node_name
        counts = self._wide_pools if node_name is None else self._pools_of_node.setdefault(node_name, {})
        counts[pool_id] = counts.get(pool_id, 0) + change
        if not counts[pool_id]:
            del counts[pool_id]
        if node_name is not None and not counts:
            del self._pools_of_node[node_name]

    def _note_pool_changed(self, pool_id: PoolId, *, forget_views: bool) -> None:
        if pool_id in self._wide_pools:
            self.wide_version += 1
            self.wide_layout += forget_views
        names = {each.object.spec.node_name for each in self._slices.get(pool_id, {}).values()} - {None}
        for name in names:
            assert name is not None
            if forget_views:
                self._views.pop(name, None)
            self._touched.add(name)
            node = self._state.table.index.get(name)
            if node is not None:
                self._state.table.mark_changed(node.row)

    def _notify(self) -> None:
        """Tell the listeners which nodes have changed, after the change is complete."""
        touched, self._touched = self._touched, set()
        for name in touched:
            for listener in self.change_listeners:
                listener(name)


def counters_left(pool: DevicePool, taken: Iterable[ClaimableDevice]) -> dict[CounterId, Quantity]:
    """Return what a pool's counters have left after these devices of it took their part."""
    left = dict(pool.counters)
    for device in taken:
        for counter, amount in device.consumes:
            left[counter] = left.get(counter, ZERO) - amount
    return left
