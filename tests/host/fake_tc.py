"""A whole fake of iproute2's tc for one device: HTB classes and u32 filters in memory, printed as version 6.1 does."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from koord.host.io_error import IoError, unsupported
from koord.host.tc import TcAnswer

DEFAULT = {"kind": "noqueue", "handle": "0:", "options": {}}
_UNITS = ("", "K", "M", "G", "T")


class TcError(Exception):
    """What tc prints when the kernel refuses."""


class FakeTc:
    """The device `eth0`. `refuse` are words: commands that have one of them fail."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = DEFAULT
        self.classes: dict[str, dict[str, str]] = {}
        self.tables: dict[str, dict[str, str]] = {}  # by pref: what its hash table is, and whether it is linked
        self.filters: dict[str, tuple[str, str, str]] = {}  # by handle: pref, address, class
        self.cgroup = False
        self.refuse: set[str] = set()
        self.missing = False
        self.device = "eth0"
        self.batches = 0
        self._number = 0x800

    def __call__(self, words: Sequence[str], text: str = "") -> TcAnswer | IoError:
        if self.missing:
            return unsupported("tc", "there is none")
        if "-batch" not in words:
            if words[-1] != self.device:
                return TcAnswer(1, "", f'Cannot find device "{words[-1]}"\n')
            shown = {"qdisc": self._qdisc, "class": self._classes, "filter": self._filters}
            return TcAnswer(0, next(shown[word]() for word in words if word in shown), "")
        self.batches += 1
        errors: list[str] = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                self._do(line.split())
            except TcError as error:
                errors.append(f"{error}\nCommand failed -:{number}\n")
        return TcAnswer(1 if errors else 0, "", "".join(errors))

    def remove_qdisc(self) -> None:
        self.root, self.classes, self.tables, self.filters, self.cgroup = DEFAULT, {}, {}, {}, False

    def _do(self, words: list[str]) -> None:
        if self.refuse & set(words):
            raise TcError("RTNETLINK answers: Operation not permitted")
        kind, verb, options = words[0], words[1], dict(pairwise(words[2:]))
        if options["dev"] != self.device:
            raise TcError(f'Cannot find device "{options["dev"]}"')
        getattr(self, f"_{kind}_{verb}")(words, options)

    def _qdisc_add(self, words: list[str], options: dict[str, str]) -> None:
        if self.root is not DEFAULT:
            raise TcError("Error: Exclusivity flag on, cannot modify.")
        kind = words[words.index("handle") + 2]
        rest = words[words.index(kind) + 1 :]
        shown: dict[str, Any] = {"default": f"0x{options['default']}"} if kind == "htb" else {}
        shown |= {name: int(value) for name, value in zip(rest[::2], rest[1::2], strict=True) if name != "default"}
        self.root = {"kind": kind, "handle": options["handle"], "options": shown}

    def _qdisc_del(self, words: list[str], options: dict[str, str]) -> None:
        if self.root is DEFAULT:
            raise TcError("Error: Cannot delete qdisc with handle of zero.")
        self.remove_qdisc()

    def _class_replace(self, words: list[str], options: dict[str, str]) -> None:
        parent = options["parent"]
        if parent != "1:" and parent not in self.classes:
            raise TcError("RTNETLINK answers: No such file or directory")
        if options["rate"] == "0bit":
            raise TcError('"rate" is required.')
        self.classes[options["classid"]] = options

    def _class_del(self, words: list[str], options: dict[str, str]) -> None:
        name = options["classid"]
        if any(target == name for _, _, target in self.filters.values()):
            raise TcError("Error: HTB class in use.")
        if self.classes.pop(name, None) is None:
            raise TcError("RTNETLINK answers: No such file or directory")

    def _filter_add(self, words: list[str], options: dict[str, str]) -> None:
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
            self.filters[f"{options['ht']}{self._number:x}"] = (pref, options["src"].split("/")[0], options["flowid"])

    def _filter_del(self, words: list[str], options: dict[str, str]) -> None:
        if "cgroup" in words:
            self.cgroup = False
        elif "handle" in words:
            del self.filters[options["handle"]]
        else:
            del self.tables[options["prio"]]
            self.filters = {handle: one for handle, one in self.filters.items() if one[0] != options["prio"]}

    def _qdisc(self) -> str:
        return json.dumps([{**self.root, "root": True, "refcnt": 2}])

    def _classes(self) -> str:
        rows: list[str] = []
        for name, one in self.classes.items():
            parents = {other["parent"] for other in self.classes.values()}
            where = "root" if one["parent"] == "1:" else f"parent {one['parent']}"
            priority = "" if name in parents else f" prio {one['prio']}"
            rows.append(
                f"class htb {name} {where}{priority} rate {_rate(one['rate'])} ceil {_rate(one['ceil'])} burst 1b"
            )
        return "\n".join(rows)

    def _filters(self) -> str:
        lines: list[str] = []
        if self.cgroup:
            lines += ["filter parent 1: protocol all pref 12 cgroup chain 0 ", " handle 0x1 "]
        for pref, table in self.tables.items():
            head = f"filter parent 1: protocol ip pref {pref} u32 chain 0 "
            lines += [head, f"{head}fh {table['table']} ht divisor 256 "]
            for handle, (own, address, target) in self.filters.items():
                if own != pref:
                    continue
                lines.append(f"{head}fh {handle} order 2048 key ht 2 bkt 1 *flowid {target} not_in_hw ")
                packed = ipaddress.ip_address(address).packed
                first = 12 if len(packed) == 4 else 8
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
