"""This module parses and merges kubeconfig documents. Reading files is the loader's work.

Where a setting is given twice the rules are kubectl's: the first file to name a cluster, user or context
wins whole; inline data wins over a file; a static token wins over a plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koord.kube.config.connection import BadConfig


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
