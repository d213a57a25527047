"""This module parses and merges kubeconfig documents. Reading files is the loader's work.

Where a setting is given twice the rules are kubectl's: the first file to name a cluster, user or context
wins whole; inline data wins over a file; a static token wins over a plugin.

It also resolves a merged kubeconfig and a user's overrides to one Connection; it opens no file.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from koord.api.model import decode_text
from koord.kube.config.connection import (
    AnonymousAuth,
    Auth,
    BadConfig,
    BasicAuth,
    ClientKeyPair,
    Connection,
    ExecAuth,
    IdTokenAuth,
    Impersonation,
    PemSource,
    SettingOrigin,
    TokenAuth,
    TokenFileAuth,
    proxy_from_environment,
    validate_proxy_url,
)


class _Entry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """_Entry is the base of kubeconfig entries. Unknown keys are ignored: newer tools write more than we read."""


class NamedExtension(_Entry, frozen=True, kw_only=True):
    name: str
    extension: Any = None


class KubeconfigCluster(_Entry, frozen=True, kw_only=True):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[NamedExtension, ...] | None = None


class ExecEnv(_Entry, frozen=True, kw_only=True):
    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str = ""
    command: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[ExecEnv, ...] | None = None
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class AuthProvider(_Entry, frozen=True, kw_only=True):
    name: str = ""
    config: dict[str, str] | None = None


class KubeconfigUser(_Entry, frozen=True, kw_only=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    as_user: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: tuple[str, ...] | None = None
    as_user_extra: dict[str, tuple[str, ...]] | None = None
    username: str = ""
    password: str = ""
    exec: ExecConfig | None = None
    auth_provider: AuthProvider | None = None


class KubeconfigContext(_Entry, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Entry, frozen=True, kw_only=True):
    name: str
    cluster: KubeconfigCluster | None = None


class _NamedUser(_Entry, frozen=True, kw_only=True):
    name: str
    user: KubeconfigUser | None = None


class _NamedContext(_Entry, frozen=True, kw_only=True):
    name: str
    context: KubeconfigContext | None = None


class KubeconfigDocument(_Entry, frozen=True, kw_only=True):
    api_version: str = msgspec.field(name="apiVersion", default="v1")
    kind: str = "Config"
    current_context: str | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


E = TypeVar("E")


class KubeconfigEntry(msgspec.Struct, frozen=True):
    """KubeconfigEntry is an entry and the file it is from: relative paths in it are relative to that file."""

    value: Any
    file: str


class Kubeconfig(msgspec.Struct, frozen=True, kw_only=True):
    """Kubeconfig is the merge of all documents."""

    current_context: str
    clusters: Mapping[str, KubeconfigEntry]
    users: Mapping[str, KubeconfigEntry]
    contexts: Mapping[str, KubeconfigEntry]
    files: tuple[str, ...]


def parse_kubeconfig(file: str, loaded: Any) -> KubeconfigDocument:
    """Convert a loaded YAML value, whatever it is, to a kubeconfig document."""
    if loaded is None:  # an empty file is an empty config
        return KubeconfigDocument()
    if not isinstance(loaded, dict):
        raise BadConfig(
            file, "", f"a kubeconfig is a map, this is a {_yaml_type_name(loaded)}", "check that this is the right file"
        )
    try:
        document = msgspec.convert(loaded, KubeconfigDocument)
    except msgspec.ValidationError as wrong:
        problem, _, path = str(wrong).partition(" - at ")
        field = path.strip("`").removeprefix("$.") or "(top level)"
        raise BadConfig(file, field, problem, _remedy(problem)) from None
    except RecursionError:
        raise BadConfig(file, "", "it contains itself through a YAML alias", "remove the alias") from None
    if document.kind != "Config" or document.api_version != "v1":
        found = f"{document.api_version} {document.kind}"
        raise BadConfig(file, "kind", f"expected v1 Config, found {found}", "check that this is the right file")
    return document


def merge_kubeconfigs(documents: Sequence[tuple[str, KubeconfigDocument]]) -> Kubeconfig:
    """Merge documents in order: an entry that an earlier file has named is not touched by later files."""
    clusters: dict[str, KubeconfigEntry] = {}
    users: dict[str, KubeconfigEntry] = {}
    contexts: dict[str, KubeconfigEntry] = {}
    current = ""
    for file, document in documents:
        current = current or document.current_context or ""
        _add_entries(
            clusters, file, "clusters", [(c.name, c.cluster or KubeconfigCluster()) for c in document.clusters or ()]
        )
        _add_entries(users, file, "users", [(u.name, u.user or KubeconfigUser()) for u in document.users or ()])
        _add_entries(
            contexts, file, "contexts", [(c.name, c.context or KubeconfigContext()) for c in document.contexts or ()]
        )
    return Kubeconfig(
        current_context=current,
        clusters=clusters,
        users=users,
        contexts=contexts,
        files=tuple(file for file, _ in documents),
    )


def _add_entries(into: dict[str, KubeconfigEntry], file: str, section: str, entries: Sequence[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, value in entries:
        if name in seen:
            raise BadConfig(file, section, f'the name "{name}" is used twice', "rename or remove one of them")
        seen.add(name)
        into.setdefault(name, KubeconfigEntry(value, file))


def _yaml_type_name(value: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)


def _remedy(problem: str) -> str:
    if "`str`" in problem and any(f"got `{kind}`" in problem for kind in ("int", "float", "bool")):
        return "put the value in quotes"
    return "correct the value"


EXEC_EXTENSION = "client.authentication.k8s.io/exec"
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_MODES = ("Never", "IfAvailable", "Always")


class ConnectionOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """ConnectionOverrides is what the command line may say over the files. Empty means: as the files say."""

    context: str = ""
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    server: str = ""
    token: str = ""
    certificate_authority: str = ""
    insecure: bool | None = None
    tls_server_name: str = ""
    as_user: str = ""
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()


def resolve_connection(
    config: Kubeconfig, choice: ConnectionOverrides, environ: Mapping[str, str], *, now_s: float, terminal: bool = False
) -> Connection:
    """Resolve the connection. `environ` is for plugins and proxies, `now_s` for the expiry of legacy OIDC tokens."""
    name, context = _context(config, choice)
    cluster_name = choice.cluster or context.cluster
    user_name = choice.user or context.user
    cluster = _entry(config, config.clusters, cluster_name, "clusters", f'context "{name}"', bool(choice.server))
    user = _entry(config, config.users, user_name, "users", f'context "{name}"', not user_name)
    return _ConnectionBuilder(cluster, cluster_name, user, user_name, environ, now_s, terminal).build(
        choice, name, context
    )


def _context(config: Kubeconfig, choice: ConnectionOverrides) -> tuple[str, KubeconfigContext]:
    name = choice.context or config.current_context
    if name in config.contexts:
        context: KubeconfigContext = config.contexts[name].value
        return name, context
    if not choice.context and (choice.cluster or choice.server):  # enough is said without a context
        return name, KubeconfigContext()
    where = ", ".join(config.files)
    known = ", ".join(sorted(config.contexts)) or "none"
    if not name:
        raise BadConfig(where, "current-context", "it is not set", f"name a context, there are: {known}")
    field = "contexts" if choice.context else "current-context"
    raise BadConfig(where, field, f'there is no context "{name}"', f"choose one of: {known}")


def _entry(
    config: Kubeconfig, entries: Mapping[str, KubeconfigEntry], name: str, section: str, asked_by: str, optional: bool
) -> KubeconfigEntry:
    if name in entries:
        return entries[name]
    if optional:
        return KubeconfigEntry(
            KubeconfigCluster() if section == "clusters" else KubeconfigUser(), config.files[0] if config.files else ""
        )
    known = ", ".join(sorted(entries)) or "none"
    problem = f'{asked_by} names "{name}", which is not there' if name else f"{asked_by} names none"
    raise BadConfig(", ".join(config.files), section, problem, f"choose one of: {known}")


class _ConnectionBuilder:
    """_ConnectionBuilder converts a cluster and a user entry to a Connection; it has their names for messages."""

    def __init__(
        self,
        cluster: KubeconfigEntry,
        cluster_name: str,
        user: KubeconfigEntry,
        user_name: str,
        environ: Mapping[str, str],
        now_s: float,
        terminal: bool,
    ) -> None:
        self._cluster: KubeconfigCluster = cluster.value
        self._user: KubeconfigUser = user.value
        self._cluster_file, self._cluster_name = cluster.file, cluster_name
        self._user_file, self._user_name = user.file, user_name
        self._environ = environ
        self._now_s = now_s
        self._terminal = terminal

    def _in_cluster(self, field: str) -> SettingOrigin:
        return SettingOrigin(self._cluster_file, f"clusters[{self._cluster_name}].{field}")

    def _in_user(self, field: str) -> SettingOrigin:
        return SettingOrigin(self._user_file, f"users[{self._user_name}].{field}")

    def build(self, choice: ConnectionOverrides, context_name: str, context: KubeconfigContext) -> Connection:
        cluster = self._cluster
        given = "" if choice.certificate_authority else cluster.certificate_authority_data
        path = choice.certificate_authority or _relative_to_file(self._cluster_file, cluster.certificate_authority)
        ca = _pem(self._in_cluster("certificate-authority"), path, given)
        insecure = cluster.insecure_skip_tls_verify if choice.insecure is None else choice.insecure
        if insecure and ca is not None:
            if choice.insecure:  # the person at the keyboard asked for it: what the file says gives way
                ca = None
            else:
                problem = "a certificate authority cannot be used while verification is off"
                raise self._in_cluster("insecure-skip-tls-verify").error(problem, "remove one of the two")
        certificate = self._certificate()
        secure = ca is not None or insecure or certificate is not None
        server = self._server(choice.server or cluster.server, secure)
        proxy = validate_proxy_url(cluster.proxy_url, self._in_cluster("proxy-url"))
        return Connection(
            server=server,
            origin=self._in_cluster("server"),
            namespace=choice.namespace or context.namespace or "default",
            context=context_name,
            ca=ca,
            insecure=insecure,
            tls_server_name=choice.tls_server_name or cluster.tls_server_name,
            proxy_url=proxy or proxy_from_environment(server, self._environ),
            compress=not cluster.disable_compression,
            certificate=certificate,
            auth=TokenAuth(token=choice.token) if choice.token else self._auth(),
            impersonate=self._impersonation(choice),
        )

    def _server(self, server: str, secure: bool) -> str:
        origin = self._in_cluster("server")
        if not server:
            raise origin.error("it is not set", "give the address of the API server")
        url = server if "://" in server else f"{'https' if secure else 'http'}://{server}"
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable or any(ord(c) <= 32 for c in url):
            raise origin.error(f'"{server}" is not a server address', "write it like https://host:6443")
        return url.rstrip("/")

    def _certificate(self) -> ClientKeyPair | None:
        user = self._user
        cert = _pem(
            self._in_user("client-certificate"),
            _relative_to_file(self._user_file, user.client_certificate),
            user.client_certificate_data,
        )
        key = _pem(
            self._in_user("client-key"), _relative_to_file(self._user_file, user.client_key), user.client_key_data
        )
        if cert is None:
            return None
        if key is None:
            raise self._in_user("client-key").error(
                "a client certificate has no key", "set client-key or client-key-data"
            )
        return ClientKeyPair(certificate=cert, key=key)

    def _auth(self) -> Auth:
        user = self._user
        if user.exec is not None and user.auth_provider is not None:
            raise self._in_user("exec").error("it stands beside an auth-provider", "remove one of the two")
        if user.username and (user.token or user.token_file):
            raise self._in_user("username").error("a token is given as well", "keep one way to log in")
        if user.token_file:
            path = _relative_to_file(self._user_file, user.token_file)
            return TokenFileAuth(origin=self._in_user("tokenFile"), path=path, fallback=user.token)
        if user.token:
            return TokenAuth(token=user.token)
        if user.username:
            return BasicAuth(username=user.username, password=user.password)
        if user.exec is not None:
            return self._exec(user.exec)
        if user.auth_provider is not None:
            return self._auth_provider(user.auth_provider.name, user.auth_provider.config or {})
        return AnonymousAuth()

    def _exec(self, spec: ExecConfig) -> ExecAuth:
        origin = self._in_user("exec")
        if not spec.command:
            raise self._in_user("exec.command").error("it is not set", "name the credential plugin's program")
        if spec.api_version not in _EXEC_VERSIONS:
            problem = f'"{spec.api_version}" is not a plugin protocol that is still spoken'
            raise self._in_user("exec.apiVersion").error(problem, f"update the plugin and use {_EXEC_VERSIONS[0]}")
        mode = spec.interactive_mode or ("" if spec.api_version == _EXEC_VERSIONS[0] else "IfAvailable")
        if mode not in _MODES:
            problem = f'"{mode}" is not a mode' if mode else "it is not set"
            raise self._in_user("exec.interactiveMode").error(problem, f"use one of {', '.join(_MODES)}")
        command = spec.command
        if "/" in command:  # a bare name is looked up in PATH, anything else is a path beside the file
            command = _relative_to_file(self._user_file, command)
        extensions = {e.name: e.extension for e in self._cluster.extensions or ()}
        extension = extensions.get(EXEC_EXTENSION) if spec.provide_cluster_info else None
        try:
            msgspec.json.encode(extension)
        except (TypeError, ValueError, RecursionError) as wrong:
            problem = f"what it holds for the plugin is not JSON ({wrong})"
            raise self._in_cluster("extensions").error(problem, "correct the value") from None
        return ExecAuth(
            origin=origin,
            api_version=spec.api_version,
            command=command,
            args=spec.args or (),
            env={e.name: e.value for e in spec.env or ()},
            install_hint=spec.install_hint,
            interactive_mode=mode,  # type: ignore[arg-type]
            provide_cluster_info=spec.provide_cluster_info,
            cluster_config=extension,
            environ=self._environ,
            terminal=self._terminal,
        )

    def _auth_provider(self, provider: str, config: Mapping[str, str]) -> IdTokenAuth:
        origin = self._in_user("auth-provider")
        if provider != "oidc":
            problem = f'the auth-provider "{provider}" was removed from Kubernetes clients'
            raise origin.error(problem, "use the provider's exec credential plugin")
        token = config.get("id-token", "")
        expires_s = token_expiry_s(token)
        if expires_s is None:
            raise origin.error("it holds no usable id-token", "log in through an exec credential plugin for OIDC")
        if expires_s <= self._now_s:
            raise origin.error("its id-token has expired", "log in through an exec credential plugin for OIDC")
        return IdTokenAuth(origin=origin, token=token, expires_s=expires_s)

    def _impersonation(self, choice: ConnectionOverrides) -> Impersonation | None:
        user = self._user
        if choice.as_user:  # a new person: nothing of the file's person is kept
            return Impersonation(user=choice.as_user, uid=choice.as_uid, groups=choice.as_groups)
        name, uid = user.as_user, choice.as_uid or user.as_uid
        groups = choice.as_groups or user.as_groups or ()
        if name:
            return Impersonation(user=name, uid=uid, groups=groups, extra=user.as_user_extra or {})
        if uid or groups or user.as_user_extra:
            raise self._in_user("as").error(
                "a uid, groups or extra are impersonated without a user", "name the user too"
            )
        return None


def token_expiry_s(token: str) -> float | None:
    """Return when a JSON Web Token expires, or None when it is none or does not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = decode_text(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), object)
    except ValueError:  # not base64
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return float(expiry) if isinstance(expiry, int | float) else None


def _relative_to_file(file: str, path: str) -> str:
    """Resolve a path relative to the file that holds it."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), path)) if path else ""


def _pem(origin: SettingOrigin, path: str, data: str) -> PemSource | None:
    if data:
        origin = SettingOrigin(origin.file, f"{origin.field}-data")
        try:
            return PemSource(origin=origin, data=base64.b64decode("".join(data.split()), validate=True))
        except (ValueError, binascii.Error):
            raise origin.error("it is not base64", "encode the PEM text with base64") from None
    return PemSource(origin=origin, path=path) if path else None
