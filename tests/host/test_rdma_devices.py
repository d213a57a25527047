"""The verbs device of a PCI function, and the numbers of a character device."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from koord.host.devices import CharacterDevice, character_device, verbs_device
from koord.host.filesystem import Host, HostPaths
from koord.host.io_error import IoError

ADDRESS = "0000:1f:00.2"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(HostPaths().below_root(str(tmp_path)))


def verbs_folder(host: Host) -> Path:
    folder = Path(host.paths.sys) / "bus/pci/devices" / ADDRESS / "infiniband_verbs"
    folder.mkdir(parents=True)
    return folder


def test_the_first_verbs_device_of_a_function(host: Host) -> None:
    folder = verbs_folder(host)
    (folder / "uverbs3").mkdir()
    assert verbs_device(host, ADDRESS) == "/dev/infiniband/uverbs3"


def test_a_function_without_a_verbs_device_is_an_error(host: Host) -> None:
    missing = verbs_device(host, ADDRESS)
    assert isinstance(missing, IoError)
    assert missing.vanished
    folder = verbs_folder(host)
    empty = verbs_device(host, ADDRESS)
    assert isinstance(empty, IoError)
    assert empty.path == str(folder)


def test_numbers_of_a_character_device() -> None:
    """Every Linux has /dev/null with the numbers 1 and 3."""
    assert character_device(Host(), "/dev/null") == CharacterDevice(path="/dev/null", major=1, minor=3)


def test_the_hosts_devices_may_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to(os.devnull)
    elsewhere = Host(msgspec.structs.replace(HostPaths(), dev=str(tmp_path)))
    assert character_device(elsewhere, "/dev/null") == CharacterDevice(path="/dev/null", major=1, minor=3)


def test_what_is_no_character_device_is_an_error(host: Host) -> None:
    missing = character_device(host, "/dev/infiniband/rdma_cm")
    assert isinstance(missing, IoError)
    assert missing.vanished
    file = Path(host.paths.dev) / "infiniband/rdma_cm"
    file.parent.mkdir(parents=True)
    file.touch()
    plain = character_device(host, "/dev/infiniband/rdma_cm")
    assert isinstance(plain, IoError)
    assert "character" in str(plain)
