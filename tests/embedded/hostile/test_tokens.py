"""A rotated token opens nothing from the moment of its rotation, and a certificate that a user names is served."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import aiohttp
import pytest

from koord.embedded.apiserver import data_directory
from koord.embedded.apiserver.data_directory import DataDirectoryError
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster


async def status(cluster: EmbeddedCluster, token: str, authority: bytes) -> int:
    trust = ssl.create_default_context(cadata=authority.decode())
    async with (
        aiohttp.ClientSession(cluster.url) as session,
        session.get("/api", headers={"Authorization": f"Bearer {token}"}, ssl=trust) as answer,
    ):
        return answer.status


async def test_rotation(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(ClusterSettings(port=0, data_dir=tmp_path))
    await cluster.start()
    try:
        authority = (tmp_path / "pki" / "ca.crt").read_bytes()
        old = cluster.token
        assert await status(cluster, old, authority) == 200
        trust = ssl.create_default_context(cadata=authority.decode())
        async with aiohttp.ClientSession(cluster.url, headers={"Authorization": f"Bearer {old}"}) as session:
            watch = await session.get("/api/v1/pods?watch=true", ssl=trust)
            assert watch.status == 200
            cluster.rotate_token()
            with pytest.raises(aiohttp.ClientError):
                await watch.content.readexactly(1 << 20)
        assert await status(cluster, old, authority) == 401
        assert await status(cluster, cluster.token, authority) == 200
        assert old not in cluster.kubeconfig()
        kept = tmp_path / "token"
        assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == (cluster.token, 0o600)
    finally:
        await cluster.stop()
    again = EmbeddedCluster(ClusterSettings(port=0, data_dir=tmp_path))
    await again.start()
    assert again.token == cluster.token
    await again.stop()


async def test_a_certificate_of_the_users_own(tmp_path: Path) -> None:
    made = data_directory.create_certificates(("127.0.0.1", "koord.example"))
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(made.serving.certificate + made.authority.certificate)
    key.write_bytes(made.serving.key)
    settings = ClusterSettings(port=0, tls_certificate=certificate, tls_key=key)
    cluster = EmbeddedCluster(settings)
    await cluster.start()
    try:
        assert await status(cluster, cluster.token, made.authority.certificate) == 200
        assert "koord.example" in data_directory.certificate_hosts(certificate.read_bytes())
    finally:
        await cluster.stop()
    key.write_bytes(b"no key")
    with pytest.raises(DataDirectoryError, match="are no certificate with its key"):
        await EmbeddedCluster(settings).start()
    with pytest.raises(DataDirectoryError, match="cannot read"):
        await EmbeddedCluster(ClusterSettings(port=0, tls_certificate=tmp_path / "x", tls_key=key)).start()
