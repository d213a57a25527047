"""Map the network between the nodes, rank nodes by proximity, and plan the nodes of a whole gang.

The tree is kept until the topology labels of a node change. Domains are chosen in `network_topology`; the planner
finds how many members fit each node, by dry runs with the filters of the profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import msgspec
import numpy as np

from koord.api.annotations.gang_codecs import NetworkTopologySpec, network_topology_selector
from koord.api.koordinator.custom_kinds import CLUSTER_NETWORK_TOPOLOGIES
from koord.api.koordinator.scheduling import ClusterNetworkTopologySpec
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Ints, NodeTable, RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.dry_run import DryRuns
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.plugins.coscheduling import network_topology
from koord.scheduler.plugins.coscheduling.node_capacity import GroupTrial, NodeCapacity, RejectedMember, run_pre_filters

CLUSTER_TOPOLOGY_NAME = "default"  # of the one ClusterNetworkTopology that counts


class NetworkMap:
    def __init__(self, handle: Handle) -> None:
        self.topologies = handle.lister(CLUSTER_NETWORK_TOPOLOGIES)
        self._state = handle.state
        self.topologies.on_change(lambda _old, _new: handle.state.invalidate_prefilter())
        self._built_from: tuple[ClusterNetworkTopologySpec, int] | None = None  # with the layout of the table
        self._position = -1
        self._labels: dict[int, Mapping[str, str]] = {}  # by row, as the tree knows them
        self._tree: network_topology.NetworkTreeNode | network_topology.InvalidNetworkTopology | None = None
        self.leaves: list[tuple[int, network_topology.NetworkTreeNode]] = []  # by row
        # The same in columns: per leaf its row, its place by name, and the number of its domain in each layer upwards.
        self.rows: RowList = np.zeros(0, np.intp)
        self.order: Ints = np.zeros(0, np.int64)
        self.domains: tuple[RowList, ...] = ()

    @property
    def declared(self) -> ClusterNetworkTopologySpec | None:
        topology = self.topologies.get("", CLUSTER_TOPOLOGY_NAME)
        return topology.spec if topology is not None else None

    def tree(self) -> network_topology.NetworkTreeNode | network_topology.InvalidNetworkTopology | None:
        """Return the tree; None when no topology is declared. The counts on its leaves are the last caller's."""
        declared = self.declared
        if declared is None:
            return None
        of = (declared, self._state.table.layout)
        if of != self._built_from or self._have_labels_changed():
            self._built_from = of
            self._labels = {node.row: node.labels or {} for node in self._state.nodes() if node.node}
            named = ((n.name, self._labels[n.row]) for n in self._state.nodes() if n.node)
            self._tree = network_topology.build_network_tree(declared, named)
            index = self._state.table.index
            leaves = self._tree.leaves() if isinstance(self._tree, network_topology.NetworkTreeNode) else ()
            self.leaves = [(index[leaf.name].row, leaf) for leaf in leaves]
            self._build_columns()
        self._position = self._state.table.node_changes.position
        return self._tree

    def _build_columns(self) -> None:
        self.rows = np.asarray([row for row, _ in self.leaves], np.intp)
        by_name = sorted(range(len(self.leaves)), key=lambda i: self.leaves[i][1].name)
        self.order = np.zeros(len(by_name), np.int64)
        self.order[by_name] = np.arange(len(by_name))
        layers: list[RowList] = []
        places = [leaf.parent for _, leaf in self.leaves]
        while places and places[0] is not None:
            numbers: dict[int, int] = {}
            layers.append(np.asarray([numbers.setdefault(id(place), len(numbers)) for place in places], np.intp))
            places = [place.parent if place is not None else None for place in places]
        self.domains = tuple(layers)

    def _have_labels_changed(self) -> bool:
        """Return whether the labels of a node changed: nodes change all the time, where they are hardly ever."""
        table = self._state.table
        changed = table.node_changes.since(self._position)
        if changed is None:
            return True
        for row in changed:
            node = table.nodes[row]
            labels = node.labels or {} if node is not None and node.node is not None else None
            if self._labels.get(row) != labels:
                return True
        return False


def count_selector_pods(table: NodeTable, kind: str) -> dict[int, int]:
    """Return the number of pods with this selector by row, where there are any; only changed nodes are recounted."""
    counts = table.column("network topology selectors", object, _selector_counts)
    return {row: found[kind] for row, found in enumerate(counts.tolist()) if found and kind in found}


def _selector_counts(node: NodeInfo) -> dict[str, int] | None:
    found = Counter(kind for pod in node.pods.values() if (kind := network_topology_selector(pod.annotations)))
    return dict(found) if found else None


def proximity_ranks(network: NetworkMap, table: NodeTable, kind: str, feasible: RowList) -> Ints:
    """Return each feasible row's rank by proximity.

    Rows are ordered by the pods with the selector on the node, then in each domain upwards; then by the fewest
    feasible nodes; then by name. Nodes outside the network come last.
    """
    rows, domains = network.rows, network.domains
    fits = np.zeros(table.size, np.bool_)
    fits[feasible] = True
    offer = fits[rows].astype(np.int64)
    existing = np.zeros(table.size, np.int64)
    for row, count in count_selector_pods(table, kind).items():
        existing[row] = count
    there = existing[rows]
    offers, counts = [offer], [there]
    for domain in domains:
        offers.append(np.bincount(domain, offer).astype(np.int64)[domain])
        counts.append(np.bincount(domain, there).astype(np.int64)[domain])
    # The last key counts most.
    keys = [network.order, *reversed(offers), *(-count for count in reversed(counts))]
    line = np.lexsort(keys)
    line = line[offer[line] == 1]
    found = np.full(table.size, len(line), np.int64)
    found[rows[line]] = np.arange(len(line))
    return found


