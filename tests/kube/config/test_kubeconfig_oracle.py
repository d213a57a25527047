"""The loader against kubernetes_asyncio's on the settings that both know."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes_asyncio import client as oracle_client
from kubernetes_asyncio import config as oracle_config

from koord.kube.config.connection import Connection, PemSource
from koord.kube.config.kubeconfig import ConnectionOverrides
from koord.kube.config.loader import load_connection
from koord.kube.transport.credentials import credential_source
from koord.telemetry.clock import ManualClock

PEM = b"-----BEGIN X-----\n-----END X-----\n"
DATA = base64.b64encode(PEM).decode()

CLUSTER = st.fixed_dictionaries(
    {"server": st.sampled_from(["https://a:6443", "https://b/prefix/"])},
    optional={
        "tls-server-name": st.sampled_from(["x.test", "y.test"]),
        "proxy-url": st.just("http://proxy:3128"),
    },
) | st.fixed_dictionaries(
    {"server": st.just("https://c"), "insecure-skip-tls-verify": st.booleans()},
)
AUTHORITY = st.sampled_from([{}, {"certificate-authority": "ca.crt"}, {"certificate-authority-data": DATA}])
LOGIN = st.sampled_from(
    [
        {},
        {"token": "abc"},
        {"tokenFile": "token"},
        {"username": "me", "password": "pw"},
        {"client-certificate": "cert.pem", "client-key": "key.pem"},
        {"client-certificate-data": DATA, "client-key-data": DATA, "token": "both"},
    ]
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    names = ["one", "two"]
    clusters = []
    for name in names:
        cluster = draw(CLUSTER)
        if not cluster.get("insecure-skip-tls-verify"):  # we refuse the pair, as kubectl does; the oracle takes it
            cluster = {**cluster, **draw(AUTHORITY)}
        clusters.append({"name": name, "cluster": cluster})
    contexts = [
        {"name": name, "context": {"cluster": draw(st.sampled_from(names)), "user": draw(st.sampled_from(names))}}
        for name in names
    ]
    users = [{"name": name, "user": draw(LOGIN)} for name in names]
    current = draw(st.sampled_from(names))
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": clusters,
        "contexts": contexts,
        "users": users,
    }


def content(path: str | None) -> bytes:
    return Path(path).read_bytes() if path else b""


def pem(pem: PemSource | None) -> bytes:
    if pem is None:
        return b""
    return pem.data if pem.data is not None else Path(pem.path).read_bytes()


async def ours(connection: Connection) -> dict[str, Any]:
    credential = await credential_source(connection, ManualClock()).credential()
    pair = credential.certificate
    return {
        "host": connection.server,
        "verify": not connection.insecure,
        "ca": pem(connection.ca),
        "cert": pem(pair.certificate if pair else None),
        "key": pem(pair.key if pair else None),
        "authorization": credential.authorization,
        "server_name": connection.tls_server_name,
        "proxy": connection.proxy_url,
    }


async def theirs(files: str, context: str | None) -> dict[str, Any]:
    loaded = oracle_client.Configuration()
    await oracle_config.load_kube_config(files, context=context, client_configuration=loaded, persist_config=False)
    return {
        "host": loaded.host,
        "verify": loaded.verify_ssl,
        "ca": content(loaded.ssl_ca_cert),
        "cert": content(loaded.cert_file),
        "key": content(loaded.key_file),
        "authorization": loaded.api_key.get("BearerToken", ""),
        "server_name": loaded.tls_server_name or "",
        "proxy": loaded.proxy or "",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kube")
    for name in ("ca.crt", "cert.pem", "key.pem"):
        (made / name).write_bytes(PEM + name.encode())
    (made / "token").write_text("from-file")
    return made


FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(config=configs(), context=st.sampled_from([None, "one", "two"]))
@FUZZ
async def test_one_file(folder: Path, config: dict[str, Any], context: str | None) -> None:
    file = folder / "config"
    file.write_text(json.dumps(config))
    mine = load_connection({}, ManualClock(), path=str(file), choice=ConnectionOverrides(context=context or ""))
    assert await ours(mine) == await theirs(str(file), context)


@given(first=configs(), second=configs(), context=st.sampled_from(["one", "two"]))
@FUZZ
async def test_two_files_merge_alike(folder: Path, first: dict[str, Any], second: dict[str, Any], context: str) -> None:
    """The first file holds half of the entries, so both files matter. The context is chosen by hand because the oracle
    takes the last file's current-context, where kubectl and we take the first's."""
    halved = {**first, **{section: first[section][:1] for section in ("clusters", "users", "contexts")}}
    files = [folder / "first", folder / "second"]
    for file, config in zip(files, (halved, second)):
        file.write_text(json.dumps(config))
    joined = f"{files[0]}:{files[1]}"
    mine = load_connection({"KUBECONFIG": joined}, ManualClock(), choice=ConnectionOverrides(context=context))
    assert await ours(mine) == await theirs(joined, context)
