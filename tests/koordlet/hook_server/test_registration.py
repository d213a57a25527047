"""The file by which koordlet registers with a runtime proxy."""

from __future__ import annotations

from pathlib import Path

from koord.host.filesystem import Host
from koord.koordlet.hook_server.registered_server import (
    FILE_NAME,
    HookRegistration,
    enabled_stages,
    remove_registration,
    write_registration,
)
from koord.wire.runtime_hook import RuntimeHookStage

TEXT = """{
\t"remote-endpoint": "/var/run/koordlet/koordlet.sock",
\t"failure-policy": "Ignore",
\t"runtime-hooks": [
\t\t"PreRunPodSandbox",
\t\t"PreCreateContainer",
\t\t"PreUpdateContainerResources"
\t]
}"""
USUAL = HookRegistration(endpoint="/var/run/koordlet/koordlet.sock", failure_policy="Ignore")


def test_the_text_is_koordinators() -> None:
    assert USUAL.text() == TEXT


def test_what_is_empty_is_left_out() -> None:
    assert HookRegistration(endpoint="/x", failure_policy="", stages=()).text() == '{\n\t"remote-endpoint": "/x"\n}'


def test_stages_are_disabled_by_name() -> None:
    assert enabled_stages(["PreCreateContainer", "Nonsense"]) == [
        RuntimeHookStage.PRE_RUN_POD_SANDBOX,
        RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES,
    ]


def test_it_is_written_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "hookserver.d"
    assert write_registration(Host(), str(folder), USUAL) is None
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]
    assert (folder / FILE_NAME).read_text() == TEXT
    assert remove_registration(Host(), str(folder)) is None
    assert list(folder.iterdir()) == []
    assert remove_registration(Host(), str(folder)) is None


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert write_registration(Host(), str(tmp_path / "file" / "below"), USUAL) is not None
