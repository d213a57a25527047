"""Containers of pods in a fake runtime, as a kubelet labels them."""

from __future__ import annotations

from koord.wire.cri import POD_UID_LABEL, CriContainerState
from koord.wire.raw_fields import encode_chunk, encode_string, encode_string_map
from tests.runtimeproxy.fake_runtime import FakeRuntime


def add_container(
    runtime: FakeRuntime, id: str, uid: str, name: str, state: CriContainerState = CriContainerState.RUNNING
) -> None:
    config = encode_chunk(1, encode_string(1, name)) + encode_string_map(9, {POD_UID_LABEL: uid})
    runtime.containers[id] = (f"sandbox-of-{uid}", encode_chunk(2, config))
    runtime.states[id] = state
