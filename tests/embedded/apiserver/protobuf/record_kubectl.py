"""This program records what kubectl sends in protobuf.

Run python -m tests.embedded.apiserver.protobuf.record_kubectl.

Beside each body it keeps the same object as kubectl writes it to JSON, where it can (--dry-run=client -o
json).
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

from koord.embedded.apiserver.http_server import kubeconfig_document
from koord.embedded.apiserver.protobuf.messages import MEDIA_TYPE
from koord.embedded.apiserver.server import ApiServer
from koord.embedded.cluster import InProcessTransport
from koord.kube.transport.interface import ApiRequest, ApiResponse
from tests.embedded.apiserver.https_harness import serve_https

RECORD = Path(__file__).with_name("kubectl.json")

# What kubectl can also write as JSON.
CREATED = {
    "namespace": "create namespace team",
    "config-map": "create configmap settings --from-literal=color=blue --from-literal=empty=",
    "secret": "create secret generic keys --from-literal=token=s3cret",
    "docker-secret": "create secret docker-registry pull --docker-server=r.example --docker-username=u "
    "--docker-password=p",
    "deployment": "create deployment web --image=example/web:1 --replicas=3 --port=8080",
    "job": "create job count --image=example/count:1 -- count --to 3",
    "cron-job": "create cronjob nightly --image=example/backup:1 --schedule=@daily --restart=OnFailure",
    "pod-disruption-budget": "create pdb careful --selector=app=web --min-available=50%",
    "pod-disruption-budget-count": "create pdb careless '--selector=app in (a,b)' --max-unavailable=2",
    "priority-class": "create priorityclass high --value=1000 --description=first --preemption-policy=Never",
    "resource-quota": "create quota small --hard=cpu=1500m,memory=2Gi,pods=10 --scopes=BestEffort",
    "role": "create role reader --verb=get,list --resource=pods,deployments.apps --resource-name=a",
    "role-binding": "create rolebinding readers --role=reader --user=ann --serviceaccount=default:bot",
    "cluster-role": "create clusterrole probe --verb=get --non-resource-url=/healthz,/metrics",
    "cluster-role-binding": "create clusterrolebinding probes --clusterrole=probe --group=ops",
    "service-account": "create serviceaccount bot",
    "service": "create service nodeport web --tcp=80:http --tcp=443:8443 --node-port=30080",
    "ingress": "create ingress web --class=edge --rule=web.example/path*=web:http,tls=cert",
}
# What it only sends.
ASKED = {
    "may-i": "auth can-i create deployments.apps --subresource=scale -n team",
    "who-am-i": "auth whoami",
    "rules": "auth can-i --list -n team",
    # Evictions it sends as JSON.
    "delete-options": "drain n1 --force --disable-eviction --grace-period=7 --timeout=1s",
}
NODE = {"metadata": {"name": "n1"}}
POD = {
    "metadata": {"name": "on-n1"},
    "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "example/app:1"}]},
}


class Recording(ApiServer):
    def __init__(self) -> None:
        super().__init__(tokens={"secret": "admin"})
        self.heard: list[ApiRequest] = []

    async def handle(self, request: ApiRequest, *, track_managed_fields: bool = True) -> ApiResponse:
        if request.content_type.startswith(MEDIA_TYPE) and request.body:
            self.heard.append(request)
        return await super().handle(request, track_managed_fields=track_managed_fields)


async def kubectl(config: Path, command: str, *flags: str) -> str:
    words = shlex.split(command)
    at = words.index("--") if "--" in words else len(words)
    words[at:at] = flags
    process = await asyncio.create_subprocess_exec(
        "kubectl", "--kubeconfig", str(config), *words, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode()


async def record(config: Path) -> dict[str, Any]:
    server, found = Recording(), {}
    async with serve_https(server) as address:
        await asyncio.to_thread(config.write_text, json.dumps(kubeconfig_document(address)))
        home = InProcessTransport(server)
        await home.send(ApiRequest(method="POST", path="/api/v1/namespaces", body={"metadata": {"name": "default"}}))
        for path, body in (("/api/v1/nodes", NODE), ("/api/v1/namespaces/default/pods", POD)):
            await home.send(ApiRequest(method="POST", path=path, body=body))
        for name, command in {**CREATED, **ASKED}.items():
            server.heard.clear()
            await kubectl(config, command)
            if len(server.heard) != 1:
                raise RuntimeError(f"{name}: {len(server.heard)} bodies in protobuf instead of one")
            heard = server.heard[0]
            entry = {"method": heard.method, "path": heard.path, "body": base64.b64encode(heard.body).decode()}
            if name in CREATED:
                entry["json"] = json.loads(await kubectl(config, command, "--dry-run=client", "-o", "json"))
            found[name] = entry
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        heard = asyncio.run(record(Path(folder, "config")))
    RECORD.write_text(json.dumps(heard, indent=1, sort_keys=True) + "\n")
