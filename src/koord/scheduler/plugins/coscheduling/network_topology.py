"""The network topology of nodes as a tree, and the placement of a gang in it so that its pods are near each other.

It knows nothing of pods but how many fit each node (offer slots), how many of the same kind exist there, and a score.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koord.api.annotations.gang_codecs import MUST_GATHER, NetworkTopologySpec
from koord.api.koordinator.scheduling import ClusterNetworkTopologySpec, TopologyDetail, TopologyInfo

ROOT, LEAF = "ClusterTopologyLayer", "NodeTopologyLayer"


class NetworkTreeNode:
    """A node of the network tree: a cluster node or a domain of them."""

    __slots__ = ("children", "existing_pods", "layer", "name", "offer_slots", "parent", "score")

    def __init__(self, layer: str, name: str, parent: NetworkTreeNode | None) -> None:
        self.layer = layer
        self.name = name
        self.parent = parent
        self.children: dict[str, NetworkTreeNode] = {}
        self.offer_slots = self.existing_pods = self.score = 0

    def leaves(self) -> Iterator[NetworkTreeNode]:
        if self.layer == LEAF:
            yield self
        for child in self.children.values():
            yield from child.leaves()

    def walk(self) -> Iterator[NetworkTreeNode]:
        """Yield domains before what is in them, by name."""
        yield self
        for name in sorted(self.children):
            yield from self.children[name].walk()

    def at_layer(self, layer: str) -> Iterator[NetworkTreeNode]:
        """Yield all nodes of one layer below this one, by name."""
        if self.layer == layer:
            yield self
            return
        for name in sorted(self.children):
            yield from self.children[name].at_layer(layer)

    def layer_depths(self) -> dict[str, int]:
        """Return the depth of each layer. Every path down passes the same layers."""
        found, place = {self.layer: 0}, self
        while place.children:
            place = next(iter(place.children.values()))
            found[place.layer] = len(found)
        return found

    def ancestors(self) -> Iterator[NetworkTreeNode]:
        place: NetworkTreeNode | None = self
        while place is not None:
            yield place
            place = place.parent


class InvalidNetworkTopology(msgspec.Struct, frozen=True):
    """The reason why no tree can be built of the declared layers."""

    why: str


def topology_layers(spec: ClusterNetworkTopologySpec) -> list[tuple[str, tuple[str, ...]]] | InvalidNetworkTopology:
    """Return the layers from the outermost domain to the one right above nodes, each with the labels that name it."""
    declared = {layer.topology_layer: layer for layer in spec.network_topology_spec}
    chain: list[tuple[str, tuple[str, ...]]] = []
    at = LEAF
    while True:
        layer = declared.get(at)
        if layer is None:
            return InvalidNetworkTopology(f'topology layer "{at}" not found in spec')
        at = layer.parent_topology_layer
        if at in ("", ROOT):
            return chain[::-1]
        if any(at == known for known, _ in chain):
            return InvalidNetworkTopology(f'topology layer "{at}" is above itself')
        chain.append((at, declared[at].label_key if at in declared else ()))


def build_network_tree(
    spec: ClusterNetworkTopologySpec, nodes: Iterable[tuple[str, Mapping[str, str]]]
) -> NetworkTreeNode | InvalidNetworkTopology:
    """Build the tree from nodes and their labels, without nodes that do not state a domain above their nearest one."""
    layers = topology_layers(spec)
    if isinstance(layers, InvalidNetworkTopology):
        return layers
    root = NetworkTreeNode(ROOT, "", None)
    for name, labels in nodes:
        values = [next((v for key in keys if (v := labels.get(key))), "") for _, keys in layers]
        if values and not values[-1]:
            values[-1] = name  # a domain of its own
        if not all(values):
            continue
        place = root
        for (layer, _), value in zip(layers, values, strict=True):
            place = place.children.setdefault(value, NetworkTreeNode(layer, value, place))
        place.children[name] = NetworkTreeNode(LEAF, name, place)
    return root


def topology_details(root: NetworkTreeNode) -> tuple[TopologyDetail, ...]:
    """Return the tree as a ClusterNetworkTopology's status shows it."""
    found = []
    for place in root.walk():
        if place.layer == LEAF:
            continue
        below = next(iter(place.children.values()), None)
        parent = place.parent
        found.append(
            TopologyDetail(
                topology_info=TopologyInfo(topology_layer=place.layer, topology_name=place.name),
                parent_topology_info=None
                if parent is None
                else TopologyInfo(topology_layer=parent.layer, topology_name=parent.name),
                child_topology_layer=below.layer if below is not None else "",
                child_topology_names=() if below is None or below.layer == LEAF else tuple(sorted(place.children)),
                node_num=sum(1 for _ in place.leaves()),
            )
        )
    return tuple(found)


