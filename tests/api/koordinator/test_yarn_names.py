"""The node-id annotation is host and port, or a value that says what is wrong with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.yarn import (
    A_CLUSTER_ID,
    A_NODE_ID,
    DEFAULT_CLUSTER_ID,
    MalformedNodeId,
    YarnNodeId,
    cluster_id,
    parse_node_id,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        pytest.param("nm-0.node-manager:8041", "nm-0.node-manager", 8041, id="host-and-port"),
        pytest.param("fd00::1:8041", "fd00::1", 8041, id="ipv6"),
        pytest.param("a:65535", "a", 65535, id="largest-port"),
    ],
)
def test_a_node_id_is_host_and_port(text: str, host: str, port: int) -> None:
    assert parse_node_id({A_NODE_ID: text}) == YarnNodeId(host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", ":8041", "host:0", "host:65536", "host:-1", "host:٣", "host:8 "])
def test_what_is_no_node_id_is_named(text: str) -> None:
    wrong = parse_node_id({A_NODE_ID: text})
    assert wrong == MalformedNodeId(text)
    assert str(wrong) == f'the annotation yarn.hadoop.apache.org/node-id is "{text}" and not host:port'


def test_a_missing_node_id_is_named() -> None:
    assert str(parse_node_id({})) == "the annotation yarn.hadoop.apache.org/node-id is missing"


@given(st.from_regex(r"[a-z0-9.-]{1,40}", fullmatch=True), st.integers(1, 65535))
def test_a_node_id_is_read_as_it_is_written(host: str, port: int) -> None:
    assert parse_node_id({A_NODE_ID: str(YarnNodeId(host, port))}) == YarnNodeId(host, port)


def test_a_pod_without_cluster_belongs_to_the_default_cluster() -> None:
    assert cluster_id({}) == cluster_id({A_CLUSTER_ID: ""}) == DEFAULT_CLUSTER_ID
    assert cluster_id({A_CLUSTER_ID: "blue"}) == "blue"
