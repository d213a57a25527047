"""Every story, by topic."""

from tests.real.conformance.stories import cluster, metadata, patches, pods, reading, workloads
from tests.real.conformance.story import Story

ALL: tuple[Story, ...] = (
    *metadata.STORIES,
    *pods.STORIES,
    *patches.STORIES,
    *reading.STORIES,
    *workloads.STORIES,
    *cluster.STORIES,
)
