"""Keep the objects that are named as this node and owned by it: check every few seconds, write only what changed.

They are its NodeResourceTopology and its Device. Their contents are built in
`koord.koordlet.reporters.builders.topology` and `koord.koordlet.reporters.builders.device`. Labels and annotations of
others on the Device stay.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.annotations.cpu_codecs import CPU_MANAGER_STATIC, CPUBasicInfo
from koord.api.koordinator.custom_kinds import DEVICES, NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.protocol import L_ENABLE_NUMA_RESERVATION
from koord.api.koordinator.scheduling import Device
from koord.api.koordinator.sigs_scheduling import NodeResourceTopology, Zone
from koord.api.kubernetes import pod_resources
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import decode_text, to_dict
from koord.host.devices import pci_location, rdma_cards, xpus
from koord.host.filesystem import Host
from koord.host.hardware import GpuInventory, RdmaCard, Xpu
from koord.host.io_error import IoError
from koord.koordlet.collect.node_resource import NodeHardwareInfo
from koord.koordlet.inputs.kubelet_client import KubeletApi, KubeletConfiguration, KubeletUnavailable
from koord.koordlet.inputs.machine import CpuManagerState
from koord.koordlet.inputs.node_inputs import KubeletCpuManager
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporters.builders.device import (
    MANAGED_ANNOTATIONS,
    MANAGED_LABELS,
    DeviceReport,
    build_device_report,
)
from koord.koordlet.reporters.builders.node_metric import ReportWithheld
from koord.koordlet.reporters.builders.topology import (
    KubeletResourcePolicy,
    NumaMemory,
    TopologyReport,
    TopologyView,
    build_topology,
    merged_zones,
)
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock
from koord.values.json_text import MalformedText

T = TypeVar("T", bound=Object)


class ObjectReporter(ABC, Generic[T]):
    """Run it in a task. `objects` follows the object named as this node."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        resource: Resource[T],
        objects: Informer[T],
        every_s: float,
        problem_log: ProblemLog,
    ) -> None:
        self._client = client
        self._clock = clock
        self._resource = resource
        self._objects = objects
        self._every_s = every_s
        self._health = problem_log

    @property
    def problem(self) -> str:
        return self._health.problem

    async def run(self) -> None:
        while True:
            await self.sync()
            await self._clock.sleep(self._every_s)

    @abstractmethod
    async def sync(self) -> None:
        """Build what is wanted, and publish it."""

    async def _publish(
        self, node: Node, new: Callable[[], dict[str, Any]], patch: Callable[[T], dict[str, Any]]
    ) -> None:
        """Create the object as `new` says, or apply the merge patch from the present one unless it is empty."""
        there = self._objects.get("", node.metadata.name)
        try:
            answer = await self._write(node.metadata.name, there, new() if there is None else patch(there))
        except TRANSIENT_ERRORS as failure:
            self._health.fails(failure)
            return
        if not isinstance(answer, ApiError):
            self._health.works()
        elif not (answer.conflict or answer.already_exists or answer.too_many):
            # Else somebody was faster, or the informer has not heard of our own write: the next sync knows more.
            self._health.fails(answer)

    async def _write(self, name: str, there: T | None, body: dict[str, Any]) -> T | ApiError | None:
        if there is None:
            return await self._client.create(self._resource, body)
        if not body:
            return None
        meta = there.metadata
        return await self._client.patch(
            self._resource, name, body, kind="merge", uid=meta.uid, resource_version=meta.resource_version
        )


def owned_metadata(node: Node, labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": node.metadata.name,
        "labels": dict(labels),
        "annotations": dict(annotations),
        "ownerReferences": [owner],
    }


_LOG = logging.getLogger(__name__)
_ASK_KUBELET_S, _ASK_AGAIN_S = 60.0, 10.0
_STATE_FILE = "cpu_manager_state"


class TopologyReporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Without `publish` the topology is only kept in `latest`."""

    every_s: float = 3.0
    publish: bool = True
    ask_kubelet: bool = True
    huge_pages: bool = False


class TopologyInputs(msgspec.Struct, frozen=True, kw_only=True):
    """TopologyInputs holds what is known now; `node` and `pods` are None until they were seen."""

    node: Node | None = None
    pods: tuple[PodMeta, ...] | None = None
    info: NodeHardwareInfo = NodeHardwareInfo()


class TopologyReporter(ObjectReporter[NodeResourceTopology]):
    """Reports the NodeResourceTopology of this node."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        host: Host,
        kubelet: KubeletApi,
        topologies: Informer[NodeResourceTopology],
        read_inputs: Callable[[], TopologyInputs],
        settings: TopologyReporterSettings = TopologyReporterSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        log = ProblemLog(
            _LOG,
            "the NodeResourceTopology is not kept",
            "the NodeResourceTopology is up to date",
            begins_unknown=True,
        )
        super().__init__(client, clock, NODE_RESOURCE_TOPOLOGIES, topologies, settings.every_s, log)
        self._host = host
        self._kubelet = kubelet
        self._read_inputs = read_inputs
        self._settings = settings
        self._kubelet_health = ProblemLog(
            _LOG,
            "the kubelet does not tell its configuration",
            "the kubelet's configuration is known",
            begins_unknown=True,
        )
        self._configuration: KubeletConfiguration | None = None
        self._asked_s: float | None = None
        self._based_on: tuple[Any, ...] = ()
        self.latest: TopologyReport | None = None
        self.kubelet = KubeletCpuManager(known=False)

    async def sync(self) -> None:
        """Build the topology when its inputs changed, and write the object when it differs."""
        seen = self._read_inputs()
        if seen.node is None or seen.pods is None:
            self._health.fails(f"the {'node' if seen.node is None else 'pods'} were not seen yet")
            return
        state = self._cpu_manager_state()
        policy = await self._kubelet_policy(state)
        if policy is not None and policy.cpu_manager == CPU_MANAGER_STATIC and state is None:
            self._health.fails(f"the kubelet binds CPUs, but its {_STATE_FILE} cannot be read")
            return
        if policy is None:
            self._health.fails("neither the kubelet nor its state file tells how it binds CPUs")
            return
        assigned = state.entries if state is not None and policy.cpu_manager == CPU_MANAGER_STATIC else {}
        self.kubelet = KubeletCpuManager(cpu_manager_policy=policy.cpu_manager, assigned=assigned)
        # Most looks find everything as it was: the same objects, the same text.
        based_on = (seen.node, seen.pods, seen.info, state, policy)
        if len(self._based_on) != len(based_on) or any(
            new is not old and new != old for new, old in zip(based_on, self._based_on, strict=True)
        ):
            built = build_topology(self._view(seen.node, seen.pods, seen.info, state or CpuManagerState(), policy))
            if isinstance(built, ReportWithheld):
                self._health.fails(built.why)
                return
            self.latest, self._based_on = built, based_on
        node, wanted = seen.node, self.latest
        if not self._settings.publish or wanted is None:
            self._health.works()
        elif not self._objects.has_synced:
            self._health.fails("the API server has not told yet whether there is one")
        else:
            await self._publish(node, lambda: new_topology(node, wanted), lambda there: topology_patch(wanted, there))

    # -- what it is built of

    def _cpu_manager_state(self) -> CpuManagerState | None:
        """Read the kubelet's cpu_manager_state; a kubelet that binds no CPUs may have no such file."""
        text = self._host.read(f"{self._host.paths.kubelet}/{_STATE_FILE}")
        if isinstance(text, IoError):
            return None
        found = decode_text(text, CpuManagerState)
        # An unreadable one is being replaced; a static kubelet without a readable file is handled below.
        return None if isinstance(found, MalformedText) else found

    async def _kubelet_policy(self, state: CpuManagerState | None) -> KubeletResourcePolicy | None:
        """Return the kubelet's policy from its configuration, else from its state file; None when neither tells it."""
        if not self._settings.ask_kubelet:
            return KubeletResourcePolicy(asked=False)
        now_s = self._clock.monotonic()
        every_s = _ASK_AGAIN_S if self._kubelet_health.problem else _ASK_KUBELET_S
        if self._asked_s is None or now_s - self._asked_s >= every_s:
            self._asked_s = now_s
            answer = await self._kubelet.configuration()
            if isinstance(answer, KubeletUnavailable):
                self._kubelet_health.fails(answer.why)
            else:
                self._configuration = answer
                self._kubelet_health.works()
        told = self._configuration
        if told is None:
            # Its state file says at least whether CPUs are bound, and to whom.
            return None if state is None or not state.policy else KubeletResourcePolicy(cpu_manager=state.policy)
        return KubeletResourcePolicy(
            cpu_manager=told.cpu_manager_policy,
            options=told.cpu_manager_policy_options,
            reserved_cpus=told.reserved_system_cpus,
            reserved=(told.system_reserved, told.kube_reserved),
            topology_manager=told.topology_manager_policy,
            scope=told.topology_manager_scope,
        )

    def _view(
        self,
        node: Node,
        pods: tuple[PodMeta, ...],
        info: NodeHardwareInfo,
        state: CpuManagerState,
        policy: KubeletResourcePolicy,
    ) -> TopologyView:
        model = info.model
        large = {one.node: one for one in info.huge_pages}
        return TopologyView(
            labels=node.metadata.labels,
            annotations=node.metadata.annotations or None,
            allocatable=pod_resources.resource_amounts(node.status.allocatable),
            processors=info.processors,
            basic=CPUBasicInfo(
                cpu_model=model.model,
                hyper_thread_enabled=model.hyper_threads,
                turbo_enabled=model.turbo,
                cat_l3_cbm_mask=model.cat_l3_mask,
                vendor_id=model.vendor,
            ),
            numa=tuple(
                NumaMemory(
                    number=one.id,
                    memory_bytes=one.total,
                    pages_2m=large[one.id].pages_2m if one.id in large else 0,
                    pages_1g=large[one.id].pages_1g if one.id in large else 0,
                )
                for one in info.numa_nodes
            ),
            kubelet=policy,
            cpu_state=state,
            pods=pods,
            huge_pages=self._settings.huge_pages,
        )


