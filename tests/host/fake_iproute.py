"""A whole fake of iproute2's tc and ip: devices with HTB classes and u32 filters, printed as version 6.1 does."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from koord.host.io_error import IoError, unsupported
from koord.host.tc import ProgramAnswer

DEFAULT = {"kind": "noqueue", "handle": "0:", "options": {}}
_UNITS = ("", "K", "M", "G", "T")


class TcError(Exception):
    """What tc prints when the kernel refuses."""


class FakeIproute:
    """The programs tc and ip on devices in memory. `refuse` are words: commands that have one of them fail."""

    def __init__(self, *devices: str) -> None:
        self.devices = {name: FakeDevice() for name in devices}
        self.refuse: set[str] = set()
        self.missing = False
        self.batches = 0

    def __call__(self, words: Sequence[str], text: str = "") -> ProgramAnswer | IoError:
        if self.missing:
            return unsupported(words[0], "there is none")
        if "-batch" not in words:
            try:
                return ProgramAnswer(0, self._ip(words) if words[0] == "ip" else self._show(words), "")
            except TcError as error:
                return ProgramAnswer(1, "", f"{error}\n")
        self.batches += 1
        errors: list[str] = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                self._do(line.split())
            except TcError as error:
                errors.append(f"{error}\nCommand failed -:{number}\n")
        return ProgramAnswer(1 if errors else 0, "", "".join(errors))

    def _device(self, name: str) -> FakeDevice:
        if name not in self.devices:
            raise TcError(f'Cannot find device "{name}"')
        return self.devices[name]

    def _show(self, words: Sequence[str]) -> str:
        if "dev" not in words:
            return "[]"
        device = self._device(words[list(words).index("dev") + 1])
        if "ffff:" in words:
            target = device.redirected
            return f"action order 1: mirred (Egress Redirect to device {target}) stolen" if target else ""
        shown = {"qdisc": device.show_qdiscs, "class": device.show_classes, "filter": device.show_filters}
        return next(shown[word]() for word in words if word in shown)

    def _ip(self, words: Sequence[str]) -> str:
        if self.refuse & set(words):
            raise TcError("RTNETLINK answers: Operation not permitted")
        verb = next(word for word in words if word in ("add", "set", "del", "show"))
        name = words[words.index("dev") + 1] if "dev" in words else words[words.index(verb) + 1]
        if verb == "add":
            self.devices[name] = FakeDevice()
        elif verb == "del":
            self._device(name)
            assert not any(one.redirected == name for one in self.devices.values()), "packets would be lost"
            del self.devices[name]
        elif verb == "set":
            self._device(name).up = True
        return json.dumps([{"ifname": name, "flags": ["UP"] if self._up(name) else []}]) if verb == "show" else ""

    def _up(self, name: str) -> bool:
        return self._device(name).up

    def _do(self, words: list[str]) -> None:
        if self.refuse & set(words):
            raise TcError("RTNETLINK answers: Operation not permitted")
        kind, verb, options = words[0], words[1], dict(pairwise(words[2:]))
        device = self._device(words[words.index("dev") + 1])
        if "ingress" in words or "ffff:" in words:
            device.change_ingress(words, options)
        else:
            getattr(device, f"{kind}_{verb}")(words, options)


class FakeDevice:
    """One device: its root qdisc with classes and filters, and where its incoming packets go."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = DEFAULT
        self.classes: dict[str, dict[str, str]] = {}
        self.tables: dict[str, dict[str, str]] = {}  # by pref: what its hash table is, and whether it is linked
        self.filters: dict[str, tuple[str, str, str, str]] = {}  # by handle: pref, address, class, side
        self.cgroup = False
        self.ingress = ""  # the kind of the qdisc of incoming packets
        self.redirected = ""
        self.up = False
        self._number = 0x800

    def change_ingress(self, words: list[str], options: dict[str, str]) -> None:
        if words[0] == "filter":
            self.redirected = words[-1]
        elif words[1] == "add":
            if self.ingress:
                raise TcError("Error: Exclusivity flag on, cannot modify.")
            self.ingress = "ingress"
        else:
            self.ingress = self.redirected = ""

    def remove_qdisc(self) -> None:
        self.root, self.classes, self.tables, self.filters, self.cgroup = DEFAULT, {}, {}, {}, False

    def qdisc_add(self, words: list[str], options: dict[str, str]) -> None:
        if self.root is not DEFAULT:
            raise TcError("Error: Exclusivity flag on, cannot modify.")
        kind = words[words.index("handle") + 2]
        rest = words[words.index(kind) + 1 :]
        shown: dict[str, Any] = {"default": f"0x{options['default']}"} if kind == "htb" else {}
        shown |= {name: int(value) for name, value in zip(rest[::2], rest[1::2], strict=True) if name != "default"}
        self.root = {"kind": kind, "handle": options["handle"], "options": shown}

    def qdisc_del(self, words: list[str], options: dict[str, str]) -> None:
        if self.root is DEFAULT:
            raise TcError("Error: Cannot delete qdisc with handle of zero.")
        self.remove_qdisc()

    def class_replace(self, words: list[str], options: dict[str, str]) -> None:
        parent = options["parent"]
        if parent != "1:" and parent not in self.classes:
            raise TcError("RTNETLINK answers: No such file or directory")
        if options["rate"] == "0bit":
            raise TcError('"rate" is required.')
        self.classes[options["classid"]] = options

    def class_del(self, words: list[str], options: dict[str, str]) -> None:
        name = options["classid"]
        if any(target == name for _, _, target, _ in self.filters.values()):
            raise TcError("Error: HTB class in use.")
        if self.classes.pop(name, None) is None:
            raise TcError("RTNETLINK answers: No such file or directory")

    def filter_add(self, words: list[str], options: dict[str, str]) -> None:
        pref = options["prio"]
        if "cgroup" in words:
            self.cgroup = True
        elif "divisor" in words:
            if pref in self.tables:
                raise TcError("Error: Filter already exists.")
            self.tables[pref] = {"table": options["handle"], "linked": ""}
        elif "link" in words:
            self.tables[pref]["linked"] = "yes"
        else:
            if options["flowid"] not in self.classes:
                raise TcError("RTNETLINK answers: Invalid argument")
            assert options["ht"].split(":")[0] == self.tables[pref]["table"].rstrip(":")
            self._number += 1
            side = "src" if "src" in options else "dst"
            handle = f"{options['ht']}{self._number:x}"
            self.filters[handle] = (pref, options[side].split("/")[0], options["flowid"], side)

    def filter_del(self, words: list[str], options: dict[str, str]) -> None:
        if "cgroup" in words:
            self.cgroup = False
        elif "handle" in words:
            del self.filters[options["handle"]]
        else:
            del self.tables[options["prio"]]
            self.filters = {handle: one for handle, one in self.filters.items() if one[0] != options["prio"]}

    def show_qdiscs(self) -> str:
        incoming = [{"kind": self.ingress, "handle": "ffff:", "parent": "ffff:fff1"}] if self.ingress else []
        return json.dumps([{**self.root, "root": True, "refcnt": 2}, *incoming])

    def show_classes(self) -> str:
        rows: list[str] = []
        for name, one in self.classes.items():
            parents = {other["parent"] for other in self.classes.values()}
            where = "root" if one["parent"] == "1:" else f"parent {one['parent']}"
            priority = "" if name in parents else f" prio {one['prio']}"
            rows.append(
                f"class htb {name} {where}{priority} rate {_rate(one['rate'])} ceil {_rate(one['ceil'])} burst 1b"
            )
        return "\n".join(rows)

    def show_filters(self) -> str:
        lines: list[str] = []
        if self.cgroup:
            lines += ["filter parent 1: protocol all pref 12 cgroup chain 0 ", " handle 0x1 "]
        for pref, table in self.tables.items():
            head = f"filter parent 1: protocol ip pref {pref} u32 chain 0 "
            lines += [head, f"{head}fh {table['table']} ht divisor 256 "]
            for handle, (own, address, target, side) in self.filters.items():
                if own != pref:
                    continue
                lines.append(f"{head}fh {handle} order 2048 key ht 2 bkt 1 *flowid {target} not_in_hw ")
                packed = ipaddress.ip_address(address).packed
                first = {("src", 4): 12, ("dst", 4): 16, ("src", 16): 8, ("dst", 16): 24}[side, len(packed)]
                words = [packed[start : start + 4].hex() for start in range(0, len(packed), 4)]
                lines += [f"  match {word}/ffffffff at {first + 4 * index}" for index, word in enumerate(words)]
            if table["linked"]:
                lines += [f"{head}fh 800::800 order 2048 key ht 800 bkt 0 link {table['table']} not_in_hw "]
                lines += ["  match 00000000/00000000 at 0", "    hash mask 000000ff at 12 "]
        return "\n".join(lines)


def _rate(text: str) -> str:
    """Print a rate with as few digits as tc does."""
    bits = int(text.removesuffix("bit")) // 8 * 8
    unit = 0
    while unit < len(_UNITS) - 1 and bits >= 1000 and (bits % 1000 == 0 or bits >= 1_000_000):
        bits, unit = bits // 1000, unit + 1
    return f"{bits}{_UNITS[unit]}bit"
