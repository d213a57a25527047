"""A PodInfo knows whether Koordinator's plugins read anything of it, and a copy holds all that it holds."""

from __future__ import annotations

import pytest

from koord.api.koordinator.protocol import A_GANG_NAME, L_POD_GROUP, L_QOS_CLASS
from koord.api.model import convert
from koord.scheduler.cache.pod_info import PodInfo, PodShapes
from koord.scheduler.cache.pod_model import Pod
from tests.scheduler.builders import make_info


def test_a_placed_pod_differs_only_in_its_node() -> None:
    pod = make_info(labels={"app": "a"}, annotations={"note": "b"}, cpu="1")
    placed = pod.placed_on("n1")
    assert placed.node_name == "n1"
    differing = [slot for slot in PodInfo.__slots__ if getattr(placed, slot) is not getattr(pod, slot)]
    assert differing == ["node_name"]


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({"app": "a"}, {"kubectl.kubernetes.io/restartedAt": "now"}, False),
        ({L_QOS_CLASS: "LS"}, {}, True),
        ({L_POD_GROUP: "g"}, {}, True),
        ({"app": "a"}, {A_GANG_NAME: "g"}, True),
    ],
)
def test_a_pod_has_koordinator_keys(labels: dict[str, str], annotations: dict[str, str], expected: bool) -> None:
    assert make_info(labels=labels, annotations=annotations).has_koordinator_keys is expected


def test_pods_that_name_other_claims_share_a_shape_and_keep_their_names() -> None:
    def naming(claim: str) -> Pod:
        spec = {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
        return convert({"metadata": {"name": claim, "uid": claim}, "spec": spec}, Pod)

    shapes = PodShapes()
    one, other = (shapes.intern(naming(claim)) for claim in ("a", "b"))
    assert one.shape is other.shape
    assert [pod.spec.resource_claims[0].resource_claim_name for pod in (one, other)] == ["a", "b"]
