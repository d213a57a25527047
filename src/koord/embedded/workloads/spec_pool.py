"""Intern the specs of pods."""

from __future__ import annotations

import msgspec

from koord.api.pod import Pod, PodSpec

# A cluster where every pod differs gains nothing from the table, so it must not grow with the pods either.
MOST_SPECS = 4096


class SpecPool:
    """Interns pod specs; `intern` is the transform of an informer."""

    def __init__(self) -> None:
        self._known: dict[bytes, PodSpec] = {}

    def shared(self, pod: Pod) -> Pod:
        spec = pod.spec
        homeless = msgspec.structs.replace(spec, node_name="")
        known = self._known.setdefault(msgspec.msgpack.encode(homeless), homeless)
        if len(self._known) > MOST_SPECS:
            self._known.clear()
        placed = msgspec.structs.replace(known, node_name=spec.node_name) if spec.node_name else known
        return msgspec.structs.replace(pod, spec=placed)
