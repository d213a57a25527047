"""Parse the behaviour of a simulated pod from its `sim.koord.sh/` annotations, with defaults for what they
leave out.

Each key may be followed by a dot and the name of a container, to address that container alone:
`sim.koord.sh/run-seconds.main: "60"`.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping

import msgspec

from koord.embedded.kubelet.slim_views import ANNOTATION_PREFIX, SharedPodTemplate

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


class ContainerBehaviour(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run_s: float | None  # None: until it is stopped
    exit_code: int
    ready_s: float
    sidecar: bool = False


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
    init = tuple((c.name, c.restart_policy == "Always", 0.0) for c in template.init_containers)
    main = tuple(
        (c.name, False, float(c.readiness_probe.initial_delay_seconds) if c.readiness_probe else 0.0)
        for c in template.containers
    )
    return _parse_behaviour(said, init, main, restart_policy)


_Named = tuple[tuple[str, bool, float], ...]  # name, sidecar, seconds before it can be ready


@functools.lru_cache(maxsize=8192)
def _parse_behaviour(
    said: tuple[tuple[str, str], ...], init: _Named, main: _Named, restart_policy: str
) -> PodBehaviour | InvalidAnnotation:
    names = {name for name, _, _ in (*init, *main)}
    numbers: dict[str, float | None] = {}
    for key, value in said:
        read = _parse_annotation(key, value, names)
        if isinstance(read, InvalidAnnotation):
            return read
        numbers[key.removeprefix(ANNOTATION_PREFIX)] = read
    ends = restart_policy in ("Never", "OnFailure")

    def container(name: str, sidecar: bool, ready_s: float, run_s: float | None, shared: bool) -> ContainerBehaviour:
        def own(key: str, default: float | None) -> float | None:
            fallback = numbers.get(key, default) if shared else default
            return numbers.get(f"{key}.{name}", fallback)

        code, ready = own(EXIT_KEY, 0.0), own(READY_KEY, ready_s)
        assert code is not None
        assert ready is not None
        return ContainerBehaviour(run_s=own(RUN_KEY, run_s), exit_code=int(code), ready_s=ready, sidecar=sidecar)

    stop = numbers.get(STOP_KEY, DEFAULT_STOP_S)
    assert stop is not None
    return PodBehaviour(
        start_s=numbers.get(START_KEY),
        stop_s=stop,
        # An annotation of the whole pod means its main containers; an init container is addressed by name.
        init=tuple(container(n, s, r, None if s else DEFAULT_INIT_S, False) for n, s, r in init),
        main=tuple(container(n, s, r, DEFAULT_RUN_TO_COMPLETION_S if ends else None, True) for n, s, r in main),
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
