"""Requests as the kubelet sends them, with fields that the proxy does not know among those that it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.wire import runtime_hook
from koord.wire.raw_fields import encode_chunk, encode_int, encode_string, encode_string_map
from koord.wire.runtime_hook import LinuxContainerResources

UNKNOWN = encode_chunk(900, b"of a newer CRI") + encode_int(901, 7)
RESOURCES = LinuxContainerResources(
    cpu_period=100_000,
    cpu_quota=50_000,
    cpu_shares=512,
    memory_limit_in_bytes=1 << 30,
    oom_score_adj=900,
    cpuset_cpus="0-1",
)


def sandbox_config(
    labels: Mapping[str, str] = {}, annotations: Mapping[str, str] = {}, parent: str = "/kubepods/podu"
) -> bytes:
    metadata = encode_string(1, "web") + encode_string(2, "u") + encode_string(3, "default") + encode_int(4, 2)
    return (
        encode_chunk(1, metadata)
        + encode_string(2, "web-host")
        + encode_string(3, "/var/log/pods/u")
        + encode_string_map(6, labels)
        + encode_string_map(7, annotations)
        + encode_chunk(8, encode_string(1, parent) + encode_chunk(2, encode_int(5, 1)) + UNKNOWN)
        + UNKNOWN
    )


def run_pod_sandbox(labels: Mapping[str, str] = {}, annotations: Mapping[str, str] = {}) -> bytes:
    return encode_chunk(1, sandbox_config(labels, annotations)) + encode_string(2, "runc") + UNKNOWN


def create_container(
    sandbox: str,
    resources: LinuxContainerResources | None = RESOURCES,
    envs: Sequence[tuple[str, bytes]] = (("B", b"2"), ("A", b"1")),
    annotations: Mapping[str, str] = {"own": "yes"},
) -> bytes:
    linux = b"" if resources is None else encode_chunk(1, runtime_hook.encode(resources) + UNKNOWN)
    config = (
        encode_chunk(1, encode_string(1, "main") + encode_int(2, 3))
        + encode_chunk(2, encode_string(1, "registry/image:1"))
        + encode_string(3, "run")
        + b"".join(encode_chunk(6, encode_string(1, key) + encode_chunk(2, value)) for key, value in envs)
        + encode_string_map(10, annotations)
        + encode_chunk(15, linux + encode_chunk(2, encode_int(1, 1)))
        + UNKNOWN
    )
    return encode_string(1, sandbox) + encode_chunk(2, config) + encode_chunk(3, sandbox_config()) + UNKNOWN


def update_resources(container: str, resources: LinuxContainerResources) -> bytes:
    return encode_string(1, container) + encode_chunk(2, runtime_hook.encode(resources) + UNKNOWN) + UNKNOWN


def by_id(id: str) -> bytes:
    return encode_string(1, id) + UNKNOWN
