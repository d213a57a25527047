"""Keep this node's NodeResourceTopology up to date: check every few seconds, write only what changed.

The content is built in `koord.koordlet.reporters.builders.topology`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.annotations.cpu_codecs import CPU_MANAGER_STATIC, CPUBasicInfo
from koord.api.koordinator.custom_kinds import NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.protocol import L_ENABLE_NUMA_RESERVATION
from koord.api.koordinator.sigs_scheduling import NodeResourceTopology, Zone
from koord.api.kubernetes import pod_resources
from koord.api.kubernetes.node import Node
from koord.api.model import decode_text, to_dict
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.collect.node_resource import NodeHardwareInfo
from koord.koordlet.inputs.kubelet_client import KubeletApi, KubeletConfiguration, KubeletUnavailable
from koord.koordlet.inputs.machine import CpuManagerState
from koord.koordlet.inputs.node_inputs import KubeletCpuManager
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporters.builders.node_metric import ReportWithheld
from koord.koordlet.reporters.builders.topology import (
    KubeletResourcePolicy,
    NumaMemory,
    TopologyReport,
    TopologyView,
    build_topology,
    merged_zones,
)
from koord.koordlet.reporters.object_reporter import ObjectReporter, owned_metadata
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.telemetry.clock import Clock
from koord.values.json_text import MalformedText

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
