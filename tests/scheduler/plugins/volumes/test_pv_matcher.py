"""Claims that wait for a node, and volumes and pools of every reach: many nodes at once get the answers of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUMES
from koord.api.kubernetes.volume import CSIStorageCapacity, PersistentVolume
from koord.api.model import convert
from koord.policy.node_match import NodeTerms
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.volumes.pv_matcher import storage_quantity
from koord.scheduler.plugins.volumes.volume_binding import VolumeBinding
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import check_columns_match_definition
from tests.scheduler.plugins.volumes.volume_objects import (
    ObjectHandle,
    make_claim,
    make_class,
    make_driver,
    make_volume,
    volumes,
)

HOST, ZONE = "kubernetes.io/hostname", "zone"
LABELS: tuple[Mapping[str, str], ...] = (
    {HOST: "n0", ZONE: "a"},
    {HOST: "n1", ZONE: "b"},
    {HOST: "n2", ZONE: ""},
    {HOST: "n3"},
    {ZONE: "a"},
)
SIZES = ("1Gi", "2Gi", "1024Mi", "5Gi")

conditions: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        dict,
        key=st.just(HOST),
        operator=st.just("In"),
        values=st.lists(st.sampled_from(["n0", "n1", "n2"]), min_size=1),
    ),
    st.builds(
        dict,
        key=st.just(ZONE),
        operator=st.sampled_from(["In", "NotIn"]),
        values=st.lists(st.sampled_from(["a", "b", ""]), min_size=1),
    ),
    st.builds(dict, key=st.just(ZONE), operator=st.sampled_from(["Exists", "DoesNotExist"])),
    st.just({"key": ZONE, "operator": "Gt", "values": ["many"]}),
)
fields = st.just({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})
terms: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(dict, matchExpressions=st.lists(conditions, max_size=2)), fields
)


@st.composite
def some_volume(draw: st.DrawFn) -> PersistentVolume:
    near = {"required": {"nodeSelectorTerms": draw(st.lists(terms, min_size=1, max_size=2))}}
    made = make_volume(
        draw(st.sampled_from(["v0", "v1", "v2", "v3", "v4"])),
        size=draw(st.sampled_from(SIZES)),
        storage_class=draw(st.sampled_from(["static", "static", "slow"])),
        phase=draw(st.sampled_from(["Available", "Available", "Released"])),
        nodeAffinity=draw(st.sampled_from([None, near])),
    )
    if draw(st.booleans()) and draw(st.booleans()):
        ref = {"namespace": "default", "name": draw(st.sampled_from(["c0", "other"]))}
        plain = msgspec.to_builtins(made)
        plain["spec"]["claimRef"] = ref
        made = convert(plain, PersistentVolume)
    return made


@st.composite
def pools(draw: st.DrawFn) -> CSIStorageCapacity:
    near = draw(
        st.sampled_from(
            [
                None,
                {},
                {"matchLabels": {HOST: "n0"}},
                {"matchLabels": {HOST: "n1", ZONE: "b"}},
                {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["a"]}]},
                {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]},
            ]
        )
    )
    meta = {"name": draw(st.sampled_from(["p0", "p1"])), "namespace": "default"}
    pool = {"metadata": meta, "storageClassName": "pooled", "capacity": draw(st.sampled_from(SIZES))}
    return convert({**pool, "nodeTopology": near}, CSIStorageCapacity)


changes = st.lists(st.one_of(some_volume(), pools(), st.sampled_from(["v0", "v1", "v2"])), max_size=9)
wanted = st.lists(
    st.tuples(
        st.sampled_from(["static", "static", "slow", "near", "pooled", "missing"]),
        st.sampled_from(SIZES),
        st.sampled_from([None, None, None, "n1", "gone"]),
    ),
    min_size=1,
    max_size=3,
)


def stage(
    written: list[Any], claims: list[tuple[str, str, str | None]]
) -> tuple[ClusterState, ObjectHandle, VolumeBinding]:
    state = make_state([make_node(f"n{i}", labels=labels) for i, labels in enumerate(LABELS)])
    handle = ObjectHandle(
        state,
        make_class("static", provisioner="kubernetes.io/no-provisioner"),
        make_class("slow"),
        make_class("near", topologies=[{ZONE: ["a", ""]}, {ZONE: ["b"], HOST: ["n1", "n9"]}]),
        make_class("pooled", provisioner="pools.example.com"),
        make_driver("pools.example.com"),
    )
    plugin = VolumeBinding(None, handle)  # made first, so that it hears of everything one by one
    for each in written:
        if isinstance(each, str):
            handle.drop(PERSISTENT_VOLUMES, each)
        else:
            handle.put(each)
    for i, (storage_class, size, near) in enumerate(claims):
        annotations = {} if near is None else {"volume.kubernetes.io/selected-node": near}
        handle.put(make_claim(f"c{i}", storage_class=storage_class, size=size, annotations=annotations))
    return state, handle, plugin


@settings(deadline=None, max_examples=300)
@given(changes, wanted, st.lists(st.integers(0, 9), max_size=4))
def test_columns_say_what_is_said_of_each_node(
    written: list[Any], claims: list[tuple[str, str, str | None]], rows: list[int]
) -> None:
    state, _, plugin = stage(written, claims)
    pod = make_pod(volumes=volumes(*(f"c{i}" for i in range(len(claims)))))
    check_columns_match_definition(plugin, state, state.pod_info(pod), rows)


@settings(deadline=None, max_examples=200)
@given(changes, st.sampled_from(SIZES))
def test_the_volume_picked_is_the_smallest_in_reach(written: list[Any], size: str) -> None:
    state, handle, plugin = stage(written, [("static", size, None)])
    pod = state.pod_info(make_pod(volumes=volumes("c0")))
    held = handle.lister(PERSISTENT_VOLUMES).list()
    suits = [v for v in held if v.spec.storage_class_name == "static"]
    suits = [v for v in suits if storage_quantity(v.spec.capacity) >= storage_quantity({"storage": size})]
    mine = [v for v in suits if v.spec.claim_ref is not None and v.spec.claim_ref.name == "c0"]
    free = [v for v in suits if v.spec.claim_ref is None and v.status.phase == "Available"]
    for name, node in state.table.index.items():
        cycle = CycleState(state)
        plugin.pre_filter(cycle, pod)
        answer = plugin.reserve(cycle, pod, node)
        work = plugin.pre_bind(cycle, pod, name)
        chosen = [] if work is None else [write.name for write in work.writes]
        plugin.unreserve(cycle, pod, name)
        assert node.node is not None
        reached = [
            v
            for v in free
            if v.spec.node_affinity is None or NodeTerms(v.spec.node_affinity.required).matches(node.node)
        ]
        if mine:
            assert isinstance(answer, Reject) or chosen[0] in {v.metadata.name for v in mine}
        else:
            ordered = sorted(reached, key=lambda v: (storage_quantity(v.spec.capacity), v.metadata.name))
            assert chosen == [v.metadata.name for v in ordered[:1]]
            assert isinstance(answer, Reject) == (not ordered)


def test_a_claim_that_a_pod_names_twice_needs_one_volume() -> None:
    volume = make_volume("v0", storage_class="static")
    state, _, plugin = stage([volume, make_volume("v1", storage_class="static")], [("static", "1Gi", None)])
    pod = state.pod_info(make_pod(volumes=volumes("c0", "c0")))
    cycle, node = CycleState(state), state.table.index["n0"]
    assert plugin.pre_filter(cycle, pod) is None
    assert plugin.reserve(cycle, pod, node) is None
    work = plugin.pre_bind(cycle, pod, "n0")
    assert work is not None
    assert [write.name for write in work.writes] == ["v0"]
