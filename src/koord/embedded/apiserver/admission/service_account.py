"""ServiceAccount admission: pods run as an account of their namespace and get a volume with its token.

The volume and its mounts are kube-apiserver's. Simulated nodes run no processes, so no token is ever made; what reads
pods (operators, suites, kubectl) finds them as on a real server.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.store.object_store import ObjectStore

DEFAULT_ACCOUNT = "default"
VOLUME_PREFIX = "kube-api-access-"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_EXPIRATION_S = 3607  # by which kube-apiserver knows the tokens whose expiry it extends
ROOT_CA = "kube-root-ca.crt"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


class ServiceAccountAdmission:
    """Names the account of a new pod, mounts its token unless pod or account opt out, and gives its pull secrets."""

    def __init__(self, store: ObjectStore, suffix: Callable[[], str]) -> None:
        """`suffix` gives the random end of a volume's name."""
        self._accounts = store.collection("serviceaccounts")
        self._suffix = suffix

    async def admit(self, attributes: AdmissionAttributes) -> None:
        pod = attributes.obj
        if attributes.resource.storage != "pods" or attributes.subresource or attributes.operation != "CREATE":
            return
        spec = (pod or {}).get("spec")
        if pod is None or spec is None:
            return
        if MIRROR_ANNOTATION in (pod["metadata"].get("annotations") or {}):
            self._check_mirror_pod(attributes, spec)
            return
        name = spec.get("serviceAccountName") or DEFAULT_ACCOUNT
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        record = self._accounts.get(attributes.namespace, name)
        if record is None:
            where = f"{attributes.namespace}/{name}"
            why = f'error looking up service account {where}: serviceaccount "{name}" not found'
            raise _forbidden(attributes, why)
        account = record.plain()
        if should_mount_token(spec, account):
            mount_token(spec, self._suffix)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [{"name": one.get("name", "")} for one in account["imagePullSecrets"]]

    def _check_mirror_pod(self, attributes: AdmissionAttributes, spec: Obj) -> None:
        """Refuse what the kubelet would mirror wrongly: the pod is as its file says, so nothing is added to it."""
        if spec.get("serviceAccountName"):
            raise _forbidden(attributes, "a mirror pod may not reference service accounts")
        for volume in spec.get("volumes") or ():
            for source in (volume.get("projected") or {}).get("sources") or ():
                if source.get("serviceAccountToken"):
                    raise _forbidden(attributes, "a mirror pod may not use ServiceAccountToken volume projections")


def should_mount_token(spec: Obj, account: Obj) -> bool:
    """Return whether pods get the token: the pod decides before its account, and both may leave it open."""
    for decides in (spec, account):
        wanted = decides.get("automountServiceAccountToken")
        if wanted is not None:
            return bool(wanted)
    return True


def mount_token(spec: Obj, suffix: Callable[[], str]) -> None:
    """Mount the token's volume in each container that has nothing at its path, and add the volume if one needs it."""
    volumes = spec.get("volumes") or []
    held = next((one["name"] for one in volumes if one.get("name", "").startswith(VOLUME_PREFIX)), "")
    without = [
        container
        for field in ("initContainers", "containers")
        for container in spec.get(field) or ()
        if all(mount.get("mountPath") != MOUNT_PATH for mount in container.get("volumeMounts") or ())
    ]
    if not without:
        return
    name = held or f"{VOLUME_PREFIX}{suffix()}"
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": MOUNT_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    if not held:
        spec["volumes"] = [*volumes, {"name": name, "projected": token_projection()}]


def token_projection() -> Obj:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_EXPIRATION_S, "path": "token"}},
            {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
        "defaultMode": 0o644,
    }


def _forbidden(attributes: AdmissionAttributes, why: str) -> api_errors.StatusError:
    return api_errors.forbidden("pods", "", attributes.name, why)
