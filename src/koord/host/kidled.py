"""Check whether this kernel reports cold memory: a vendor's kidled, or nothing."""

from __future__ import annotations

from koord.host.filesystem import Host
from koord.host.io_error import IoError, unsupported


def kidled_folder(host: Host) -> str:
    return f"{host.paths.sys}/kernel/mm/kidled"


def check_kidled(host: Host) -> IoError | None:
    """Return None when both of kidled's files exist."""
    for name in ("scan_period_in_seconds", "use_hierarchy"):
        path = f"{kidled_folder(host)}/{name}"
        if not host.exists(path):
            return unsupported(path, "this kernel has no kidled")
    return None


def check_page_idle(host: Host) -> IoError | None:
    """Return None when mainline's idle page bitmap exists. It reports pages and no groups, so no
    cold size comes from it.
    """
    path = f"{host.paths.sys}/kernel/mm/page_idle/bitmap"
    return None if host.exists(path) else unsupported(path, "this kernel has no idle page tracking")
