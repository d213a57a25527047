"""Merging and selecting: whose value wins, where relative paths start, and what each mistake is told."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from koord.kube.config.connection import (
    BadConfig,
    BasicAuth,
    Connection,
    ExecAuth,
    IdTokenAuth,
    Impersonation,
    TokenAuth,
    TokenFileAuth,
)
from koord.kube.config.kubeconfig import (
    ConnectionOverrides,
    Kubeconfig,
    merge_kubeconfigs,
    parse_kubeconfig,
    resolve_connection,
)

NOW_S = 1_800_000_000.0
V1 = "client.authentication.k8s.io/v1"


def document(
    *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://one:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **more,
    }


def merged(*documents: dict[str, Any]) -> Kubeconfig:
    return merge_kubeconfigs(
        [(f"/etc/{n}/config", parse_kubeconfig(f"/etc/{n}/config", d)) for n, d in enumerate(documents)]
    )


def chosen(*documents: dict[str, Any], environ: dict[str, str] | None = None, **choice: Any) -> Connection:
    return resolve_connection(merged(*documents), ConnectionOverrides(**choice), environ or {}, now_s=NOW_S)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def jwt(claims: dict[str, Any]) -> str:
    parts = (msgspec.json.encode(part) for part in ({"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "sig"])


class TestMerge:
    def test_the_first_file_to_name_an_entry_wins_it_whole(self) -> None:
        second = document(cluster={"server": "https://two", "proxy-url": "http://p:1"}, user={"token": "second"})
        got = chosen(document(user={"username": "me", "password": "pw"}), second)
        assert (got.server, got.proxy_url, got.auth) == (
            "https://one:6443",
            "",
            BasicAuth(username="me", password="pw"),
        )

    def test_the_first_current_context_wins_and_later_files_add_entries(self) -> None:
        first = {"current-context": "there"}
        second = document(contexts=[{"name": "there", "context": {"cluster": "c", "namespace": "n"}}])
        got = chosen(first, second)
        assert (got.context, got.namespace, got.server) == ("there", "n", "https://one:6443")

    def test_an_empty_document_is_an_empty_config(self) -> None:
        assert merge_kubeconfigs([("f", parse_kubeconfig("f", None))]).contexts == {}

    def test_a_name_used_twice_in_one_file_is_refused(self) -> None:
        twice = document(users=[{"name": "u", "user": {}}, {"name": "u", "user": {}}])
        with pytest.raises(BadConfig, match=r'/etc/0/config: users: the name "u" is used twice'):
            merged(twice)


class TestChoice:
    def test_context_cluster_user_and_namespace_override_the_file(self) -> None:
        more = document(
            clusters=[
                {"name": "c", "cluster": {"server": "https://one"}},
                {"name": "d", "cluster": {"server": "https://d"}},
            ],
            users=[{"name": "u"}, {"name": "v", "user": {"token": "t"}}],
            contexts=[
                {"name": "here", "context": {"cluster": "c", "user": "u"}},
                {"name": "x", "context": {"cluster": "c"}},
            ],
        )
        got = chosen(more, context="x", cluster="d", user="v", namespace="ns")
        assert (got.server, got.auth, got.namespace) == ("https://d", TokenAuth(token="t"), "ns")

    def test_a_server_and_token_need_no_context(self) -> None:
        got = chosen({}, server="https://s", token="t")
        assert (got.server, got.auth) == ("https://s", TokenAuth(token="t"))

    def test_turning_verification_off_by_hand_drops_the_files_authority(self) -> None:
        got = chosen(document(cluster={"certificate-authority": "ca.crt"}), insecure=True)
        assert (got.insecure, got.ca) == (True, None)

    def test_impersonation_by_hand_replaces_the_files(self) -> None:
        user = {"as": "bob", "as-groups": ["g"], "as-uid": "7", "as-user-extra": {"k": ["v"]}}
        assert chosen(document(user=user)).impersonate == Impersonation(
            user="bob", uid="7", groups=("g",), extra={"k": ("v",)}
        )
        assert chosen(document(user=user), as_user="eve", as_groups=("h",)).impersonate == Impersonation(
            user="eve", groups=("h",)
        )

    def test_the_namespace_is_default_when_nobody_says(self) -> None:
        assert chosen(document()).namespace == "default"


class TestServer:
    @pytest.mark.parametrize(
        ("cluster", "url"),
        [
            pytest.param({"server": "https://h:1/k8s/clusters/x/"}, "https://h:1/k8s/clusters/x", id="gateway-prefix"),
            pytest.param({"server": "h:8080"}, "http://h:8080", id="no-scheme-is-plain"),
            pytest.param({"server": "h", "insecure-skip-tls-verify": True}, "https://h", id="no-scheme-with-tls"),
            pytest.param({"server": "https://[::1]:6443"}, "https://[::1]:6443", id="ipv6"),
        ],
    )
    def test_address(self, cluster: dict[str, Any], url: str) -> None:
        assert chosen(document(cluster=cluster)).server == url

    def test_cluster_settings_arrive(self) -> None:
        got = chosen(document(cluster={"tls-server-name": "t", "proxy-url": "http://p:1", "disable-compression": True}))
        assert (got.tls_server_name, got.proxy_url, got.compress) == ("t", "http://p:1", False)

    def test_inline_data_wins_over_a_file(self) -> None:
        got = chosen(document(cluster={"certificate-authority": "ca.crt", "certificate-authority-data": b64("PEM")}))
        assert got.ca is not None
        assert (got.ca.data, got.ca.path) == (b"PEM", "")


class TestPaths:
    def test_relative_paths_start_at_the_file_that_holds_them(self) -> None:
        first = {"current-context": "here", "users": [{"name": "u", "user": {"tokenFile": "tok"}}]}
        second = document(cluster={"certificate-authority": "../ca.crt"})
        got = chosen(first, second)
        assert isinstance(got.auth, TokenFileAuth)
        assert got.ca is not None
        assert (got.auth.path, got.ca.path) == ("/etc/0/tok", "/etc/ca.crt")

    def test_absolute_paths_stay(self) -> None:
        got = chosen(document(user={"client-certificate": "/c", "client-key": "k"}))
        assert got.certificate is not None
        assert (got.certificate.certificate.path, got.certificate.key.path) == ("/c", "/etc/0/k")

    @pytest.mark.parametrize(
        ("command", "resolved"),
        [
            pytest.param("aws", "aws", id="bare-name-is-left-to-PATH"),
            pytest.param("./bin/aws", "/etc/0/bin/aws", id="relative"),
            pytest.param("/opt/aws", "/opt/aws", id="absolute"),
        ],
    )
    def test_plugin_command(self, command: str, resolved: str) -> None:
        exec_ = {"apiVersion": V1, "command": command, "interactiveMode": "Never"}
        got = chosen(document(user={"exec": exec_})).auth
        assert isinstance(got, ExecAuth)
        assert got.command == resolved


class TestAuth:
    def test_a_static_token_wins_over_a_plugin(self) -> None:
        exec_ = {"apiVersion": V1, "command": "x", "interactiveMode": "Never"}
        assert chosen(document(user={"token": "t", "exec": exec_})).auth == TokenAuth(token="t")

    def test_a_token_file_keeps_the_inline_token_as_fallback(self) -> None:
        got = chosen(document(user={"token": "t", "tokenFile": "/f"})).auth
        assert isinstance(got, TokenFileAuth)
        assert (got.path, got.fallback) == ("/f", "t")

    def test_every_plugin_setting_arrives(self) -> None:
        exec_ = {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "p",
            "args": ["a"],
            "env": [{"name": "E", "value": "1"}],
            "installHint": "get it",
            "provideClusterInfo": True,
        }
        extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
        got = chosen(document(user={"exec": exec_}, cluster={"extensions": extensions}), environ={"HOME": "/h"}).auth
        assert isinstance(got, ExecAuth)
        assert (got.args, got.env, got.install_hint, got.interactive_mode) == (
            ("a",),
            {"E": "1"},
            "get it",
            "IfAvailable",
        )
        assert (got.cluster_config, got.environ) == ({"audience": "x"}, {"HOME": "/h"})

    def test_null_lists_are_empty(self) -> None:
        exec_ = {"apiVersion": V1, "command": "p", "args": None, "env": None, "interactiveMode": "Never"}
        got = chosen(document(user={"exec": exec_})).auth
        assert isinstance(got, ExecAuth)
        assert (got.args, got.env) == ((), {})

    def test_an_unexpired_oidc_token_is_used(self) -> None:
        token = jwt({"exp": NOW_S + 60})
        provider = {"name": "oidc", "config": {"id-token": token}}
        got = chosen(document(user={"auth-provider": provider})).auth
        assert isinstance(got, IdTokenAuth)
        assert (got.token, got.expires_s) == (token, NOW_S + 60)


V1_PLUGIN = {"apiVersion": V1, "command": "p", "interactiveMode": "Never"}

MISTAKES = [
    pytest.param(
        document(contexts=[]),
        {},
        'current-context: there is no context "here"; choose one of: none',
        id="no-such-context",
    ),
    pytest.param(
        document(), {"context": "no"}, 'contexts: there is no context "no"; choose one of: here', id="chosen-context"
    ),
    pytest.param(
        {"contexts": [{"name": "a"}]}, {}, "current-context: it is not set; name a context, there are: a", id="none-set"
    ),
    pytest.param(
        document(clusters=[]), {}, 'clusters: context "here" names "c", which is not there', id="no-such-cluster"
    ),
    pytest.param(document(users=[]), {}, 'users: context "here" names "u", which is not there', id="no-such-user"),
    pytest.param(document(cluster={"server": ""}), {}, "clusters[c].server: it is not set", id="no-server"),
    pytest.param(document(cluster={"server": "ftp://x"}), {}, '"ftp://x" is not a server address', id="odd-scheme"),
    pytest.param(document(cluster={"server": "https://x:port"}), {}, "is not a server address", id="odd-port"),
    pytest.param(
        document(cluster={"proxy-url": "socks5://p"}),
        {},
        "clusters[c].proxy-url: socks5 proxies are not supported",
        id="socks",
    ),
    pytest.param(document(cluster={"proxy-url": "p"}), {}, '"p" is not a proxy address', id="odd-proxy"),
    pytest.param(
        document(cluster={"certificate-authority": "x", "insecure-skip-tls-verify": True}),
        {},
        "a certificate authority cannot be used while verification is off; remove one of the two",
        id="ca-and-insecure",
    ),
    pytest.param(
        document(cluster={"certificate-authority-data": "%%"}),
        {},
        "clusters[c].certificate-authority-data: it is not base64",
        id="not-base64",
    ),
    pytest.param(
        document(user={"client-certificate": "c"}),
        {},
        "users[u].client-key: a client certificate has no key",
        id="no-key",
    ),
    pytest.param(document(user={"username": "a", "token": "t"}), {}, "a token is given as well", id="two-logins"),
    pytest.param(document(user={"as-groups": ["g"]}), {}, "users[u].as:", id="groups-without-user"),
    pytest.param(
        document(user={"exec": {**V1_PLUGIN, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
        {},
        "users[u].exec.apiVersion:",
        id="dead-plugin-version",
    ),
    pytest.param(
        document(user={"exec": {"apiVersion": V1, "command": "p"}}),
        {},
        "exec.interactiveMode: it is not set",
        id="v1-needs-mode",
    ),
    pytest.param(
        document(user={"exec": {**V1_PLUGIN, "interactiveMode": "Maybe"}}), {}, '"Maybe" is not a mode', id="odd-mode"
    ),
    pytest.param(
        document(user={"exec": {**V1_PLUGIN, "command": ""}}), {}, "exec.command: it is not set", id="no-command"
    ),
    pytest.param(
        document(user={"exec": V1_PLUGIN, "auth-provider": {"name": "oidc"}}),
        {},
        "it stands beside an auth-provider",
        id="exec-and-provider",
    ),
    pytest.param(document(user={"auth-provider": {"name": "gcp"}}), {}, "exec credential plugin", id="gcp-is-gone"),
    pytest.param(
        document(user={"auth-provider": {"name": "oidc"}}), {}, "holds no usable id-token", id="oidc-without-token"
    ),
    pytest.param(
        document(user={"auth-provider": {"name": "oidc", "config": {"id-token": jwt({"exp": NOW_S - 1})}}}),
        {},
        "its id-token has expired; log in through an exec credential plugin",
        id="oidc-expired",
    ),
]


@pytest.mark.parametrize(("written", "choice", "told"), MISTAKES)
def test_a_mistake_is_told_by_file_field_and_remedy(written: dict[str, Any], choice: dict[str, Any], told: str) -> None:
    with pytest.raises(BadConfig) as caught:
        chosen(written, **choice)
    assert "/etc/0/config" in str(caught.value)
    assert told in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("written", "told"),
    [
        pytest.param([], "a kubeconfig is a map, this is a list", id="list"),
        pytest.param({"clusters": 3}, "f: clusters: Expected `array | null`, got `int`", id="clusters-a-number"),
        pytest.param(
            {"users": [{"name": "u", "user": {"token": 12}}]}, "put the value in quotes", id="number-for-token"
        ),
        pytest.param({"users": [{"user": {}}]}, "missing required field `name`", id="nameless"),
        pytest.param({"kind": "Pod", "apiVersion": "v1"}, "expected v1 Config, found v1 Pod", id="another-kind"),
    ],
)
def test_a_wrong_shape_is_told_by_field(written: Any, told: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse_kubeconfig("f", written)
    assert told in str(caught.value)


def test_no_secret_shows_when_a_connection_is_printed() -> None:
    user = {"client-certificate-data": b64("CERTSECRET"), "client-key-data": b64("KEYSECRET"), "token": "TOKENSECRET"}
    shown = repr(chosen(document(user=user))) + repr(chosen(document(user={"username": "u", "password": "PWSECRET"})))
    exec_ = {**V1_PLUGIN, "env": [{"name": "X", "value": "ENVSECRET"}]}
    shown += repr(chosen(document(user={"exec": exec_}), environ={"AWS": "AWSSECRET"}))
    assert "SECRET" not in shown
