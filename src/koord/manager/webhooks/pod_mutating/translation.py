"""Resources of pods at admission: tier names for native resources, the extended-resource-spec annotation, GPU
requests.
"""

from __future__ import annotations

from koord.api.resource_name import CPU, TIERS
from koord.manager.webhooks.draft import Obj, owned, part
from koord.values.quantity import Quantity


def translated(obj: Obj, priority_class: str) -> Obj:
    """Rename native cpu and memory of batch and mid pods to their tier's names. `obj` must be writable at its top
    level.

    Classes without a tier keep what they have.
    """
    names = TIERS.get(priority_class)
    if names is None:
        return obj
    spec = owned(obj, "spec")
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_container(container, names) for container in spec[field]]
    if spec.get("overhead"):
        spec["overhead"] = _renamed(spec["overhead"], names)
    return obj


def _container(container: Obj, names: dict[str, str]) -> Obj:
    resources = part(container, "resources")
    if not resources:
        return container
    requests = _renamed(part(resources, "requests"), names)
    limits = _renamed(part(resources, "limits"), names)
    for name in names.values():
        if name in limits and name not in requests:
            requests = {**requests, name: limits[name]}
    made = {**resources, "requests": requests, "limits": limits}
    return {**container, "resources": {key: value for key, value in made.items() if value or key in resources}}


def _renamed(listed: Obj, names: dict[str, str]) -> Obj:
    """Rename the resources; a native amount replaces one under the tier's name."""
    made = dict(listed)
    for native, extended in names.items():
        if native in made:
            amount = Quantity.parse(made.pop(native))
            made[extended] = str(Quantity.from_value(amount.milli_value()) if native == CPU else amount)
    return made
