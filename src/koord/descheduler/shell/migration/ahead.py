"""Caches own writes to jobs until the informer shows them, so that a decision is not forgotten."""

from __future__ import annotations

from koord.api.koord_scheduling import PodMigrationJob


class Ahead:
    def __init__(self) -> None:
        self._ours: dict[str, PodMigrationJob] = {}  # by name

    def wrote(self, job: PodMigrationJob) -> None:
        self._ours[job.metadata.name] = job

    def forget(self, name: str) -> None:
        self._ours.pop(name, None)

    def newest(self, seen: PodMigrationJob) -> PodMigrationJob:
        """Return the job as the informer shows it, or the own write where that is later."""
        ours = self._ours.get(seen.metadata.name)
        if ours is None:
            return seen
        if ours.metadata.uid == seen.metadata.uid and _revision(ours) > _revision(seen):
            return ours
        self.forget(seen.metadata.name)
        return seen


def _revision(job: PodMigrationJob) -> int:
    text = job.metadata.resource_version
    return int(text) if text.isdigit() else 0