class GangShortage(msgspec.Struct, frozen=True):
    """The reason that there is no plan, and the members that nodes reject."""

    answer: Reject
    members: tuple[RejectedMember, ...]


class NetworkPlanner:
    def __init__(self, handle: Handle) -> None:
        self.profile: SchedulerProfile | None = None
        self._state = handle.state
        self.network = NetworkMap(handle)

    def plan_nodes(
        self, pods: Sequence[PodInfo], topology_spec: NetworkTopologySpec
    ) -> dict[str, str] | GangShortage | Reject | Fault:
        """Return the node of each pod by uid, or why there is none for all of them."""
        tree = self.network.tree()
        if tree is None:
            return unresolvable("no cluster network topology")
        if isinstance(tree, network_topology.InvalidNetworkTopology):
            return unresolvable(tree.why)
        if not pods:
            return Fault("no pending pods")
        assert self.profile is not None
        trials = run_pre_filters(self.profile, self._state, pods)
        if isinstance(trials, RejectedMember):
            if not isinstance(trials.answer, Reject):
                return trials.answer or Fault("no planned pods")
            return GangShortage(msgspec.structs.replace(trials.answer, blames=trials.plugins), (trials,))
        capacity = NodeCapacity(self.profile, trials, pods, self._state.table, self._trial_factory(trials))
        rejected: list[RejectedMember] = []

        def unfit() -> str:
            reasons, members = capacity.count_rejections(np.asarray([row for row, _ in self.network.leaves], np.intp))
            rejected.extend(members)
            listed = sorted(f"{count} {reason}" for reason, count in reasons.items())
            return f"0/{self._state.node_count} nodes are available: {', '.join(listed)}."

        found = self.place_members(pods, topology_spec, capacity, unfit)
        if isinstance(found, str):
            blames = tuple(sorted({plugin for member in rejected for plugin in member.plugins}))
            return GangShortage(Reject((found,), blames=blames), tuple(rejected))
        return {pod.uid: node for pod, node in found}

    def place_members(
        self,
        pods: Sequence[PodInfo],
        topology_spec: NetworkTopologySpec,
        capacity: NodeCapacity,
        unfit: Callable[[], str],
        scores: Mapping[int, int] | None = None,
    ) -> list[tuple[PodInfo, str]] | str:
        """Return each pod with its node, or why there is none for all. `scores` are by row; greater is better."""
        tree = self.network.tree()
        assert isinstance(tree, network_topology.NetworkTreeNode)
        kind = network_topology_selector(pods[0].annotations)
        existing = count_selector_pods(self._state.table, kind) if kind else {}
        counts = capacity.count.tolist()
        for row, leaf in self.network.leaves:
            leaf.offer_slots, leaf.existing_pods = counts[row], existing.get(row, 0)
            leaf.score = scores.get(row, 0) if scores is not None else 0
        found = network_topology.plan_placement(tree, topology_spec, len(pods))
        if found is None:
            return self._place_individually(tree, pods, topology_spec, capacity) or network_topology.describe_shortage(
                tree, topology_spec, len(pods), unfit()
            )
        nodes = (node for node, count in found for _ in range(count))
        return list(zip(sorted(pods, key=lambda pod: pod.name), nodes, strict=True))

    def _place_individually(
        self,
        tree: network_topology.NetworkTreeNode,
        pods: Sequence[PodInfo],
        topology_spec: NetworkTopologySpec,
        capacity: NodeCapacity,
    ) -> list[tuple[PodInfo, str]] | None:
        """Place members that have reservations of their own, which the number of slots of a node does not show.

        Those that need one come first, then those with the fewest, each where its own is; the others fill the nodes.
        """
        reserved = {pod.uid: capacity.class_of(pod).rows_with_reservations for pod in pods}
        if not any(rows.any() for rows in reserved.values()):
            return None
        order = sorted(
            pods,
            key=lambda pod: (
                not capacity.class_of(pod).needs_reservation,
                int(reserved[pod.uid].sum()) or len(reserved[pod.uid]),
            ),
        )
        index, nodes = self._state.table.index, self._state.table.nodes
        for domain in sorted(
            network_topology.gathering_domains(tree, topology_spec),
            key=lambda place: network_topology.domain_rank(place, tight=True),
        ):
            leaves = sorted(domain.leaves(), key=lambda leaf: network_topology.domain_rank(leaf, tight=False))
            rows = [index[leaf.name].row for leaf in leaves]
            trials: dict[int, GroupTrial] = {}
            found: list[tuple[PodInfo, str]] = []
            for pod in order:
                for row in sorted(rows, key=lambda row: not reserved[pod.uid][row]):
                    node = nodes[row]
                    if node is None or not capacity.may_take(pod, row):
                        continue
                    trial = trials.get(row) or trials.setdefault(row, capacity.new_trial(node))
                    if trial.run_filters(pod) is None:
                        trial.add(pod)
                        found.append((pod, node.name))
                        break
                else:
                    break
            counts = Counter(name for _, name in found)
            if len(found) == len(pods) and network_topology.holds_multiples(
                domain, counts, network_topology.pod_count_multiples(topology_spec)
            ):
                return found
        return None

    def _trial_factory(self, trials: Mapping[Hashable, DryRuns]) -> Callable[[NodeInfo], GroupTrial]:
        profile = self.profile
        assert profile is not None
        return lambda node: GroupTrial(profile, node, trials)
