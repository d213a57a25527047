"""Turn records of writes into events of the audit log."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.host.audit_log import GROUP, NODE, POD, AuditEvent, AuditLog
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.cgroup_writer.effects import WriteRecord

_LOG = logging.getLogger(__name__)
VERBOSE = 3  # of single writes; the log's own default shows them


class PodIdentity(msgspec.Struct, frozen=True):
    """The names by which the audit log identifies a pod and its containers."""

    namespace: str
    name: str
    containers: dict[str, str] = {}  # name by plain id


def audit_event(record: WriteRecord, layout: CgroupLayout, pod_of: Callable[[str], PodIdentity | None]) -> AuditEvent:
    """Build the audit event of a write. `pod_of` looks up a UID; an unknown pod is identified by its UID alone."""
    subject = _subject(record.group, layout, pod_of)
    return msgspec.structs.replace(
        subject,
        reason=record.reason,
        message=record.message,
        owner=record.owner,
        before=record.before,
        after=record.after,
        why=record.why,
        refused=record.refused,
    )


def make_audit_callback(
    audit_log: AuditLog, layout: CgroupLayout, pod_of: Callable[[str], PodIdentity | None]
) -> Callable[[WriteRecord], None]:
    """Return the executor's `audit` callback, which appends every record to the log.

    A log that cannot be written stops no write, and is reported once per errno.
    """
    told: set[str] = set()

    def tell(record: WriteRecord) -> None:
        io_error = audit_log.append(audit_event(record, layout, pod_of), VERBOSE)
        if io_error is not None and io_error.code not in told:
            told.add(io_error.code)
            _LOG.warning("the audit log cannot be written: %s", io_error)

    return tell


def _subject(group: str, layout: CgroupLayout, pod_of: Callable[[str], PodIdentity | None]) -> AuditEvent:
    if not group:
        return AuditEvent(type=NODE)
    parts = group.split("/")
    for index, part in enumerate(parts):
        uid = layout.pod_uid_of_dir(part)
        if uid is None or not group.startswith(f"{layout.kubepods}/"):
            continue
        known = pod_of(uid) or PodIdentity("", uid)
        plain = layout.container_id_of_dir(parts[index + 1]) if index + 1 < len(parts) else None
        container = known.containers.get(plain, plain) if plain else ""
        return AuditEvent(type=POD, namespace=known.namespace, name=known.name, container=container)
    return AuditEvent(type=GROUP, name=group)
