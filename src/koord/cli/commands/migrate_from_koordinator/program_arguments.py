"""This module judges flags and feature gates of Koordinator's programs by the tables of koord's: each works, has no
effect, or would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from koord.api.config.gates import KUBERNETES_GATES, FeatureGateTable, feature_gate_warnings, parse_feature_gates
from koord.api.model import Obj
from koord.cli.commands.doctor.facts import entries, texts
from koord.cli.commands.doctor.installation import DESCHEDULER, KOORDLET, MANAGER, SCHEDULER
from koord.cli.daemons.descheduler_config import descheduler_flags
from koord.cli.daemons.flag_set import FlagParseError, FlagSet
from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS, to_double_dash
from koord.cli.daemons.manager_flags import MANAGER_FLAGS
from koord.cli.daemons.scheduler_config import scheduler_flags
from koord.descheduler.configuration import DESCHEDULER_GATES
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.manager.feature_gates import MANAGER_GATES
from koord.scheduler.configuration.feature_gates import SCHEDULER_GATES

Verdict = Literal["works", "no effect", "refused"]
GATES_FLAG = "feature-gates"


class ProgramTables(msgspec.Struct, frozen=True):
    flags: FlagSet
    gates: FeatureGateTable
    tolerated: frozenset[str] = frozenset()


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """Argument is one flag or one feature gate, with its value, and what koord's program of that name does with it."""

    name: str
    value: str
    verdict: Verdict
    why: str = ""


def program_tables() -> Mapping[str, ProgramTables]:
    return {
        MANAGER: ProgramTables(MANAGER_FLAGS, MANAGER_GATES),
        SCHEDULER: ProgramTables(scheduler_flags(), SCHEDULER_GATES, KUBERNETES_GATES),
        DESCHEDULER: ProgramTables(descheduler_flags(), DESCHEDULER_GATES),
        KOORDLET: ProgramTables(KOORDLET_FLAGS, KOORDLET_GATES),
    }


def command_line(container: Obj) -> list[str]:
    """Return the words after the program's name, whether they are in command or in args."""
    words = [*texts(container, "command"), *texts(container, "args")]
    while words and not words[0].startswith("-"):
        words.pop(0)
    return words


def container_of(workload: Obj, program: str) -> Obj:
    """Return the container of the program: the one whose image or command has its name, else the first."""
    containers = entries(workload, "spec", "template", "spec", "containers")
    for one in containers:
        said = (str(one.get("image") or ""), *texts(one, "command"))
        if any(program in word for word in said):
            return one
    return containers[0] if containers else {}


def judge_flags(program: str, words: Sequence[str], tables: ProgramTables) -> list[Argument]:
    """Judge each flag but that of feature gates on its own, as the program would read it."""
    words = to_double_dash(words) if program == KOORDLET else list(words)
    found = []
    for piece in _pieces(words, tables.flags):
        name, _, value = piece[0].lstrip("-").partition("=")
        value = piece[1] if len(piece) > 1 else value
        if name == GATES_FLAG:
            continue
        read = tables.flags.parse(piece)
        if isinstance(read, FlagParseError):
            found.append(Argument(name=name, value=value, verdict="refused", why=read.message))
            continue
        idle = dict(tables.flags.set_without_effect(read))
        verdict: Verdict = "no effect" if idle else "works"
        found.append(Argument(name=name, value=value, verdict=verdict, why="; ".join(idle.values())))
    return found


def gate_text(words: Sequence[str]) -> str:
    """Return all feature gates of a command line as one text."""
    found = []
    for index, word in enumerate(words):
        name, equals, value = word.lstrip("-").partition("=")
        if name == GATES_FLAG and word.startswith("-"):
            found.append(value if equals else (*words, "")[index + 1])
    return ",".join(part.strip() for text in found for part in text.split(",") if part.strip())


def judge_gates(text: str, tables: ProgramTables) -> list[Argument]:
    found = []
    for item in filter(None, text.split(",")):
        name, _, value = (part.strip() for part in item.removeprefix("kube:").partition("="))
        read = parse_feature_gates(f"{name}={value}", tables.gates, tables.tolerated)
        if isinstance(read, list):
            unknown = name not in tables.gates and name not in ("AllAlpha", "AllBeta")
            why = "koord has no such feature gate" if unknown else "; ".join(map(str, read))
            found.append(Argument(name=name, value=value, verdict="refused", why=why))
            continue
        idle = [one for one in feature_gate_warnings(read, tables.gates) if f"gate {name} is" in one]
        idle += ["it is a gate of Kubernetes' own scheduler"] * (name in tables.tolerated and name not in tables.gates)
        verdict: Verdict = "no effect" if idle else "works"
        found.append(Argument(name=name, value=value, verdict=verdict, why="; ".join(idle)))
    return found


def _pieces(words: Sequence[str], flags: FlagSet) -> Iterator[list[str]]:
    """Split a command line into flags, each with the word that is its value where it takes one."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag = flags.flags.get(word.lstrip("-").replace("_", "-"))
        takes_next = flag is not None and not flag.kind.no_value_default
        if flag is None and "=" not in word and rest and not rest[0].startswith("-"):
            takes_next = True  # an unknown flag; what follows it is no flag
        yield [word, rest.pop(0)] if takes_next and rest else [word]
