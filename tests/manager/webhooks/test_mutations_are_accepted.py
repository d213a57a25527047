"""What mutation makes is taken by the next steps: our own validation, and an API server that checks priorities."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import PODS, PRIORITY_CLASSES
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.manager.webhooks import pod_mutating, pod_validating
from koord.manager.webhooks.admission import AdmissionAllowed
from koord.manager.webhooks.pod_mutating import AdmissionContext
from koord.policy.qos import is_legal
from tests.manager.webhooks.admission_builders import Obj, admission_context, container, pod, profile, request

GPU = "koordinator.sh/gpu"


def mutated(obj: Obj, context: AdmissionContext) -> Obj:
    verdict = pod_mutating.mutate_pod(request(obj), context)
    assert isinstance(verdict, AdmissionAllowed)
    return verdict.object or obj


@given(
    qos=st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM"]),
    priority_class=st.sampled_from(["koord-prod", "koord-mid", "koord-batch", "koord-free"]),
    amounts=st.fixed_dictionaries(
        {"cpu": st.sampled_from(["1", "2"])},
        optional={"memory": st.just("1.5Gi"), GPU: st.sampled_from(["50", "100", "200"])},
    ),
)
def test_what_a_sound_profile_makes_is_valid(qos: str, priority_class: str, amounts: Obj) -> None:
    """Sound: the two fit each other, batch goes with BE only, and whole CPUs stay with those who keep native ones."""
    batch_without_be = priority_class == "koord-batch" and qos != "BE"
    translated_cpus = priority_class in ("koord-mid", "koord-batch") and qos in ("LSR", "LSE")
    assume(is_legal(qos, priority_class) and not batch_without_be and not translated_cpus)
    context = admission_context(profile(qosClass=qos, priorityClassName=priority_class), ValidatePodDeviceResource=True)
    after = mutated(pod(container(requests=amounts, limits=amounts)), context)
    assert pod_validating.validate_pod(request(after), context) == AdmissionAllowed()


def test_a_profile_of_batch_priority_alone_makes_pods_that_are_refused() -> None:
    """As upstream: the resources become batch resources, and those need the class that the profile did not give."""
    context = admission_context(profile(priorityClassName="koord-batch"))
    after = mutated(pod(container(requests={"cpu": "1"})), context)
    assert pod_validating.validate_pod(request(after), context) != AdmissionAllowed()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    cluster = EmbeddedCluster(ClusterSettings(http=False))
    await cluster.start()
    assert cluster.client is not None
    yield cluster.client
    await cluster.stop()


@pytest.mark.parametrize("policy", ["PreemptLowerPriority", "Never"])
async def test_an_api_server_takes_the_priority_that_was_written(policy: str, client: Client) -> None:
    """It checks priority and policy against the class again after webhooks, and refuses others."""
    wanted = {"metadata": {"name": "night"}, "value": 5100, "preemptionPolicy": policy}
    night = unwrap(await client.create(PRIORITY_CLASSES, wanted))
    patch = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 5}}
    context = admission_context(profile(qosClass="BE", priorityClassName="night", patch=patch))
    context = msgspec.structs.replace(context, priority_class={"night": night}.get)
    sent = pod(
        container(requests={"cpu": "1", GPU: "50"}, limits={"cpu": "2", GPU: "50"}),
        priority=0,
        preemptionPolicy="PreemptLowerPriority",
    )
    sent["metadata"]["namespace"] = "default"
    made = unwrap(await client.dynamic.create(PODS, mutated(sent, context)))
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (5100, policy)
    assert made["spec"]["containers"][0]["resources"]["requests"] == {
        "kubernetes.io/batch-cpu": "1k",
        "koordinator.sh/gpu-core": "50",
        "koordinator.sh/gpu-memory-ratio": "50",
        "koordinator.sh/gpu.shared": "1",
    }
