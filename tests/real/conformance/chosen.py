"""Where we differ from kube-apiserver on purpose. Each has a reason that a user would accept."""

from __future__ import annotations

# story/step -> why our answer is another one
_TWICE = "kube-apiserver validates metadata twice on updates and lists each cause twice; we list it once"
_QUOTED = "the refusal quotes the whole object; we keep the order in which its fields were stored"
CHOSEN: dict[str, str] = {
    "labels-and-annotations/break-label": _TWICE,
    "owners-and-finalizers/add-finalizer-while-deleting": _TWICE,
    "preconditions/wrong-uid-patch": _TWICE,
    "lists/bad-continue": "the words for an undecodable continue token are Go's JSON reader's; code and reason agree",
    "json-patch/wrong-type": _QUOTED,
    "nodes/bad-capacity": _QUOTED,
    "other-apps/daemonset-table": "a table's partial object shows the annotation that GET shows; the real one hides it",
}
