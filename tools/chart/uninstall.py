"""The template of what Helm runs before it deletes a release: a Job that restores nodes, with rights of its own."""

from __future__ import annotations

from koord.cli.commands.restore_nodes import RIGHTS
from koord.cli.manifests.deployments import CONTAINER_SECURITY, POD_SECURITY
from tools.chart.template_text import Insert, Obj, When, document, template
from tools.chart.workloads import NAMESPACE, labelled, rbac

NAME = "koord-restore-nodes"
WANTED = "and .Values.uninstall.restoreNodes (or .Values.manager.enabled .Values.koordlet.enabled)"
# The Job's own deadline is later than the command's, which says on what it waited, and earlier than Helm's 5 minutes.
TIMEOUT, DEADLINE_S = "4m", 280


def uninstall_template() -> str:
    """Return account, roles and Job. They are no part of the release: made for the uninstall and deleted after it."""
    objects = [*rbac(NAME, RIGHTS), _job()]
    for obj in objects:
        # The account and what it may do are there before the Job that needs them.
        weight = "0" if obj["kind"] == "Job" else "-10"
        obj["metadata"]["annotations"] = {
            "helm.sh/hook": "pre-delete",
            "helm.sh/hook-weight": weight,
            "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
        }
    return template([document(one) for one in labelled(objects)], WANTED)


def _job() -> Obj:
    container: Obj = {
        "name": "restore-nodes",
        "image": '{{ include "koord.image" (list . dict) }}',
        "imagePullPolicy": When(".Values.image.pullPolicy", "{{ .Values.image.pullPolicy }}"),
        "command": ["koord", "restore-nodes"],
        "args": [f"--namespace={NAMESPACE}", f"--timeout={TIMEOUT}"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
        "securityContext": CONTAINER_SECURITY,
    }
    pod: Obj = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "securityContext": POD_SECURITY,
        "containers": [container],
        "priorityClassName": "{{ .Values.manager.priorityClassName }}",
        "imagePullSecrets": When(".Values.imagePullSecrets", Insert("toYaml .Values.imagePullSecrets")),
        "nodeSelector": When(".Values.manager.nodeSelector", Insert("toYaml .Values.manager.nodeSelector")),
        "tolerations": When(".Values.manager.tolerations", Insert("toYaml .Values.manager.tolerations")),
    }
    labels = {"app.kubernetes.io/part-of": "koordinator"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": dict(labels)},
        "spec": {
            "backoffLimit": 2,
            "activeDeadlineSeconds": DEADLINE_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
