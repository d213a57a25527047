"""This module counts the running and waiting pods of the cluster by what they request."""

from __future__ import annotations

from collections import Counter

from koord.policy.device.fragmentation import Shape, Typical, typical_pods
from koord.scheduler.plugins.fragmentation_aware.asked import shape_of
from koord.scheduler.plugins.node_selector import Required
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.wire import Pod, is_terminal

_FEW = 16


class Mix:
    """The expected pods. `version` changes when a tenth of the pods has changed; until then the same ones are
    expected.
    """

    def __init__(self, state: ClusterState) -> None:
        self._shapes = state.shapes
        self._counts: Counter[Shape] = Counter()
        self._total = 0
        self._with_gpus = 0
        self._required: dict[str, Required] = {}  # by `Shape.gpu_spec`
        self._changes = 0
        self._expected: tuple[Typical, ...] = ()
        self.version = 0
        self._claimed = False

    def claim(self) -> bool:
        """Return True for the first caller, who must feed the counts: profiles share them."""
        first, self._claimed = not self._claimed, True
        return first

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before = self._shape(old)
        after = self._shape(new)
        if before == after:
            return
        for shape, by in ((before, -1), (after, 1)):
            if shape is not None:
                self._counts[shape] += by
                self._total += by
                self._with_gpus += by if shape.gpu_count else 0
                self._changes += 1
        if self._changes * 10 > self._total + _FEW or (self._with_gpus and not self._expected):
            self._changes = 0
            self._learn()

    def _shape(self, pod: Pod | None) -> Shape | None:
        if pod is None or is_terminal(pod):
            return None
        spec = self._shapes.of(pod)
        shape = shape_of(spec)
        if shape.gpu_spec and shape.gpu_spec not in self._required:
            self._required[shape.gpu_spec] = Required.of(spec.spec)
        return shape

    def _learn(self) -> None:
        self.version += 1
        self._counts = +self._counts
        self._expected = typical_pods(self._counts.elements()) if self._with_gpus else ()
        named = {shape.gpu_spec for shape in self._counts}
        self._required = {key: held for key, held in self._required.items() if key in named}

    def expected(self) -> tuple[Typical, ...]:
        """Return the expected pods; none while there are no pods with GPUs."""
        return self._expected

    def constraints(self) -> dict[str, Required]:
        """Return where the expected pods may run, by `GpuPodShape.gpu_spec`."""
        named = dict.fromkeys(
            one.shape.gpu_spec for one in self._expected if one.shape.gpu_spec and one.shape.gpu_count
        )
        return {key: self._required[key] for key in named}
