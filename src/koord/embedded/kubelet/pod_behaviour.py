"""Parse the behaviour of a simulated pod from its `sim.koord.sh/` annotations, then from its containers' commands, with
defaults for what neither says.

Each key may be followed by a dot and the name of a container, to address that container alone:
`sim.koord.sh/run-seconds.main: "60"`. Of commands `sleep 5m`, `sh -c "echo hello; sleep 60 && exit 3"` and
`tail -f /dev/null` are understood; what any other program would do is not known.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from koord.embedded.kubelet.slim_views import ANNOTATION_PREFIX, SharedPodTemplate, SlimContainer

START_KEY = "start-seconds"  # from being admitted to the first container: sandbox, volumes, images
READY_KEY = "ready-seconds"  # from a container's start to its being ready
RUN_KEY = "run-seconds"  # how long a container runs; "forever" for no end
EXIT_KEY = "exit-code"  # what it ends with
STOP_KEY = "stop-seconds"  # from being told to stop to its end
USAGE_KEY = "usage"  # a resource usage model, see koord.embedded.kubelet.usage
ANNOTATION_KEYS = (START_KEY, READY_KEY, RUN_KEY, EXIT_KEY, STOP_KEY, USAGE_KEY)
PER_CONTAINER_KEYS = (READY_KEY, RUN_KEY, EXIT_KEY)

FOREVER = "forever"
DEFAULT_START_S = (1.0, 3.0)  # drawn between these two, per pod
DEFAULT_STOP_S = 1.0
DEFAULT_INIT_S = 1.0
# A pod that is not to be restarted for ever is work with an end; without this, Jobs would never complete.
DEFAULT_RUN_TO_COMPLETION_S = 30.0

_SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_AT_ONCE = frozenset(("echo", "printf", "true", ":", "date", "hostname", "env", "pwd", "ls", "cat", "set"))
_ENDLESS = re.compile(r"\s*(while\s+(true|:|\[ 1 \])|until\s+false)\s*;?\s*do\b")


class CommandOutcome(msgspec.Struct, frozen=True):
    run_s: float | None  # None: until it is stopped
    exit_code: int = 0


def command_outcome(command: Sequence[str], args: Sequence[str]) -> CommandOutcome | None:
    """Return what the container does; None when its command does not tell."""
    argv = [*command, *args]
    if not argv:
        return None
    if argv[0].rpartition("/")[2] in _SHELLS and len(argv) >= 3 and re.fullmatch(r"-[eux]*c", argv[1]):
        return _script_outcome(argv[2])
    return _program_outcome(argv)


def _script_outcome(script: str) -> CommandOutcome | None:
    if _ENDLESS.match(script):
        return CommandOutcome(None)
    total_s, code = 0.0, 0
    lexer = shlex.shlex(script.replace("\n", ";"), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote without its end: a shell would refuse it, or it is not one that we know
        return None
    statement: list[str] = []
    for word in (*words, ";"):
        if word not in (";", "&&"):
            if set(word) <= set(";&|<>()"):
                return None  # pipes, background jobs, alternatives
            statement.append(word)
            continue
        if statement and not (code and word == "&&"):
            outcome = _statement_outcome(statement)
            if outcome is None:
                return None
            if outcome.run_s is None or statement[0] in ("exit", "exec"):
                return CommandOutcome(None if outcome.run_s is None else total_s + outcome.run_s, outcome.exit_code)
            total_s, code = total_s + outcome.run_s, outcome.exit_code
            if code and word == "&&":
                return CommandOutcome(total_s, code)
        statement = []
    return CommandOutcome(total_s, code)


def _statement_outcome(words: list[str]) -> CommandOutcome | None:
    name, *rest = words
    if name == "exec" and rest:
        return _program_outcome(rest)
    if name == "exit":
        return CommandOutcome(0.0, int(rest[0]) % 256 if rest and rest[0].isdecimal() else 0)
    if any("$" in word or "`" in word for word in words) and name not in ("echo", "printf"):
        return None
    return CommandOutcome(0.0) if name in _AT_ONCE else _program_outcome(words)


def _program_outcome(argv: Sequence[str]) -> CommandOutcome | None:
    name, rest = argv[0].rpartition("/")[2], argv[1:]
    if name == "true":
        return CommandOutcome(0.0)
    if name == "false":
        return CommandOutcome(0.0, 1)
    if name == "tail" and "-f" in rest:
        return CommandOutcome(None)
    if name != "sleep" or not rest:
        return None
    total_s = 0.0
    for word in rest:
        if word in ("infinity", "inf"):
            return CommandOutcome(None)
        found = _DURATION.fullmatch(word)
        if found is None:
            return None
        total_s += float(found[1]) * _UNITS_S[found[2]]
    return CommandOutcome(total_s)


class ContainerBehaviour(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run_s: float | None  # None: until it is stopped
    exit_code: int
    ready_s: float
    sidecar: bool = False
    pre_stop_s: float = 0.0  # before it is told to stop


class PodBehaviour(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    start_s: float | None  # None: drawn at random
    stop_s: float
    init: tuple[ContainerBehaviour, ...]
    main: tuple[ContainerBehaviour, ...]


class InvalidAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: str
    rule: str

    def __str__(self) -> str:
        return f"annotation {self.key}: {self.value!r}: {self.rule}"


def parse_behaviour(
    annotations: Mapping[str, str], template: SharedPodTemplate, restart_policy: str
) -> PodBehaviour | InvalidAnnotation:
    said = tuple((key, value) for key, value in annotations.items() if not key.endswith("/" + USAGE_KEY))
    init = tuple(_ContainerFacts.of_container(one, probes=False) for one in template.init_containers)
    main = tuple(_ContainerFacts.of_container(one, probes=True) for one in template.containers)
    return _parse_behaviour(said, init, main, restart_policy)


class _ContainerFacts(msgspec.Struct, frozen=True, gc=False):
    name: str
    restart_policy: str | None
    probe_s: float  # before it can be ready
    command: tuple[str, ...]
    args: tuple[str, ...]
    pre_stop_s: float

    @staticmethod
    def of_container(one: SlimContainer, *, probes: bool) -> _ContainerFacts:
        probe_s = float(one.readiness_probe.initial_delay_seconds) if probes and one.readiness_probe else 0.0
        return _ContainerFacts(one.name, one.restart_policy, probe_s, one.command, one.args, _pre_stop_s(one))


def _pre_stop_s(one: SlimContainer) -> float:
    """Return how long the container's preStop hook takes, as far as it says so."""
    hook = one.lifecycle.pre_stop if one.lifecycle is not None else None
    if hook is None:
        return 0.0
    if hook.sleep is not None:
        return float(hook.sleep.seconds)
    does = command_outcome(hook.exec.command, ()) if hook.exec is not None else None
    if does is None:
        return 0.0
    return math.inf if does.run_s is None else does.run_s


