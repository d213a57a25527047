"""These functions validate pod templates inside of workloads and the selectors that must match them."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import label
from koord.embedded.apiserver.kinds.pod.spec import spec_errors
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, not_supported, required
from koord.values.selector import Selector, SelectorError

Obj = dict[str, Any]
MISMATCH = "`selector` does not match template `labels`"


def template_errors(template: Obj, path: str) -> list[FieldError]:
    """Return the errors of the template by itself.

    Label errors leave `metadata` out of the path, as in kube-apiserver.
    """
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    errors: list[FieldError] = []
    errors += label.labels(meta.get("labels") or {}, f"{path}.labels")
    errors += label.annotation_map(meta.get("annotations") or {}, f"{path}.annotations")
    errors += spec_errors(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        detail = "ephemeral containers not allowed in pod template"
        errors.append(forbidden_field(f"{path}.spec.ephemeralContainers", detail))
    return errors


def shown_selector(selector: Obj | None) -> Obj | None:
    """Return a LabelSelector as Go quotes it in messages."""
    if selector is None:
        return None
    shown: Obj = {}
    if selector.get("matchLabels"):
        shown["matchLabels"] = {key: selector["matchLabels"][key] for key in sorted(selector["matchLabels"])}
    if selector.get("matchExpressions"):
        shown["matchExpressions"] = selector["matchExpressions"]
    return shown


def converted(selector: Obj) -> Selector | None:
    """Parse a LabelSelector into a Selector; return None when it is invalid."""
    expressions = [
        (e.get("key", ""), e.get("operator", ""), e.get("values") or ()) for e in selector.get("matchExpressions") or ()
    ]
    try:
        return Selector.of(selector.get("matchLabels"), expressions)
    except SelectorError:
        return None


def selector_errors(selector: Obj | None, path: str, kind: str) -> list[FieldError]:
    """Return the errors of a selector that must be present and must not select everything."""
    if selector is None:
        return [required(path)]
    errors = list(label.selector(selector, path))
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(invalid_value(path, shown_selector(selector), f"empty selector is invalid for {kind}"))
    return errors


def selected_template(template: Obj, selector: Selector, path: str, *, only_always: bool = True) -> list[FieldError]:
    """Return the errors of a template whose pods must match the owner's selector and, by default, always restart."""
    errors: list[FieldError] = []
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector.matches(labels):
        errors.append(invalid_value(f"{path}.metadata.labels", _sorted(labels), MISMATCH))
    errors += template_errors(template, path)
    if only_always:
        errors += always_restart(template, path)
    return errors


def always_restart(template: Obj, path: str) -> list[FieldError]:
    spec = template.get("spec") or {}
    errors: list[FieldError] = []
    policy = spec.get("restartPolicy", "")
    if policy != "Always":
        errors.append(not_supported(f"{path}.spec.restartPolicy", policy, ("Always",)))
    if spec.get("activeDeadlineSeconds") is not None:
        errors.append(
            forbidden_field(
                f"{path}.spec.activeDeadlineSeconds", "activeDeadlineSeconds in ReplicaSet is not Supported"
            )
        )
    return errors


def _sorted(labels: Obj) -> Obj | None:
    return {key: labels[key] for key in sorted(labels)} or None


def labels_mismatch(template: Obj, selector: Obj | None, path: str) -> list[FieldError]:
    """Return only the mismatch error, for owners that validate the template elsewhere."""
    found = converted(selector) if selector else None
    labels = (template.get("metadata") or {}).get("labels") or {}
    if found is not None and not found.is_everything() and found.matches(labels):
        return []
    if selector is not None and found is None:
        return []
    return [invalid_value(f"{path}.metadata.labels", _sorted(labels), MISMATCH)]
