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

from koord.embedded.kubelet.view import ANNOTATION_PREFIX, Template

START = "start-seconds"  # from being admitted to the first container: sandbox, volumes, images
READY = "ready-seconds"  # from a container's start to its being ready
RUN = "run-seconds"  # how long a container runs; "forever" for no end
EXIT = "exit-code"  # what it ends with
STOP = "stop-seconds"  # from being told to stop to its end
USAGE = "usage"  # a resource usage model, see koord.embedded.kubelet.usage
KEYS = (START, READY, RUN, EXIT, STOP, USAGE)
PER_CONTAINER = (READY, RUN, EXIT)

FOREVER = "forever"
DEFAULT_START_S = (1.0, 3.0)  # drawn between these two, per pod
DEFAULT_STOP_S = 1.0
DEFAULT_INIT_S = 1.0
# A pod that is not to be restarted for ever is work with an end; without this, Jobs would never complete.
DEFAULT_JOB_S = 30.0


class ContainerPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run_s: float | None  # None: until it is stopped
    exit_code: int
    ready_s: float
    sidecar: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    start_s: float | None  # None: drawn at random
    stop_s: float
    init: tuple[ContainerPlan, ...]
    main: tuple[ContainerPlan, ...]


class BadAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: str
    rule: str

    def __str__(self) -> str:
        return f"annotation {self.key}: {self.value!r}: {self.rule}"


def plan_of(annotations: Mapping[str, str], template: Template, restart_policy: str) -> Plan | BadAnnotation:
    said = tuple((key, value) for key, value in annotations.items() if not key.endswith("/" + USAGE))
    init = tuple((c.name, c.restart_policy == "Always", 0.0) for c in template.init_containers)
    main = tuple(
        (c.name, False, float(c.readiness_probe.initial_delay_seconds) if c.readiness_probe else 0.0)
        for c in template.containers
    )
    return _plan(said, init, main, restart_policy)


_Named = tuple[tuple[str, bool, float], ...]  # name, sidecar, seconds before it can be ready


@functools.lru_cache(maxsize=8192)
def _plan(said: tuple[tuple[str, str], ...], init: _Named, main: _Named, restart_policy: str) -> Plan | BadAnnotation:
    names = {name for name, _, _ in (*init, *main)}
    numbers: dict[str, float | None] = {}
    for key, value in said:
        read = _read(key, value, names)
        if isinstance(read, BadAnnotation):
            return read
        numbers[key.removeprefix(ANNOTATION_PREFIX)] = read
    ends = restart_policy in ("Never", "OnFailure")

    def container(name: str, sidecar: bool, ready_s: float, run_s: float | None, shared: bool) -> ContainerPlan:
        def own(key: str, default: float | None) -> float | None:
            fallback = numbers.get(key, default) if shared else default
            return numbers.get(f"{key}.{name}", fallback)

        code, ready = own(EXIT, 0.0), own(READY, ready_s)
        assert code is not None
        assert ready is not None
        return ContainerPlan(run_s=own(RUN, run_s), exit_code=int(code), ready_s=ready, sidecar=sidecar)

    stop = numbers.get(STOP, DEFAULT_STOP_S)
    assert stop is not None
    return Plan(
        start_s=numbers.get(START),
        stop_s=stop,
        # An annotation of the whole pod means its main containers; an init container is addressed by name.
        init=tuple(container(n, s, r, None if s else DEFAULT_INIT_S, False) for n, s, r in init),
        main=tuple(container(n, s, r, DEFAULT_JOB_S if ends else None, True) for n, s, r in main),
    )


def _read(key: str, value: str, names: set[str]) -> float | BadAnnotation | None:
    """Parse the number that an annotation states; None is "forever"."""
    word, dot, container = key.removeprefix(ANNOTATION_PREFIX).partition(".")
    if word not in KEYS:
        return BadAnnotation(key=key, value=value, rule=f"there is no such key; there are {', '.join(KEYS)}")
    if dot and word not in PER_CONTAINER:
        return BadAnnotation(key=key, value=value, rule=f"{word} is said of a whole pod, not of a container")
    if dot and container not in names:
        return BadAnnotation(key=key, value=value, rule=f"the pod has no container {container}")
    if word == RUN and value == FOREVER:
        return None
    try:
        number = float(value)
    except ValueError:
        return BadAnnotation(key=key, value=value, rule="must be a number")
    if not math.isfinite(number) or number < 0:
        return BadAnnotation(key=key, value=value, rule="must be a finite number, 0 or more")
    if word == EXIT and (number > 255 or number != int(number)):
        return BadAnnotation(key=key, value=value, rule="must be a whole number from 0 to 255")
    return number


def chance(seed: int, key: str) -> float:
    """Return a uniform number in [0, 1) that depends on the seed and the key alone."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)


def start_s(plan: Plan, seed: int, pod: str) -> float:
    if plan.start_s is not None:
        return plan.start_s
    low, high = DEFAULT_START_S
    return round(low + (high - low) * chance(seed, pod), 3)
