"""The controllers of ElasticQuota."""

from __future__ import annotations

from collections.abc import Sequence

from koord.scheduler.duties.duty import Duty, Post
from koord.scheduler.duties.elastic_quota.group import Groups
from koord.scheduler.duties.elastic_quota.revocation import Revocation
from koord.scheduler.duties.elastic_quota.status import Status
from koord.scheduler.plugins.elastic_quota import ElasticQuota


def quota_duties(post: Post) -> Sequence[Duty]:
    """Build the quota controllers with the arguments of the first profile that has the plugin: there is one set of
    objects.
    """
    plugin = post.plugins[0]
    assert isinstance(plugin, ElasticQuota)
    return Groups(post, plugin), Status(post, plugin), Revocation(post, plugin)
