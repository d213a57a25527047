"""The volume plugins in their usual order: what a kube-scheduler 1.35 was heard to say, and what must be kept right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.decision import Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.plugins.volumes.volume_binding import VolumeBinding
from tests.scheduler.builders import ZONE, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import check_columns_match_definition, profile_of
from tests.scheduler.plugins.volumes.volume_objects import (
    ObjectHandle,
    make_attachment,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_volume,
    told,
    volumes,
)

LIMITED = "lim.example.com"
DISK = [{"name": "d", "gcePersistentDisk": {"pdName": "d"}}]
EPHEMERAL = [{"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}]


def plugins(handle: ObjectHandle) -> list[Plugin]:
    names = ("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone")
    return [REGISTRY[name](None, handle) for name in names]


def heard() -> tuple[ClusterState, ObjectHandle]:
    """The cluster that the real scheduler was asked about."""
    state = make_state(make_node(name, labels={ZONE: "a"}) for name in ("n0", "n1"))
    held = {"held0": volumes("l0"), "held1": volumes("l1"), "user": volumes("rwop"), "disk0": DISK, "disk1": DISK}
    for name, mounted in held.items():
        state.set_pod(make_pod(name, node="n1" if name.endswith("1") else "n0", volumes=mounted))
    handle = ObjectHandle(
        state,
        *(make_csi_node(name, lim_example_com=1) for name in ("n0", "n1")),
        *(make_class("slow"), make_class("cap", provisioner="cap.example.com"), make_class("now", waits=False)),
        make_class("top", provisioner="top.example.com", topologies=[{ZONE: ["b"]}]),
        make_driver("cap.example.com"),
        *(make_volume("pvfar", on=["n9"]), make_volume("pvzone", labels={ZONE: "b"}), make_volume("rwop")),
        *(make_volume(name, driver=LIMITED) for name in ("l0", "l1", "l2")),
        *(make_claim("far", volume="pvfar"), make_claim("zone", volume="pvzone"), make_claim("gone", volume="nopv")),
        *(make_claim(name, volume=name) for name in ("l0", "l1", "l2")),
        make_claim("rwop", volume="rwop", modes=["ReadWriteOncePod"]),
        *(make_claim("imm", storage_class="now"), make_claim("none", storage_class="")),
        *(make_claim(name, storage_class=name) for name in ("cap", "top")),
        make_claim("foreign-e", storage_class="slow"),
    )
    return state, handle


@pytest.mark.parametrize(
    ("name", "mounted", "message"),
    [
        pytest.param("missing", volumes("nope"), 'persistentvolumeclaim "nope" not found.', id="missing"),
        pytest.param("far", volumes("far"), "2 node(s) didn't match PersistentVolume's node affinity.", id="far"),
        pytest.param("zone", volumes("zone"), "2 node(s) had no available volume zone.", id="zone"),
        pytest.param("gone", volumes("gone"), 'persistentvolume "nopv" not found.', id="gone"),
        pytest.param("immediate", volumes("imm"), "pod has unbound immediate PersistentVolumeClaims.", id="immediate"),
        pytest.param("none", volumes("none"), "pod has unbound immediate PersistentVolumeClaims.", id="none"),
        pytest.param("capacity", volumes("cap"), "2 node(s) did not have enough free storage.", id="capacity"),
        pytest.param(
            "topology", volumes("top"), "2 node(s) didn't find available persistent volumes to bind.", id="topology"
        ),
        pytest.param("limit", volumes("l2"), "2 node(s) exceed max volume count.", id="limit"),
        pytest.param(
            "exclusive",
            volumes("rwop"),
            "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use "
            "by another pod.",
            id="exclusive",
        ),
        pytest.param("disk", DISK, "2 node(s) had no available disk.", id="disk"),
        pytest.param(
            "own",
            EPHEMERAL,
            'waiting for ephemeral volume controller to create the persistentvolumeclaim "own-e".',
            id="own",
        ),
        pytest.param(
            "foreign",
            EPHEMERAL,
            "PVC default/foreign-e was not created for pod default/foreign (pod is not owner).",
            id="foreign",
        ),
        pytest.param(
            "both",
            volumes("far", "cap"),
            "2 node(s) did not have enough free storage, 2 node(s) didn't match PersistentVolume's node affinity.",
            id="both",
        ),
    ],
)
def test_messages(name: str, mounted: list[dict[str, Any]], message: str) -> None:
    state, handle = heard()
    decision = (
        SchedulingEngine(profile_of(plugins(handle)), state)
        .decide(state.pod_info(make_pod(name, volumes=mounted)))
        .decision
    )
    assert isinstance(decision, Unschedulable)
    assert decision.message() == f"0/2 nodes are available: {message}"


# Kept and made anew ------------------------------------------------------------------------------------------------

CLAIMS, VOLUMES, NODES = ("c0", "c1", "c2"), ("pv0", "pv1", "pv2"), ("n0", "n1")


@st.composite
def objects(draw: st.DrawFn) -> Any:
    """Something that is written: a claim, a volume, a class, a limit or an attachment."""
    kind = draw(st.sampled_from(("claim", "claim", "volume", "volume", "class", "limit", "attachment")))
    if kind == "claim":
        bound = draw(st.sampled_from(("", *VOLUMES)))
        mode = draw(st.sampled_from(("ReadWriteOnce", "ReadWriteOncePod")))
        picked = draw(st.sampled_from(("slow", "now")))
        return make_claim(draw(st.sampled_from(CLAIMS)), volume=bound, modes=[mode], storage_class=picked)
    if kind == "volume":
        labels = {ZONE: draw(st.sampled_from("ab"))} if draw(st.booleans()) else {}
        near = draw(st.sampled_from(((), ("n0",), ("n1",))))
        driver = draw(st.sampled_from(("", LIMITED)))
        name = draw(st.sampled_from(VOLUMES))
        return make_volume(name, labels=labels, on=near, driver=driver, storage_class="slow")
    if kind == "class":
        return make_class("slow", topologies=[{ZONE: [draw(st.sampled_from("ab"))]}], provisioner=LIMITED)
    node = draw(st.sampled_from(NODES))
    if kind == "limit":
        return make_csi_node(node, lim_example_com=draw(st.sampled_from((None, 0, 1, 2))))
    return make_attachment(f"va-{node}", node=node, volume=draw(st.sampled_from(VOLUMES)), driver=LIMITED)


placements = st.tuples(st.sampled_from(NODES), st.sampled_from(CLAIMS), st.booleans())


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(objects(), placements), max_size=10))
def test_verdicts_that_are_kept_are_those_that_are_worked_out_anew(steps: list[Any]) -> None:
    state = make_state([make_node("n0", labels={ZONE: "a"}), make_node("n1", labels={ZONE: "b"})])
    handle = ObjectHandle(
        state,
        *(make_class("slow", provisioner=LIMITED), make_class("now", waits=False)),
        *(make_claim(claim, volume=name, storage_class="slow") for claim, name in zip(CLAIMS, VOLUMES, strict=True)),
        *(make_volume(name, driver=LIMITED, storage_class="slow") for name in VOLUMES),
        *(make_csi_node(name, lim_example_com=1) for name in NODES),
    )
    kept = SchedulingEngine(profile_of(plugins(handle)), state)
    asked = [make_pod(f"p{i}", volumes=volumes(*claims)) for i, claims in enumerate((("c0",), ("c0", "c1"), ("c2",)))]
    for step in steps:
        if isinstance(step, tuple):
            node, claim, comes = step
            if comes:
                state.set_pod(make_pod(f"on-{node}", node=node, volumes=volumes(claim)))
            else:
                state.drop_pod(f"uid-default-on-{node}")
        else:
            handle.put(step)
        for pod in asked:
            assert told(kept, state, pod) == told(SchedulingEngine(profile_of(plugins(handle)), state), state, pod)


@settings(deadline=None, max_examples=150)
@given(st.lists(objects(), max_size=10), st.lists(st.integers(0, 9), max_size=4))
def test_columns_say_what_is_said_of_each_node(written: list[Any], rows: list[int]) -> None:
    state = make_state([make_node(name, labels={ZONE: "ab"[i % 2]}) for i, name in enumerate(("n0", "n1", "n2"))])
    state.drop_node("n2")
    handle = ObjectHandle(state, make_class("slow"), make_class("now", waits=False))
    handle.put(*(make_claim(name, volume=volume) for name, volume in zip(CLAIMS, VOLUMES, strict=True)), *written)
    plugin = VolumeBinding(None, handle)
    for claims in (("c0",), ("c0", "c1"), ("c2", "c1", "c0")):
        check_columns_match_definition(plugin, state, state.pod_info(make_pod(volumes=volumes(*claims))), rows)
