"""Parse the behaviour of a simulated pod from its `sim.koord.sh/` annotations, then from its containers' commands, with
defaults for what neither says.

Each key may be followed by a dot and the name of a container, to address that container alone:
`sim.koord.sh/run-seconds.main: "60"`.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Collection, Mapping
from typing import TypeAlias

import msgspec

from koord.embedded.kubelet.container_command import CommandOutcome, command_outcome
from koord.embedded.kubelet.slim_views import ANNOTATION_PREFIX, SharedPodTemplate, SlimContainer, SlimPod

START_KEY = "start-seconds"  # from being admitted to the first container: sandbox, volumes, images
READY_KEY = "ready-seconds"  # from a container's start to its being ready
RUN_KEY = "run-seconds"  # how long a container runs; "forever" for no end
EXIT_KEY = "exit-code"  # what it ends with
STOP_KEY = "stop-seconds"  # from being told to stop to its end
USAGE_KEY = "usage"  # a resource usage model, see koord.embedded.kubelet.usage
CACHE_KEY = "cache-pressure"  # how many more busy neighbours each of its CPUs is like to caches and memory bandwidth
ANNOTATION_KEYS = (START_KEY, READY_KEY, RUN_KEY, EXIT_KEY, STOP_KEY, USAGE_KEY, CACHE_KEY)
PER_CONTAINER_KEYS = (READY_KEY, RUN_KEY, EXIT_KEY)

FOREVER = "forever"
DEFAULT_START_S = (1.0, 3.0)  # drawn between these two, per pod
DEFAULT_STOP_S = 1.0
DEFAULT_INIT_S = 1.0
# A pod that is not to be restarted for ever is work with an end; without this, Jobs would never complete.
DEFAULT_JOB_S = 5.0
_ENDING_POLICIES = ("Never", "OnFailure")


class ContainerBehaviour(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run_s: float | None  # None: until it is stopped
    exit_code: int
    ready_s: float
    sidecar: bool = False
    pre_stop_s: float = 0.0  # before it is told to stop
    runs: tuple[CommandOutcome, ...] = ()  # of a script whose runs differ: the first ones; the last one is repeated
    has_image: bool = True

    def nth_run(self, restarts: int) -> CommandOutcome:
        """Return what the container does after so many restarts."""
        if not self.runs:
            return CommandOutcome(self.run_s, self.exit_code)
        return self.runs[min(restarts, len(self.runs) - 1)]


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


ScriptRuns: TypeAlias = tuple[tuple[str, tuple[CommandOutcome, ...]], ...]  # by container


def parse_behaviour(
    annotations: Mapping[str, str],
    template: SharedPodTemplate,
    restart_policy: str,
    scripts: ScriptRuns = (),
    job_s: float = DEFAULT_JOB_S,
) -> PodBehaviour | InvalidAnnotation:
    """Parse how a pod behaves. `job_s` is how long a container runs that may end and does not say when."""
    said = tuple((key, value) for key, value in annotations.items() if not key.endswith("/" + USAGE_KEY))
    init = tuple(_ContainerFacts.of_container(one, probes=False) for one in template.init_containers)
    main = tuple(_ContainerFacts.of_container(one, probes=True) for one in template.containers)
    return _parse_behaviour(said, init, main, job_s if restart_policy in _ENDING_POLICIES else None, scripts)


MAX_DIFFERENT_RUNS = 16


def script_runs(pod: SlimPod, files: Collection[str], seed: int) -> tuple[ScriptRuns, frozenset[str]]:
    """Return the runs of containers whose commands depend on their pod, and the files that these leave on its node.

    `files` are those on the node. What a script writes to other volumes is there in its next run.
    """
    template = pod.template
    assert template is not None, "only slim views reach a node"
    found: list[tuple[str, tuple[CommandOutcome, ...]]] = []
    left = frozenset(files)
    for container in (*template.init_containers, *template.containers):
        if not container.is_scripted:
            continue
        shared = {
            mount.mount_path: template.host_paths[mount.name]
            for mount in container.volume_mounts
            if mount.name in template.host_paths
        }
        runs = _container_runs(container, pod, _moved(left, {node: own for own, node in shared.items()}), seed)
        if runs:
            found.append((container.name, runs))
            left |= _moved(runs[-1].files, shared)
    return tuple(found), left


def _container_runs(
    container: SlimContainer, pod: SlimPod, files: frozenset[str], seed: int
) -> tuple[CommandOutcome, ...]:
    """Return the different runs of a script in their order; none when its command does not tell."""
    runs: list[CommandOutcome] = []
    for number in range(MAX_DIFFERENT_RUNS):
        drawn = int(seeded_uniform(seed, f"{pod.metadata.uid}/{container.name}/{number}") * (1 << 15))
        environment = {"RANDOM": str(drawn), **pod.environment.get(container.name, {})}
        outcome = command_outcome(container.command, container.args, environment, files)
        if outcome is None:
            return ()
        runs.append(outcome)
        if outcome.exit_code == 0:
            break
        files = outcome.files
    return tuple(runs)


def _moved(files: Collection[str], folders: Mapping[str, str]) -> frozenset[str]:
    """Return the files below the folders, under the names that their folders have on the other side."""
    return frozenset(
        there + name.removeprefix(here)
        for here, there in folders.items()
        for name in files
        if name.startswith(f"{here.rstrip('/')}/")
    )


# Tags and registries by which tests and tutorials name an image that does not exist; `.invalid` is never a registry.
_MISSING_TAGS = frozenset(("404", "non-existent", "nonexistent", "does-not-exist"))


def has_image(image: str) -> bool:
    """Return whether a simulated node can pull the image."""
    registry, _, rest = image.partition("/")
    if rest and (registry.endswith(".invalid") or registry.startswith("invalid.")):
        return False
    return image.rpartition("/")[2].partition("@")[0].rpartition(":")[2] not in _MISSING_TAGS


class _ContainerFacts(msgspec.Struct, frozen=True, gc=False):
    name: str
    restart_policy: str | None
    probe_s: float  # before it can be ready
    command: tuple[str, ...]
    args: tuple[str, ...]
    pre_stop_s: float
    has_image: bool

    @staticmethod
    def of_container(one: SlimContainer, *, probes: bool) -> _ContainerFacts:
        probe_s = float(one.readiness_probe.initial_delay_seconds) if probes and one.readiness_probe else 0.0
        return _ContainerFacts(
            one.name, one.restart_policy, probe_s, one.command, one.args, _pre_stop_s(one), has_image(one.image)
        )


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
    ends_s: float | None,
    scripts: ScriptRuns,
) -> PodBehaviour | InvalidAnnotation:
    runs_by_name = dict(scripts)
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

        runs = runs_by_name.get(one.name, ())
        does = runs[0] if runs else command_outcome(one.command, one.args) or CommandOutcome(run_s)
        if not {RUN_KEY, EXIT_KEY}.isdisjoint(key.partition(".")[0] for key in numbers):
            runs = ()  # the annotations decide
        code, ready = own(EXIT_KEY, float(does.exit_code)), own(READY_KEY, one.probe_s)
        assert code is not None
        assert ready is not None
        return ContainerBehaviour(
            run_s=own(RUN_KEY, does.run_s),
            exit_code=int(code),
            ready_s=ready,
            sidecar=not is_main and one.restart_policy == "Always",
            pre_stop_s=one.pre_stop_s,
            runs=runs,
            has_image=one.has_image,
        )

    stop = numbers.get(STOP_KEY, DEFAULT_STOP_S)
    assert stop is not None
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


def cache_pressure(annotations: Mapping[str, str]) -> float:
    """Return the pod's pressure on caches and memory bandwidth; 0 for a pod that does nothing out of the ordinary."""
    text = annotations.get(ANNOTATION_PREFIX + CACHE_KEY)
    number = 0.0 if text is None else _parse_annotation(ANNOTATION_PREFIX + CACHE_KEY, text, set())
    return number if isinstance(number, float) else 0.0  # a pod with an unreadable one does not run


def seeded_uniform(seed: int, key: str) -> float:
    """Return a uniform number in [0, 1) that depends on the seed and the key alone."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)


def sandbox_delay_s(plan: PodBehaviour, seed: int, pod: str) -> float:
    if plan.start_s is not None:
        return plan.start_s
    low, high = DEFAULT_START_S
    return round(low + (high - low) * seeded_uniform(seed, pod), 3)
