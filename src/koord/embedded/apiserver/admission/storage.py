"""The plugins for storage: finalizers that protect volumes and claims in use, and the default storage
class.
"""

from __future__ import annotations

from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.store import Record, Store

PROTECTION = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}
STORAGE_CLASSES = "storageclasses.storage.k8s.io"
IS_DEFAULT = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
OLD_CLASS = "volume.beta.kubernetes.io/storage-class"


class InUseProtection:
    async def admit(self, attributes: Attributes) -> None:
        finalizer = PROTECTION.get(attributes.resource.storage)
        if finalizer is None or attributes.operation != "CREATE" or attributes.subresource or attributes.obj is None:
            return
        meta = attributes.obj["metadata"]
        held = meta.get("finalizers") or []
        if finalizer not in held:
            meta["finalizers"] = [*held, finalizer]


class DefaultStorageClass:
    def __init__(self, store: Store) -> None:
        self._classes = store.collection(STORAGE_CLASSES)

    async def admit(self, attributes: Attributes) -> None:
        if attributes.resource.storage != "persistentvolumeclaims" or attributes.operation != "CREATE":
            return
        if attributes.subresource or attributes.obj is None:
            return
        spec = attributes.obj.setdefault("spec", {})
        notes = attributes.obj["metadata"].get("annotations") or {}
        if spec.get("storageClassName") is not None or OLD_CLASS in notes:
            return
        chosen = self._default()
        if chosen is not None:
            spec["storageClassName"] = chosen

    def _default(self) -> str | None:
        """Return the newest of the classes that are marked as default; of equals the first by name."""
        marked = [record for record in self._classes.scan() if _is_default(record)]
        marked.sort(key=lambda record: record.name)
        marked.sort(key=_born, reverse=True)
        return marked[0].name if marked else None


def _is_default(record: Record) -> bool:
    notes = record.plain()["metadata"].get("annotations") or {}
    return any(notes.get(key) == "true" for key in IS_DEFAULT)


def _born(record: Record) -> str:
    return str(record.plain()["metadata"].get("creationTimestamp") or "")
