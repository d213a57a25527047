"""What a hook server's answer does to a request of CRI, and that nothing else happens to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koord.wire import cri, raw_fields, runtime_hook
from koord.wire.raw_fields import MalformedMessage, encode_chunk, encode_int, encode_string, encode_string_map
from koord.wire.runtime_hook import (
    ContainerDevice,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    echo_container,
    echo_pod,
)

texts = st.text(max_size=5)
maps = st.dictionaries(texts, texts, max_size=3)
ints = st.integers(-(1 << 40), 1 << 40)
# Fields of a newer CRI, before, between and after those that are known.
extras = st.lists(
    st.tuples(st.sampled_from((19, 23, 500, 7000)), st.binary(max_size=6)).map(lambda one: encode_chunk(*one)),
    max_size=3,
).map(b"".join)
resources = st.builds(
    LinuxContainerResources,
    cpu_period=ints,
    cpu_quota=ints,
    cpu_shares=ints,
    memory_limit_in_bytes=ints,
    oom_score_adj=st.integers(-1000, 1000),
    cpuset_cpus=texts,
    cpuset_mems=texts,
    unified=maps,
    memory_swap_limit_in_bytes=ints,
)
envs = st.lists(st.tuples(texts, st.binary(max_size=4)), max_size=5)


@st.composite
def sandbox_configs(draw: st.DrawFn) -> bytes:
    metadata = encode_string(1, draw(texts)) + encode_string(2, draw(texts)) + encode_int(4, 3)
    linux = encode_chunk(8, encode_string(1, draw(texts)) + draw(extras)) if draw(st.booleans()) else b""
    return (
        draw(extras)
        + encode_chunk(1, metadata)
        + encode_string_map(7, draw(maps))
        + linux
        + encode_string_map(6, draw(maps))
        + draw(extras)
    )


@st.composite
def run_requests(draw: st.DrawFn) -> bytes:
    return draw(extras) + encode_chunk(1, draw(sandbox_configs())) + encode_string(2, draw(texts)) + draw(extras)


@st.composite
def create_requests(draw: st.DrawFn) -> bytes:
    inner = encode_chunk(1, runtime_hook.encode(draw(resources)) + draw(extras)) if draw(st.booleans()) else b""
    config = (
        encode_chunk(1, encode_string(1, draw(texts)))
        + b"".join(encode_chunk(6, encode_string(1, key) + encode_chunk(2, value)) for key, value in draw(envs))
        + encode_string_map(10, draw(maps))
        + (encode_chunk(15, draw(extras) + inner) if draw(st.booleans()) else b"")
        + draw(extras)
    )
    sandbox = encode_chunk(3, draw(sandbox_configs())) if draw(st.booleans()) else b""
    return encode_string(1, "s") + encode_chunk(2, config) + sandbox + draw(extras)


@given(run_requests())
def test_an_echo_leaves_every_byte_of_a_pod(request: bytes) -> None:
    pod = cri.pod_request(request)
    assert isinstance(pod, PodSandboxHookRequest)
    assert cri.run_pod_sandbox_with(request, cri.pod_with_answer(pod, echo_pod(pod))) == request


@given(create_requests())
def test_an_echo_leaves_every_byte_of_a_container(request: bytes) -> None:
    container = cri.container_request(request, PodSandboxHookRequest())
    assert isinstance(container, ContainerResourceHookRequest)
    wanted = cri.container_with_answer(container, echo_container(container))
    assert cri.create_container_with(request, wanted) == request


@given(run_requests(), maps, maps, texts)
def test_a_pods_answer_is_what_the_runtime_reads(
    request: bytes, labels: dict[str, str], annotations: dict[str, str], parent: str
) -> None:
    pod = cri.pod_request(request)
    assert isinstance(pod, PodSandboxHookRequest)
    answer = PodSandboxHookResponse(labels=labels, annotations=annotations, cgroup_parent=parent)
    wanted = cri.pod_with_answer(pod, answer)
    sent = cri.run_pod_sandbox_with(request, wanted)
    assert cri.pod_request(sent) == wanted
    assert unknown(sent) == unknown(request)
    assert unknown(raw_fields.message_of(sent, 1) or b"") == unknown(raw_fields.message_of(request, 1) or b"")


@given(create_requests(), maps, st.none() | resources, texts, maps)
def test_a_containers_answer_is_what_the_runtime_reads(
    request: bytes,
    annotations: dict[str, str],
    answered: LinuxContainerResources | None,
    parent: str,
    envs: dict[str, str],
) -> None:
    container = cri.container_request(request, PodSandboxHookRequest())
    assert isinstance(container, ContainerResourceHookRequest)
    answer = ContainerResourceHookResponse(
        container_annotations=annotations,
        container_resources=answered,
        pod_cgroup_parent=parent,
        container_envs=envs,
    )
    wanted = cri.container_with_answer(container, answer)
    sent = cri.create_container_with(request, wanted)
    assert cri.container_request(sent, PodSandboxHookRequest()) == wanted
    for path in ((), (2,), (2, 15), (2, 15, 1), (3,), (3, 8)):
        before = raw_fields.message_of(request, *path)
        if before is not None:
            assert unknown(raw_fields.message_of(sent, *path) or b"") == unknown(before)


@given(create_requests())
def test_devices_are_added_once_and_all_else_stays(request: bytes) -> None:
    paths = ("/dev/a", "/dev/b")
    devices = tuple(ContainerDevice(container_path=path, host_path=path, permissions="rw") for path in paths)
    one = cri.create_container_with_devices(request, devices[:1])
    both = cri.create_container_with_devices(one, devices)
    assert cri.create_container_with_devices(both, devices) == both
    config = raw_fields.message_of(both, 2) or b""
    found = [runtime_hook.decode(entry, ContainerDevice) for entry in raw_fields.chunks_of(config, 8)]
    assert found == list(devices)
    assert raw_fields.set_message(both, raw_fields.replace_field(config, 8, b""), 2) == request
    assert cri.create_container_with_devices(request, ()) == request


@given(resources, resources, st.none() | resources)
def test_an_update_states_the_container_as_it_is_wanted(
    stored: LinuxContainerResources, update: LinuxContainerResources, answered: LinuxContainerResources | None
) -> None:
    newer = encode_chunk(700, b"newer")
    request = encode_string(1, "c") + encode_chunk(2, runtime_hook.encode(update) + newer) + newer
    known = ContainerResourceHookRequest(container_resources=stored, container_annotations={"a": "1"})
    asked = cri.updated_request(request, known)
    assert isinstance(asked, ContainerResourceHookRequest)
    wanted = cri.container_with_answer(asked, ContainerResourceHookResponse(container_resources=answered))
    sent = cri.update_container_resources_with(request, wanted)
    linux = raw_fields.message_of(sent, 2)
    assert linux is not None
    read = runtime_hook.decode(linux, LinuxContainerResources)
    assert isinstance(read, LinuxContainerResources)
    assert {**read.unified, **stored.unified}.keys() == read.unified.keys()
    assert wanted.container_resources is not None
    for name in ("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "cpuset_cpus", "oom_score_adj"):
        assert getattr(read, name) == getattr(wanted.container_resources, name)
    assert unknown(linux) == unknown(sent) == [newer]


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    pod = PodSandboxHookRequest()
    for found in (
        cri.pod_request(data),
        cri.container_request(data, pod),
        cri.updated_request(data, ContainerResourceHookRequest()),
        cri.listed_sandboxes(data),
        cri.listed_containers(data),
        cri.first_string(data),
    ):
        if isinstance(found, MalformedMessage):
            assert str(found)


def test_an_environment_keeps_its_order_its_repetitions_and_what_is_no_text() -> None:
    given_envs = [("B", b"1"), ("X", b"\xff"), ("A", b"1"), ("B", b"2"), ("C", b"3"), ("A", b"4")]
    entries = b"".join(encode_chunk(6, encode_string(1, key) + encode_chunk(2, value)) for key, value in given_envs)
    request = encode_chunk(2, encode_chunk(1, b"") + entries)
    container = cri.container_request(request, PodSandboxHookRequest())
    assert isinstance(container, ContainerResourceHookRequest)
    assert container.container_envs == {"A": "4", "B": "2", "C": "3"}
    answer = ContainerResourceHookResponse(container_envs={"A": "4", "B": "new", "Z": "", "D": "5"})
    sent = cri.create_container_with(request, cri.container_with_answer(container, answer))
    config = raw_fields.message_of(sent, 2)
    assert config is not None
    found = [
        (raw_fields.string_of(one, 1), b"".join(raw_fields.chunks_of(one, 2)))
        for one in raw_fields.chunks_of(config, 6)
    ]
    assert found == [("B", b"new"), ("X", b"\xff"), ("A", b"1"), ("A", b"4"), ("D", b"5"), ("Z", b"")]


def unknown(data: bytes) -> list[bytes]:
    return [data[field.start : field.end] for field in raw_fields.scan_fields(data) if field.number > 18]