@functools.lru_cache(maxsize=8192)
def _parse_behaviour(
    said: tuple[tuple[str, str], ...],
    init: tuple[_ContainerFacts, ...],
    main: tuple[_ContainerFacts, ...],
    restart_policy: str,
) -> PodBehaviour | InvalidAnnotation:
    names = {one.name for one in (*init, *main)}
    numbers: dict[str, float | None] = {}
    for key, value in said:
        read = _parse_annotation(key, value, names)
        if isinstance(read, InvalidAnnotation):
            return read
        numbers[key.removeprefix(ANNOTATION_PREFIX)] = read

    def container(one: _ContainerFacts, run_s: float | None, *, is_main: bool) -> ContainerBehaviour:
        def own(key: str, default: float | None) -> float | None:
            # An annotation of the whole pod means its main containers; an init container is addressed by name.
            fallback = numbers.get(key, default) if is_main else default
            return numbers.get(f"{key}.{one.name}", fallback)

        does = command_outcome(one.command, one.args) or CommandOutcome(run_s)
        code, ready = own(EXIT_KEY, float(does.exit_code)), own(READY_KEY, one.probe_s)
        assert code is not None
        assert ready is not None
        return ContainerBehaviour(
            run_s=own(RUN_KEY, does.run_s),
            exit_code=int(code),
            ready_s=ready,
            sidecar=not is_main and one.restart_policy == "Always",
            pre_stop_s=one.pre_stop_s,
        )

    stop = numbers.get(STOP_KEY, DEFAULT_STOP_S)
    assert stop is not None
    ends_s = DEFAULT_RUN_TO_COMPLETION_S if restart_policy in ("Never", "OnFailure") else None
    return PodBehaviour(
        start_s=numbers.get(START_KEY),
        stop_s=stop,
        init=tuple(
            container(one, None if one.restart_policy == "Always" else DEFAULT_INIT_S, is_main=False) for one in init
        ),
        main=tuple(container(one, ends_s, is_main=True) for one in main),
    )


def _parse_annotation(key: str, value: str, names: set[str]) -> float | InvalidAnnotation | None:
    """Parse the number that an annotation states; None is "forever"."""
    word, dot, container = key.removeprefix(ANNOTATION_PREFIX).partition(".")
    if word not in ANNOTATION_KEYS:
        return InvalidAnnotation(
            key=key, value=value, rule=f"there is no such key; there are {', '.join(ANNOTATION_KEYS)}"
        )
    if dot and word not in PER_CONTAINER_KEYS:
        return InvalidAnnotation(key=key, value=value, rule=f"{word} is said of a whole pod, not of a container")
    if dot and container not in names:
        return InvalidAnnotation(key=key, value=value, rule=f"the pod has no container {container}")
    if word == RUN_KEY and value == FOREVER:
        return None
    try:
        number = float(value)
    except ValueError:
        return InvalidAnnotation(key=key, value=value, rule="must be a number")
    if not math.isfinite(number) or number < 0:
        return InvalidAnnotation(key=key, value=value, rule="must be a finite number, 0 or more")
    if word == EXIT_KEY and (number > 255 or number != int(number)):
        return InvalidAnnotation(key=key, value=value, rule="must be a whole number from 0 to 255")
    return number


def seeded_uniform(seed: int, key: str) -> float:
    """Return a uniform number in [0, 1) that depends on the seed and the key alone."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)


def sandbox_delay_s(plan: PodBehaviour, seed: int, pod: str) -> float:
    if plan.start_s is not None:
        return plan.start_s
    low, high = DEFAULT_START_S
    return round(low + (high - low) * seeded_uniform(seed, pod), 3)
