"""Tokens in files that others renew, and tokens that nobody renews."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koord.kube.config.connection import (
    AnonymousAuth,
    Auth,
    BadConfig,
    BasicAuth,
    Connection,
    IdTokenAuth,
    SettingOrigin,
    TokenAuth,
    TokenFileAuth,
)
from koord.kube.transport.credentials import TokenFileCredentialSource, credential_source
from koord.telemetry.clock import VIRTUAL_EPOCH, ManualClock

ORIGIN = SettingOrigin("config", "users[u].tokenFile")


def connection(auth: Auth) -> Connection:
    return Connection(server="https://h", origin=ORIGIN, auth=auth)


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        pytest.param(AnonymousAuth(), "", id="anonymous"),
        pytest.param(TokenAuth(token="t"), "Bearer t", id="token"),
        pytest.param(BasicAuth(username="me", password="pä"), "Basic bWU6cMOk", id="basic"),
    ],
)
async def test_fixed_credentials(auth: Auth, header: str) -> None:
    credentials = credential_source(connection(auth), ManualClock())
    credential = await credentials.credential()
    assert credential.authorization == header
    assert not credentials.rejected(credential)


def token_file(path: Path, fallback: str = "") -> TokenFileCredentialSource:
    return TokenFileCredentialSource(TokenFileAuth(origin=ORIGIN, path=str(path), fallback=fallback), None)


async def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    credentials = token_file(file)
    first = await credentials.credential()
    assert first is await credentials.credential()
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(file)
    assert (await credentials.credential()).authorization == "Bearer two"


async def test_a_rejection_reads_even_a_file_whose_times_did_not_change(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    credentials = token_file(file)
    credential = await credentials.credential()
    before = file.stat()
    assert not credentials.rejected(credential)  # the same token would be refused again
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert credentials.rejected(credential)
    assert (await credentials.credential()).authorization == "Bearer two"


async def test_a_file_that_is_away_for_a_moment_keeps_the_last_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    credentials = token_file(file)
    await credentials.credential()
    file.write_text("")
    assert (await credentials.credential()).authorization == "Bearer one"
    file.unlink()
    assert (await credentials.credential()).authorization == "Bearer one"


async def test_the_inline_token_serves_until_the_file_appears(tmp_path: Path) -> None:
    credentials = token_file(tmp_path / "token", fallback="inline")
    assert (await credentials.credential()).authorization == "Bearer inline"
    (tmp_path / "token").write_text("file")
    assert (await credentials.credential()).authorization == "Bearer file"


@pytest.mark.parametrize("text", [None, "", "two\nlines"], ids=["missing", "empty", "two-lines"])
async def test_no_token_at_all_is_told(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "token").write_text(text)
    with pytest.raises(BadConfig, match=r"users\[u\].tokenFile: no token can be read from"):
        await token_file(tmp_path / "token").credential()


async def test_an_oidc_token_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    auth = IdTokenAuth(origin=ORIGIN, token="t", expires_s=VIRTUAL_EPOCH + 10)
    credentials = credential_source(connection(auth), clock)
    assert (await credentials.credential()).authorization == "Bearer t"
    clock.advance(10)
    with pytest.raises(BadConfig, match="exec credential plugin"):
        await credentials.credential()