# Where a gang goes -----------------------------------------------------------------------------------------------


def pod_count_multiples(topology_spec: NetworkTopologySpec) -> dict[str, int]:
    """Return, by layer, the multiples in which pods come there."""
    return {
        rule.layer: rule.pod_count_multiple for rule in topology_spec.gather_strategy if rule.pod_count_multiple > 1
    }


def aggregate_offers(place: NetworkTreeNode, multiples: Mapping[str, int]) -> None:
    """Aggregate the offer slots of domains from their nodes, rounded down where pods must come in multiples."""
    if place.layer != LEAF:
        place.offer_slots = place.existing_pods = place.score = 0
        for child in place.children.values():
            aggregate_offers(child, multiples)
            place.offer_slots += child.offer_slots
            place.existing_pods += child.existing_pods
            place.score += child.score
    place.offer_slots -= place.offer_slots % multiples.get(place.layer, 1)


def candidate_domains(root: NetworkTreeNode, topology_spec: NetworkTopologySpec, desired: int) -> list[NetworkTreeNode]:
    """Return domains that could take all pods, the best first: the smallest kind that can, within what must gather."""
    must = [rule.layer for rule in topology_spec.gather_strategy if rule.strategy == MUST_GATHER]
    depths = root.layer_depths()
    if any(layer not in depths for layer in must):
        return []
    layer = max(must, key=depths.__getitem__, default=ROOT)
    level = [place for place in root.at_layer(layer) if place.offer_slots >= desired]
    best = level
    while level:
        best = level
        level = [c for place in level for c in place.children.values() if c.offer_slots >= desired]
    return sorted(best, key=lambda place: _domain_rank(place, tight=True))


def distribute_pods(place: NetworkTreeNode, desired: int, multiples: Mapping[str, int]) -> list[tuple[str, int]]:
    """Distribute pods over the nodes of a domain, the fullest first. The sum may be less than desired."""
    share = min(place.offer_slots, desired)
    share -= share % multiples.get(place.layer, 1)
    if place.layer == LEAF:
        return [(place.name, share)]
    found: list[tuple[str, int]] = []
    for child in sorted(place.children.values(), key=lambda child: _domain_rank(child, tight=False)):
        part = distribute_pods(child, share, multiples)
        share -= sum(count for _, count in part)
        found += part
    return found


def plan_placement(
    root: NetworkTreeNode, topology_spec: NetworkTopologySpec, desired: int
) -> list[tuple[str, int]] | None:
    """Plan how many pods each node takes, from slots, existing pods and scores of the leaves; None: not possible."""
    multiples = pod_count_multiples(topology_spec)
    aggregate_offers(root, multiples)
    for candidate in candidate_domains(root, topology_spec, desired):
        found = [(name, count) for name, count in distribute_pods(candidate, desired, multiples) if count]
        if sum(count for _, count in found) >= desired:
            return found
    return None


def describe_shortage(root: NetworkTreeNode, topology_spec: NetworkTopologySpec, desired: int, unfit: str) -> str:
    """Describe why there is no plan, with what each domain that must gather could take."""
    must = [rule.layer for rule in topology_spec.gather_strategy if rule.strategy == MUST_GATHER]
    depths = root.layer_depths()
    layer = max((each for each in must if each in depths), key=depths.__getitem__, default=ROOT)
    offers = ";".join(
        f"topology topologyNode {place.layer}/{place.name}: {place.offer_slots}" for place in root.at_layer(layer)
    )
    multiples = ", ".join(f"{name}={count}" for name, count in pod_count_multiples(topology_spec).items())
    told = f"no candidate topology nodes can accommodate job, desiredOfferSlot: {desired}, {offers}, {unfit}"
    return told + (f"; podCountMultiple constraints: {multiples}" if multiples else "")


def _domain_rank(place: NetworkTreeNode, *, tight: bool) -> tuple[tuple[int, ...], tuple[int, ...], int, str]:
    """Return the sort key: more of the same kind here and around, then a tight (or roomy) fit, score and name."""
    around = tuple(place.ancestors())
    sign = 1 if tight else -1
    return (
        tuple(-p.existing_pods for p in around),
        tuple(sign * p.offer_slots for p in around),
        -place.score,
        place.name,
    )
