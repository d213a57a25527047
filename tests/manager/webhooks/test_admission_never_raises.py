"""Whatever is sent, admission answers: no object makes it raise, and what it makes of a pod is a pod."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.manager.webhooks import node_admission, pod_mutating, pod_validating
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.pod_mutating import mutate_reservation
from tests.manager.webhooks.admission_builders import Obj, admission_context, container, pod, profile, quota, request

WORLD = admission_context(
    profile(
        "a",
        qosClass="BE",
        labelKeysMapping={"x": "y"},
        labelSuffixes={"x": "-z"},
        patch={"spec": {"tolerations": [], "containers": [{"name": "main", "env": [{"name": "E"}]}]}},
    ),
    profile("b", priorityClassName="koord-batch", schedulerName="s", patch={"metadata": {"annotations": {"n": None}}}),
    quotas=(quota("q", namespaces='["shop"]', tree_id="t"),),
    pools={"t": LabelSelector(match_labels={"pool": "a"})},
    MultiQuotaTree=True,
    ValidatePodDeviceResource=True,
)
FULL = pod(
    container(
        requests={"cpu": "1", "koordinator.sh/gpu": "100", "kubernetes.io/batch-cpu": "5"}, limits={"memory": "1Gi"}
    ),
    labels={"x": "1", "koordinator.sh/qosClass": "LSR"},
    annotations={"n": "1", "node.koordinator.sh/extended-resource-spec": "{}"},
    priority=5500,
    initContainers=[container("i", requests={"cpu": "1"}, restartPolicy="Always")],
    overhead={"cpu": "1m"},
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}
        }
    },
)
RESERVATION: Obj = {"metadata": {"name": "r", "labels": {"x": "1"}}, "spec": {"template": {"spec": FULL["spec"]}}}
NODE: Obj = {
    "metadata": {
        "name": "n",
        "labels": {"a": "b"},
        "annotations": {
            "node.koordinator.sh/resource-amplification-ratio": '{"cpu":2}',
            "node.koordinator.sh/raw-allocatable": '{"cpu":"1"}',
        },
    },
    "status": {"allocatable": {"cpu": "1", "memory": "1Gi"}},
}

_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "1", "1Gi", "{x", "~"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "cpu", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inside for place in _places(item, (*path, key)))]


def _with(obj: Obj, place: tuple[Any, ...], value: Any) -> Obj:
    out = copy.deepcopy(obj)
    here: Any = out
    for key in place[:-1]:
        here = here[key]
    here[place[-1]] = value
    return out


Admit = Callable[[AdmissionRequest], AdmissionDecision]
CONFIG = {"colocation-config": '{"nodeConfigs":[{"name":"a","nodeSelector":{"matchLabels":{"a":"b"}}}]}'}


@pytest.mark.parametrize(
    ("admit", "obj", "resource", "sub"),
    [
        pytest.param(lambda r: pod_mutating.mutate_pod(r, WORLD), FULL, "pods", "", id="pod-mutating"),
        pytest.param(lambda r: pod_validating.validate_pod(r, WORLD), FULL, "pods", "", id="pod-validating"),
        pytest.param(lambda r: mutate_reservation(r, WORLD), RESERVATION, "reservations", "", id="reservation"),
        pytest.param(node_admission.mutate_node_status, NODE, "nodes", "status", id="node-mutating"),
        pytest.param(lambda r: node_admission.validate_node(r, CONFIG), NODE, "nodes", "", id="node-validating"),
    ],
)
@given(data=st.data())
def test_there_is_always_an_answer(admit: Admit, obj: Obj, resource: str, sub: str, data: st.DataObject) -> None:
    places = st.sampled_from(_places(obj)[1:])
    odd = obj
    for place in data.draw(
        st.lists(places, min_size=1, max_size=2, unique=True).map(lambda found: sorted(found, key=len))
    ):
        if place in _places(odd):
            odd = _with(odd, place, data.draw(_ANYTHING))
    old = obj if resource == "nodes" else None
    for new, before in ((odd, old), (obj, odd)):
        asked = request(obj, None if before is None else obj, resource=resource, sub=sub)
        verdict = admit(msgspec.structs.replace(asked, object=new, old_object=before))
        assert isinstance(verdict, AdmissionAllowed | AdmissionDenied)
        if resource == "pods" and isinstance(verdict, AdmissionAllowed) and verdict.object is not None:
            convert(verdict.object, Pod)
