"""Whatever a file holds, loading it ends in a Connection or in BadConfig, never in a traceback."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.kube.config.connection import BadConfig, Connection
from koord.kube.config.kubeconfig import ConnectionOverrides, merge_kubeconfigs, parse_kubeconfig, resolve_connection
from koord.kube.config.loader import parse_yaml

WORDS = """
apiVersion kind current-context contexts clusters users name context cluster user namespace server token tokenFile
certificate-authority certificate-authority-data insecure-skip-tls-verify tls-server-name proxy-url extensions
client-certificate client-certificate-data client-key client-key-data username password exec auth-provider as
as-groups as-uid as-user-extra command args env installHint interactiveMode provideClusterInfo config id-token extension
"""
KEYS = WORDS.split()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["x", "v1", "Config", "https://h", "http://[", "client.authentication.k8s.io/v1", "oidc", "a.b.c"]
    )
)
GARBAGE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
        | st.dictionaries(SCALARS, inner, max_size=2)
    ),
    max_leaves=12,
)


def entry(kind: str) -> st.SearchStrategy[Any]:
    """A well-named entry with anything in it, so that the fuzz gets past the first check."""
    inside = st.dictionaries(st.sampled_from(KEYS), GARBAGE, max_size=6)
    return st.fixed_dictionaries({"name": st.just("x"), kind: inside})


CONFIGS = st.fixed_dictionaries(
    {
        "current-context": st.just("x"),
        "contexts": st.just([{"name": "x", "context": {"cluster": "x", "user": "x"}}]),
        "clusters": st.lists(entry("cluster"), max_size=2) | GARBAGE,
        "users": st.lists(entry("user"), max_size=2) | GARBAGE,
    }
)


def outcome(text: bytes) -> Connection | BadConfig:
    try:
        config = merge_kubeconfigs([("f", parse_kubeconfig("f", parse_yaml("f", text)))])
        return resolve_connection(config, ConnectionOverrides(), {}, now_s=0.0)
    except BadConfig as bad:
        return bad


@given(GARBAGE | CONFIGS)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_yaml_value_is_a_connection_or_a_clear_error(value: Any) -> None:
    result = outcome(yaml.safe_dump(value).encode("utf-8", "surrogatepass"))
    assert isinstance(result, Connection) or (result.problem and result.remedy)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass")))
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_a_connection_or_a_clear_error(text: bytes) -> None:
    assert isinstance(outcome(text), Connection | BadConfig)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"!!int foo", id="int-tag"),
        pytest.param(b"!!int ''", id="empty-int-tag"),
        pytest.param(b"!!bool foo", id="bool-tag"),
        pytest.param(b"!!timestamp foo", id="timestamp-tag"),
        pytest.param(b"!!float foo", id="float-tag"),
        pytest.param(b"!!python/object/apply:os.system [id]", id="python-tag"),
        pytest.param(b"&a [*a]", id="list-in-itself"),
        pytest.param(b"clusters: &a\n- name: x\n  cluster: {extensions: *a}", id="entry-in-itself"),
        pytest.param(b"&a {users: [{name: x, user: {exec: *a}}]}", id="document-in-itself"),
        pytest.param(b"? [a]\n: b", id="list-as-key"),
        pytest.param(b"[" * 5000, id="deep"),
        pytest.param(b"a: b\n---\na: c", id="two-documents"),
        pytest.param(b"\x00", id="nul"),
        pytest.param(b"\xff\xfe", id="not-utf8"),
        pytest.param(b"a: [", id="unclosed"),
        pytest.param(b"<html>", id="html"),
    ],
)
def test_hostile_text(text: bytes) -> None:
    assert isinstance(outcome(text), BadConfig)


def test_a_syntax_error_names_its_line() -> None:
    result = outcome(b"a: b\nc: [\n")
    assert isinstance(result, BadConfig)
    assert result.field == "line 3"


def test_a_plugin_config_that_contains_itself_is_refused() -> None:
    text = b"""
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters:
- name: x
  cluster:
    server: https://h
    extensions: [{name: client.authentication.k8s.io/exec, extension: &a [*a]}]
users:
- name: x
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: p, interactiveMode: Never, provideClusterInfo: true}
"""
    result = outcome(text)
    assert isinstance(result, BadConfig)
    assert "alias inside of what it stands for" in str(result)