def topology_patch(wanted: TopologyReport, there: NodeResourceTopology) -> dict[str, Any]:
    """Return the merge patch from the present object to the wanted topology; empty when there is no difference."""
    patch: dict[str, Any] = {}
    texts = {
        name: text
        for name, text in wanted.annotations.items()
        if not _same_json(text, there.metadata.annotations.get(name))
    }
    labels: dict[str, str | None] = {
        name: text for name, text in wanted.labels.items() if there.metadata.labels.get(name) != text
    }
    if L_ENABLE_NUMA_RESERVATION in there.metadata.labels and L_ENABLE_NUMA_RESERVATION not in wanted.labels:
        labels[L_ENABLE_NUMA_RESERVATION] = None
    if texts or labels:
        patch["metadata"] = {key: part for key, part in (("annotations", texts), ("labels", labels)) if part}
    if wanted.policies != there.topology_policies:
        patch["topologyPolicies"] = list(wanted.policies)
    zones = merged_zones(wanted.zones, there.zones)
    if zones != there.zones:
        patch["zones"] = [_plain(zone) for zone in zones]
    return patch


def new_topology(node: Node, wanted: TopologyReport) -> dict[str, Any]:
    return {
        "metadata": owned_metadata(node, wanted.labels, wanted.annotations),
        "topologyPolicies": list(wanted.policies),
        "zones": [_plain(zone) for zone in wanted.zones],
    }


def _plain(zone: Zone) -> dict[str, Any]:
    return to_dict(zone)


def _same_json(one: str, other: str | None) -> bool:
    if other is None:
        return False
    if one == other:
        return True
    stored = decode_text(other, object)
    return not isinstance(stored, MalformedText) and decode_text(one, object) == stored


class DeviceReporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """DeviceReporterSettings says what the Device reporter reports. Accelerators are those that vendors'
    plugins describe in files.
    """

    every_s: float = 3.0
    accelerators: bool = False
    rdma: bool = False
    folder: str = "/var/run/koordlet/xpu-device-infos"

    @property
    def wanted(self) -> bool:
        return self.accelerators or self.rdma


class DeviceReporter(ObjectReporter[Device]):
    """Reports the Device of this node; `node` returns None until it was seen."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        host: Host,
        devices: Informer[Device],
        node: Callable[[], Node | None],
        settings: DeviceReporterSettings = DeviceReporterSettings(),  # noqa: B008 - a frozen value
        gpus: Callable[[], GpuInventory | None] = GpuInventory,
    ) -> None:
        """`gpus` returns the cards that the collector found; None until they are known."""
        log = ProblemLog(_LOG, "the Device is not kept", "the Device is up to date", begins_unknown=True)
        super().__init__(client, clock, DEVICES, devices, settings.every_s, log)
        self._host = host
        self._node = node
        self._settings = settings
        self._gpus = gpus
        self.latest: DeviceReport | None = None

    async def sync(self) -> None:
        node = self._node()
        if node is None or not self._objects.has_synced:
            self._health.fails("the node, or whether it has a Device, is not known yet")
            return
        found: list[Xpu] | IoError = xpus(self._host, self._settings.folder) if self._settings.accelerators else []
        cards: list[RdmaCard] | IoError = rdma_cards(self._host) if self._settings.rdma else []
        for io_error in (found, cards):
            if isinstance(io_error, IoError):
                # Half of the devices would look like all of them: pods would lose cards that still work.
                self._health.fails(str(io_error))
                return
        gpus = self._gpus()
        if gpus is None:
            self._health.fails("the cards of this machine were not listed yet")
            return
        there = self._objects.get("", node.metadata.name)
        before = () if there is None else there.spec.devices
        wanted = build_device_report(
            [] if isinstance(found, IoError) else found,
            [] if isinstance(cards, IoError) else cards,
            before,
            self._clock.time(),
            gpus,
            {card.uuid: pci_location(self._host, card.address) for card in gpus.cards},
        )
        self.latest = wanted
        await self._publish(node, lambda: new_device(node, wanted), lambda there: device_patch(wanted, there))


def device_patch(wanted: DeviceReport, there: Device) -> dict[str, Any]:
    """Return the merge patch from the present object to the wanted report; empty when there is no difference."""
    meta: dict[str, Any] = {}
    for part, mine, keys, theirs in (
        ("labels", wanted.labels, MANAGED_LABELS, there.metadata.labels),
        ("annotations", wanted.annotations, MANAGED_ANNOTATIONS, there.metadata.annotations),
    ):
        changed = {key: mine.get(key) for key in keys if mine.get(key) != theirs.get(key)}
        if changed:
            meta[part] = changed
    patch: dict[str, Any] = {"metadata": meta} if meta else {}
    if wanted.devices != there.spec.devices:
        patch["spec"] = {"devices": [to_dict(one) for one in wanted.devices]}
    return patch


def new_device(node: Node, wanted: DeviceReport) -> dict[str, Any]:
    return {
        "metadata": owned_metadata(node, wanted.labels, wanted.annotations),
        "spec": {"devices": [to_dict(one) for one in wanted.devices]},
    }
