"""Devices are added to the kubelet's answers; every other byte stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koord.wire import pod_resources, raw_fields
from koord.wire.pod_resources import ContainerDevices
from koord.wire.raw_fields import MalformedMessage, encode_chunk, encode_int, encode_string

UNKNOWN = encode_string(99, "of a later version") + encode_int(98, 7)
GPU = ContainerDevices(resource_name="nvidia.com/gpu", device_ids=("0",))
RDMA = ContainerDevices(resource_name="koordinator.sh/rdma", device_ids=("0000:01:00.2",))


def devices(name: str, *ids: str) -> bytes:
    listed = b"".join(encode_chunk(2, id.encode()) for id in ids)
    return encode_chunk(2, encode_string(1, name) + listed + encode_chunk(3, encode_chunk(1, encode_int(1, 1))))


def container(name: str, *entries: bytes) -> bytes:
    cpus = encode_chunk(3, b"\x00\x01")
    return encode_chunk(3, encode_string(1, name) + b"".join(entries) + cpus + UNKNOWN)


def pod(name: str, *containers: bytes, namespace: str = "default") -> bytes:
    return encode_chunk(1, encode_string(1, name) + encode_string(2, namespace) + b"".join(containers) + UNKNOWN)


def found(response: bytes | MalformedMessage, which: int = 0, box: int = 0) -> list[ContainerDevices]:
    assert isinstance(response, bytes)
    pods = raw_fields.chunks_of(response, 1)
    return pod_resources.devices_of(raw_fields.chunks_of(pods[which], 3)[box])


def given_to(name: str, *added: ContainerDevices) -> pod_resources.PodDevices:
    return lambda namespace, pod: added if (namespace, pod) == ("default", name) else ()


def test_devices_are_at_the_first_container_in_order_of_their_names() -> None:
    answer = pod("a", container("main", devices("example.com/x", "7")), container("side")) + pod("b", container("main"))
    changed = pod_resources.add_devices(answer, given_to("a", GPU, RDMA))
    assert [one.resource_name for one in found(changed)] == [
        "example.com/x",
        "koordinator.sh/rdma",
        "nvidia.com/gpu",
    ]
    assert found(changed)[1:] == [RDMA, GPU]
    assert found(changed, box=1) == []
    assert found(changed, which=1) == []


def test_what_is_not_known_keeps_its_bytes() -> None:
    own = devices("example.com/x", "7")
    answer = pod("a", container("main", own), container("side", own)) + UNKNOWN
    changed = pod_resources.add_devices(answer, given_to("a", GPU))
    assert isinstance(changed, bytes)
    assert changed.endswith(UNKNOWN)
    (inside,) = raw_fields.chunks_of(changed, 1)
    first, second = raw_fields.chunks_of(inside, 3)
    assert inside.endswith(UNKNOWN)
    assert own in first
    assert first.endswith(encode_chunk(3, b"\x00\x01") + UNKNOWN)
    assert encode_chunk(3, second) == container("side", own)


def test_a_device_that_the_kubelet_lists_is_not_listed_twice() -> None:
    answer = pod("a", container("main", devices("nvidia.com/gpu", "0")))
    assert pod_resources.add_devices(answer, given_to("a", GPU)) == answer
    more = ContainerDevices(resource_name="nvidia.com/gpu", device_ids=("0", "1"))
    changed = found(pod_resources.add_devices(answer, given_to("a", more)))
    assert [one.device_ids for one in changed] == [("0",), ("1",)]


def test_a_pod_without_containers_and_pods_without_devices_are_left() -> None:
    answer = pod("a") + pod("b", container("main")) + pod("a", container("main"), namespace="other")
    assert pod_resources.add_devices(answer, given_to("a", GPU)) == answer
    assert pod_resources.listed_pods(answer) == [("default", "b"), ("other", "a")]


@given(st.binary(max_size=60))
def test_any_bytes_are_changed_or_refused(data: bytes) -> None:
    changed = pod_resources.add_devices(data, lambda _namespace, _name: (GPU,))
    assert isinstance(changed, MalformedMessage) or changed == data or len(changed) > len(data)
    assert isinstance(pod_resources.listed_pods(data), MalformedMessage | list)
