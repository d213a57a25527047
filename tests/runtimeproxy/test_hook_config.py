"""Registrations of hook servers are read as they come, change and go."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.runtimeproxy.hook_client import HookConfigFolder, HookServerConfig, parse_hook_config, server_of_stage
from koord.wire.runtime_hook import RuntimeHookStage

TEXT = '{\n\t"remote-endpoint": "/x.sock",\n\t"failure-policy": "Fail",\n\t"runtime-hooks": ["PreRunPodSandbox"]\n}'
CONFIG = HookServerConfig("/x.sock", "Fail", ("PreRunPodSandbox",))


@pytest.fixture
async def configs(tmp_path: Path) -> AsyncIterator[HookConfigFolder]:
    found = HookConfigFolder(str(tmp_path / "made" / "hookserver.d"))
    found.scan()
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "hookserver.d"


async def test_the_folder_is_made(configs: HookConfigFolder, folder: Path) -> None:
    assert os.stat(folder).st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (TEXT, CONFIG),
        ('{"REMOTE-endpoint": "/x", "other": 1}', HookServerConfig("/x")),
        ('{"remote-endpoint": "/x", "runtime-hooks": null}', HookServerConfig("/x")),
    ],
)
def test_registrations_are_read_as_go_reads_them(text: str, wanted: HookServerConfig) -> None:
    assert parse_hook_config(text) == wanted


@pytest.mark.parametrize("text", ["{", "[]", "null", "{}", '{"remote-endpoint": 5}', "\xff", "[" * 5000])
def test_what_is_no_registration_says_why(text: str) -> None:
    assert isinstance(parse_hook_config(text), str)


@pytest.mark.parametrize(
    ("policy", "fails"), [("Fail", True), ("Ignore", False), ("", False), ("fail", False), ("None", False)]
)
def test_only_fail_fails_calls(policy: str, fails: bool) -> None:
    assert HookServerConfig("/x", policy).fails_calls is fails


def test_a_stage_that_nobody_wants_has_no_server() -> None:
    assert server_of_stage({"a.json": CONFIG}, RuntimeHookStage.PRE_CREATE_CONTAINER) is None
    assert server_of_stage({"a.json": CONFIG}, RuntimeHookStage.PRE_RUN_POD_SANDBOX) is CONFIG


async def changed(configs: HookConfigFolder, wanted: dict[str, HookServerConfig]) -> None:
    while configs.configs != wanted:
        await configs.wait_for_change()
        configs.scan()


async def test_files_that_come_change_and_go_are_noticed(configs: HookConfigFolder, folder: Path) -> None:
    (folder / "a.json").write_text(TEXT)
    (folder / "README").write_text(TEXT)
    (folder / "b.notjson").write_text(TEXT)  # ends with json, as upstream takes it
    await changed(configs, {"a.json": CONFIG, "b.notjson": CONFIG})
    (folder / "b.notjson").unlink()
    await changed(configs, {"a.json": CONFIG})
    (folder / "new").write_text(TEXT.replace("Fail", "Ignore"))
    (folder / "new").rename(folder / "a.json")
    await changed(configs, {"a.json": HookServerConfig("/x.sock", "Ignore", ("PreRunPodSandbox",))})


async def test_a_change_in_place_is_noticed(configs: HookConfigFolder, folder: Path) -> None:
    (folder / "a.json").write_text(TEXT)
    await changed(configs, {"a.json": CONFIG})
    with (folder / "a.json").open("r+") as file:
        file.write(TEXT.replace("/x.sock", "/y.sock"))
    await changed(configs, {"a.json": HookServerConfig("/y.sock", "Fail", ("PreRunPodSandbox",))})


async def test_bad_text_keeps_the_registration_and_is_told_once(
    configs: HookConfigFolder, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a.json").write_text(TEXT)
    configs.scan()
    (folder / "a.json").write_text('{"remote')
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            configs.scan()
    assert configs.configs == {"a.json": CONFIG}
    assert len(caplog.records) == 1
    assert "the earlier registration stays" in caplog.text


async def test_a_folder_that_was_removed_and_made_again_is_watched_again(
    configs: HookConfigFolder, folder: Path
) -> None:
    (folder / "a.json").write_text(TEXT)
    await changed(configs, {"a.json": CONFIG})
    (folder / "a.json").unlink()
    os.rmdir(folder)
    await changed(configs, {})
    waiting = asyncio.create_task(changed(configs, {"c.json": HookServerConfig("/z")}))
    (folder / "c.json").write_text(json.dumps({"remote-endpoint": "/z"}))
    await waiting


async def test_a_folder_or_a_pipe_is_no_registration(configs: HookConfigFolder, folder: Path) -> None:
    os.mkdir(folder / "a.json")
    os.mkfifo(folder / "b.json")
    (folder / "c.json").write_text(TEXT)
    configs.scan()
    assert configs.configs == {"c.json": CONFIG}


async def test_a_folder_that_cannot_be_read_is_told_once_and_used_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    configs = HookConfigFolder(str(tmp_path / "taken"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            configs.scan()
    assert len(caplog.records) == 1
    assert "cannot read" in caplog.text
    (tmp_path / "taken").unlink()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "a.json").write_text(TEXT)
    configs.scan()
    assert configs.configs == {"a.json": CONFIG}
