"""Check whether this kernel reports cold memory: a vendor's kidled, or nothing."""

from __future__ import annotations

from koord.host.fault import Fault, lacking
from koord.host.host import Host


def kidled_folder(host: Host) -> str:
    return f"{host.paths.sys}/kernel/mm/kidled"


def kidled(host: Host) -> Fault | None:
    """Return None when both of kidled's files exist."""
    for name in ("scan_period_in_seconds", "use_hierarchy"):
        path = f"{kidled_folder(host)}/{name}"
        if not host.exists(path):
            return lacking(path, "this kernel has no kidled")
    return None


def page_idle(host: Host) -> Fault | None:
    """Return None when mainline's idle page bitmap exists. It reports pages and no groups, so no
    cold size comes from it.
    """
    path = f"{host.paths.sys}/kernel/mm/page_idle/bitmap"
    return None if host.exists(path) else lacking(path, "this kernel has no idle page tracking")
