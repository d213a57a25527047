"""Run the controllers of ElasticQuota: create the default quotas, write the status of all, and revoke over-used ones.

"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from koord.api.custom import ELASTIC_QUOTAS
from koord.api.part import ResourceList
from koord.api.protocol import (
    DEFAULT_QUOTA,
    FALSE,
    L_QUOTA_ALLOW_LENT_RESOURCE,
    L_QUOTA_IS_PARENT,
    L_QUOTA_PARENT,
    ROOT_QUOTA,
    SYSTEM_QUOTA,
    TRUE,
)
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.scheduler.duties.duty import Post
from koord.scheduler.plugins.elastic_quota import ElasticQuota

_LOG = logging.getLogger(__name__)

AGAIN_S = 30.0  # for a namespace that does not exist yet, or a server that does not answer


class Groups:
    """Create the quotas that always exist: the root, and the groups of pods that have no other."""
    name: ClassVar[str] = "the quotas that are always there"

    def __init__(self, post: Post, plugin: ElasticQuota) -> None:
        self._client = post.client
        self._clock = post.clock
        self._quotas = post.handle.lister(ELASTIC_QUOTAS)
        self._args = plugin.args
        self._quiet = QuietLog(_LOG, post.clock, every_s=600.0, burst=1)

    async def run(self) -> None:
        """Run until all of them exist. Nothing depends on them: an object only states another max."""
        for body in self.wanted():
            while not await self._is_there(body):  # what keeps one from being made keeps the others too
                await self._clock.sleep(AGAIN_S)

    def wanted(self) -> list[dict[str, Any]]:
        args = self._args
        root = {L_QUOTA_IS_PARENT: TRUE, L_QUOTA_ALLOW_LENT_RESOURCE: FALSE, L_QUOTA_PARENT: ""}
        return [
            self._body(ROOT_QUOTA, {}, root),
            self._body(SYSTEM_QUOTA, args.system_quota_group_max, {}),
            self._body(DEFAULT_QUOTA, args.default_quota_group_max, {}),
        ]

    def _body(self, name: str, most: ResourceList, labels: dict[str, str]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self._args.quota_group_namespace, "labels": labels}
        return {"metadata": metadata, "spec": {"max": dict(most), "min": {}}}

    async def _is_there(self, body: dict[str, Any]) -> bool:
        """Create the quota unless it exists; return whether it exists now."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        if self._quotas.get(namespace, name) is not None:
            return True
        try:
            answer = await self._client.create(ELASTIC_QUOTAS, body)
        except OUTAGE as outage:
            self._quiet.warning("the quota %s/%s is not made: %s", namespace, name, outage)
            return False
        if isinstance(answer, Refused) and not answer.already_exists:
            self._quiet.warning("the quota %s/%s is not made: %s", namespace, name, answer)
            return False
        return True
