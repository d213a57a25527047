"""A fake kubelet that answers what a test wants, and pods as it lists them."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.koordlet.inputs.kubelet_client import KubeletConfiguration, KubeletUnavailable


def pod(name: str, *, uid: str = "", containers: tuple[str, ...] = ("one",), **metadata: Any) -> dict[str, Any]:
    """A running Burstable pod."""
    uid = uid or f"uid-{name}"
    return {
        "metadata": {"name": name, "namespace": "work", "uid": uid, **metadata},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": one, "image": "i", "resources": {"requests": {"cpu": "1"}}} for one in containers],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "containerStatuses": [
                {"name": one, "containerID": f"containerd://{uid}-{one}", "state": {"running": {}}}
                for one in containers
            ],
        },
    }


class FakeKubelet:
    server = "https://kubelet:10250"

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.listed: list[dict[str, Any]] = list(pods)
        self.problem = ""
        self.config: KubeletConfiguration | KubeletUnavailable = KubeletConfiguration()
        self.questions = 0
        self.closed = False

    async def pods(self) -> list[msgspec.Raw] | KubeletUnavailable:
        self.questions += 1
        return (
            KubeletUnavailable(self.problem)
            if self.problem
            else [msgspec.Raw(msgspec.json.encode(one)) for one in self.listed]
        )

    async def configuration(self) -> KubeletConfiguration | KubeletUnavailable:
        self.questions += 1
        return KubeletUnavailable(self.problem) if self.problem else self.config

    async def close(self) -> None:
        self.closed = True
