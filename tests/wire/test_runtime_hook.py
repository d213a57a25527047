"""Messages of the hook protocol are those of protobuf's own encoder, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.wire import runtime_hook
from koord.wire.raw_fields import MalformedMessage, encode_chunk
from koord.wire.runtime_hook import (
    ContainerDevice,
    ContainerMetadata,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    HookRequest,
    HookResponse,
    HugepageLimit,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    PodSandboxMetadata,
    RuntimeHookStage,
)

# Encoded by protobuf 7 from the same fields.
ENCODED = {
    "resources": (
        LinuxContainerResources(
            cpu_period=100_000,
            cpu_quota=-1,
            cpu_shares=2,
            memory_limit_in_bytes=1 << 33,
            oom_score_adj=-998,
            cpuset_cpus="0-3,7",
            cpuset_mems="0",
            hugepage_limits=(HugepageLimit("2MB", 1 << 63),),
            unified={"memory.high": "9"},
            memory_swap_limit_in_bytes=5,
        ),
        "08a08d0610ffffffffffffffffff011802208080808020289af8ffffffffffffff013205302d332c373a0130"
        "42100a03324d4210808080808080808080014a100a0b6d656d6f72792e686967681201395005",
    ),
    "pod": (
        PodSandboxHookRequest(
            pod_meta=PodSandboxMetadata(name="web", uid="u-1", namespace="default", attempt=300),
            runtime_handler="runc",
            labels={"b": "2", "a": ""},
            annotations={"": "x"},
            cgroup_parent="/k",
            resources=LinuxContainerResources(),
        ),
        "0a160a037765621203752d311a0764656661756c7420ac02120472756e631a050a016112001a060a01621201"
        "3222050a001201782a022f6b3a00",
    ),
    "container": (
        ContainerResourceHookRequest(
            pod_meta=PodSandboxMetadata(name="web"),
            container_meta=ContainerMetadata(name="main", attempt=1, id="c1"),
            container_annotations={"k": "v"},
            container_resources=LinuxContainerResources(cpu_shares=512),
            pod_annotations={"pa": "1"},
            pod_labels={"pl": "2"},
            pod_cgroup_parent="/p",
            container_envs={"PATH": "/bin:ü"},
        ),
        "0a050a03776562120c0a046d61696e10011a0263311a060a016b120176220318800432070a0270611201313a"
        "070a02706c12013242022f704a0f0a045041544812072f62696e3ac3bc",
    ),
}

texts = st.text(max_size=6)
maps = st.dictionaries(texts, texts, max_size=3)
ints = st.integers(-(1 << 63), (1 << 63) - 1)
resources = st.none() | st.builds(
    LinuxContainerResources,
    cpu_period=ints,
    cpu_quota=ints,
    cpu_shares=ints,
    memory_limit_in_bytes=ints,
    oom_score_adj=ints,
    cpuset_cpus=texts,
    cpuset_mems=texts,
    hugepage_limits=st.lists(
        st.builds(HugepageLimit, page_size=texts, limit=st.integers(0, (1 << 64) - 1)), max_size=2
    ).map(tuple),
    unified=maps,
    memory_swap_limit_in_bytes=ints,
)
messages = st.one_of(
    st.builds(
        PodSandboxHookRequest,
        pod_meta=st.none() | st.builds(PodSandboxMetadata, name=texts, attempt=st.integers(0, (1 << 32) - 1)),
        labels=maps,
        annotations=maps,
        cgroup_parent=texts,
        overhead=resources,
        resources=resources,
    ),
    st.builds(PodSandboxHookResponse, labels=maps, annotations=maps, cgroup_parent=texts, resources=resources),
    st.builds(
        ContainerResourceHookRequest,
        container_meta=st.none() | st.builds(ContainerMetadata, name=texts, id=texts),
        container_annotations=maps,
        container_resources=resources,
        pod_resources=resources,
        pod_labels=maps,
        container_envs=maps,
    ),
    st.builds(
        ContainerResourceHookResponse,
        container_annotations=maps,
        container_resources=resources,
        pod_cgroup_parent=texts,
        container_envs=maps,
        container_devices=st.lists(
            st.builds(ContainerDevice, container_path=texts, host_path=texts, permissions=texts), max_size=2
        ).map(tuple),
    ),
)


@pytest.mark.parametrize("name", ENCODED)
def test_bytes_are_protobufs(name: str) -> None:
    message, encoded = ENCODED[name]
    assert runtime_hook.encode(message).hex() == encoded
    assert runtime_hook.decode(bytes.fromhex(encoded), type(message)) == message


@given(messages)
def test_a_message_is_decoded_as_it_was_encoded(message: HookRequest | HookResponse) -> None:
    encoded = runtime_hook.encode(message)
    assert runtime_hook.decode(encoded, type(message)) == message
    assert runtime_hook.decode(encode_chunk(99, b"newer") + encoded, type(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_or_changed_is_decoded_or_refused(
    message: HookRequest | HookResponse, data: st.DataObject
) -> None:
    encoded = runtime_hook.encode(message)
    cut = encoded[: data.draw(st.integers(0, len(encoded)))]
    noise = data.draw(st.binary(max_size=4))
    assert isinstance(runtime_hook.decode(cut + noise, type(message)), type(message) | MalformedMessage)


def test_the_names_of_the_rpcs() -> None:
    assert RuntimeHookStage.PRE_RUN_POD_SANDBOX.method == "/runtime.v1alpha1.RuntimeHookService/PreRunPodSandboxHook"
    assert len({stage.method for stage in RuntimeHookStage}) == 7
