"""The templates of the programs: their Deployments and the DaemonSet of `koord manifests`, with values in them."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.koordinator.yarn import OPERATOR_PROGRAM
from koord.api.kubernetes.rbac import RbacRule
from koord.cli.manifests import daemonsets, deployments
from koord.cli.manifests.cluster_objects import rbac_objects, service_account
from koord.cli.manifests.manifests import gpu_templates_config
from koord.descheduler import program as descheduler_program
from koord.koordlet import settings as koordlet_settings
from koord.manager import program as manager_program
from koord.manager.feature_gates import SHIPPED_MANAGER_GATES
from koord.scheduler import rbac as scheduler_rbac
from koord.yarn.operator import YarnOperator
from tools.chart.object_path import add, replace, set_flag
from tools.chart.template_text import Block, Insert, Lines, Obj, When, document, template

NAMESPACE = '{{ include "koord.namespace" . }}'
POD = "spec/template/spec"
CONTAINER = f"{POD}/containers/0"
MANAGER_GATES = f'{{{{ list "{SHIPPED_MANAGER_GATES}" .Values.featureGates | compact | join "," }}}}'


def image(program: str) -> str:
    return f'{{{{ include "koord.image" (list . .Values.{program}) }}}}'


def labelled(objects: Iterable[Obj]) -> list[Obj]:
    """Return the objects with the labels of the release beside their own."""
    for obj in objects:
        labels = obj["metadata"]["labels"]
        own = {key: value for key, value in labels.items() if key != "app.kubernetes.io/part-of"}
        obj["metadata"]["labels"] = {Insert('include "koord.labels" .'): None, **own}
    return list(objects)


def rbac(account: str, rules: Iterable[RbacRule], bound_roles: Iterable[str] = ()) -> list[Obj]:
    return [service_account(account, NAMESPACE), *rbac_objects(account, NAMESPACE, rules, bound_roles)]


def manager_template() -> str:
    account, *roles = rbac("koord-manager", manager_program.rbac_rules())
    service, workload, budget = deployments.manager_objects(NAMESPACE, image("manager"), MANAGER_GATES)
    with_annotations = When(".Values.serviceAccount.annotations", Insert("toYaml .Values.serviceAccount.annotations"))
    add(account, "metadata/annotations", with_annotations)
    port, health = "{{ .Values.manager.webhook.port }}", "{{ .Values.manager.healthProbe.port }}"
    metrics = "{{ .Values.manager.metrics.port }}"
    replace(service, "spec/ports/0/targetPort", port)
    container = _deployment(workload, "manager")
    set_flag(container, "--metrics-addr", f"{{{{ .Values.manager.metrics.addr }}}}:{metrics}")
    set_flag(container, "--health-probe-addr", f":{health}")
    set_flag(container, "--sync-period", "{{ .Values.manager.resyncPeriod }}")
    replace(workload, f"{CONTAINER}/env/2/value", f'"{port}"')
    for number, value in enumerate((port, metrics, health)):
        replace(workload, f"{CONTAINER}/ports/{number}/containerPort", value)
    for probe in ("readinessProbe", "livenessProbe"):
        replace(workload, f"{CONTAINER}/{probe}/httpGet/port", health)
    return _program("manager", [account, *roles, service, workload, budget])


def scheduler_template() -> str:
    rights = rbac("koord-scheduler", scheduler_rbac.rbac_rules(), scheduler_rbac.BOUND_ROLES)
    config, workload, budget = deployments.scheduler_objects(NAMESPACE, image("scheduler"), "")
    replace(config, "data", _config_data(deployments.SCHEDULER_CONFIG, "scheduler"))
    container = _deployment(workload, "scheduler")
    port = "{{ .Values.scheduler.port }}"
    set_flag(container, "--port", port)
    _one_port(workload, port)
    container["args"].append(
        When(".Values.scheduler.featureGates", "--feature-gates={{ .Values.scheduler.featureGates }}")
    )
    _roll_on_change(workload, "scheduler")
    templates = gpu_templates_config(NAMESPACE)
    replace(templates, "data", {key: Block(text) for key, text in templates["data"].items()})
    return _program("scheduler", [*rights, templates, config, workload, budget])


def descheduler_template() -> str:
    rights = rbac("koord-descheduler", descheduler_program.rbac_rules())
    config, workload, budget = deployments.descheduler_objects(NAMESPACE, image("descheduler"), "")
    port = "{{ .Values.descheduler.port }}"
    replace(config, "data", _config_data(deployments.DESCHEDULER_CONFIG, "descheduler"))
    container = _deployment(workload, "descheduler")
    _one_port(workload, port)
    container["args"].append(
        When(".Values.descheduler.featureGates", "--feature-gates={{ .Values.descheduler.featureGates }}")
    )
    _roll_on_change(workload, "descheduler")
    return _program("descheduler", [*rights, config, workload, budget])


def yarn_operator_template() -> str:
    values = "koordYarnOperator"
    rights = rbac(OPERATOR_PROGRAM, YarnOperator.rights)
    manager = ".Values.yarnConfiguration.resourceManager"
    site = deployments.yarn_site(
        f"{{{{ {manager}.address }}}}:{{{{ {manager}.port }}}}",
        f"{{{{ {manager}.address }}}}:{{{{ {manager}.adminPort }}}}",
    )
    config, workload, budget = deployments.yarn_operator_objects(NAMESPACE, image(values), site)
    data: Obj = {name: Block(text) for name, text in config["data"].items()}
    whole = ".Values.yarnConfiguration.yarnSite"
    data["yarn-site.xml"] = When(whole, Block(f"{{{{- {whole} | nindent 4 }}}}"), data["yarn-site.xml"])
    replace(config, "data", {**data, Insert('include "koord.yarnClusters" .'): None})
    container = _deployment(workload, values)
    metrics, health = (f"{{{{ .Values.{values}.{name}.port }}}}" for name in ("metrics", "healthProbe"))
    set_flag(container, "--metrics-addr", f":{metrics}")
    set_flag(container, "--health-probe-addr", f":{health}")
    set_flag(container, "--over-commit-timeout", _action(f"{values}.overCommitTimeout"))
    replace(workload, f"{CONTAINER}/env/1/value", f"{{{{ .Values.{values}.user | quote }}}}")
    for number, value in enumerate((metrics, health)):
        replace(workload, f"{CONTAINER}/ports/{number}/containerPort", value)
    for probe in ("readinessProbe", "livenessProbe"):
        replace(workload, f"{CONTAINER}/{probe}/httpGet/port", health)
    checksum = "{{ toJson .Values.yarnConfiguration | sha256sum }}"
    add(workload, "spec/template/metadata/annotations", {"checksum/config": checksum})
    return _program(values, [*rights, config, workload, budget])


def koordlet_template() -> str:
    told = rbac(daemonsets.KOORDLET, (*koordlet_settings.RBAC_RULES, *koordlet_settings.INTERFERENCE_RBAC_RULES))
    rights = rbac(daemonsets.KOORDLET, koordlet_settings.RBAC_RULES)
    (role,), (told_role,) = ([one for one in made if one["kind"] == "ClusterRole"] for made in (rights, told))
    for one in (role, told_role):
        _kubelet_rights(one["rules"])
    role["rules"] = When(".Values.koordlet.tellInterference", told_role["rules"], role["rules"])
    (workload,) = daemonsets.koordlet_objects(
        NAMESPACE,
        image("koordlet"),
        ",".join(f"{gate}=true" for gate in daemonsets.GATE_MOUNTS),
        runtime_hooks="proxy",
    )
    container = _pod(workload, "koordlet")
    port = "{{ .Values.koordlet.metrics.port }}"
    set_flag(container, "--addr", f":{port}")
    shipped = daemonsets.SHIPPED_KOORDLET_GATES
    gates = f'.Values.koordlet.features | default "{shipped}"'
    set_flag(container, "--feature-gates", f"{{{{ {gates} }}}}")
    set_flag(container, "--enable-nri-runtime-hook", '{{ eq .Values.koordlet.runtimeHooks "nri" }}')
    proxied = 'eq .Values.koordlet.runtimeHooks "proxy"'
    set_flag(container, "--runtime-hooks-server", f'{{{{ {proxied} | ternary "on" "off" }}}}')
    socket = '{{ trimSuffix "/" .Values.koordlet.hostDirs.koordletSockDir }}/' + daemonsets.PROXY_SOCKET
    set_flag(container, "--runtime-hooks-host-endpoint", socket)
    args = container["args"]
    args[-1] = When(proxied, args[-1])
    restores = ".Values.koordlet.restore"
    args.append(When(restores, daemonsets.SAFE_MODE))
    args.append(When(".Values.koordlet.tellInterference", "--tell-interference"))
    for field in ("containerPort", "hostPort"):
        replace(workload, f"{CONTAINER}/ports/0/{field}", port)
    for probe in ("readinessProbe", "livenessProbe"):
        replace(workload, f"{CONTAINER}/{probe}/httpGet/port", port)
    _host_paths(workload, proxied)
    replace(workload, f"{POD}/tolerations", When(".Values.koordlet.tolerations", _values("koordlet.tolerations")))
    add(workload, f"{POD}/affinity", When(".Values.koordlet.nodeAffinity", {"nodeAffinity": _affinity("koordlet")}))
    add(
        workload,
        f"{POD}/runtimeClassName",
        When(".Values.koordlet.runtimeClassName", _action("koordlet.runtimeClassName")),
    )
    # The same list of arguments: what is appended to the agent's is appended to its own.
    init = daemonsets.restoring_container(container)
    add(workload, f"{POD}/initContainers", When(restores, [init]))
    return _program("koordlet", [*rights, workload], gate_values("koordlet", gates))


def device_daemon_template() -> str:
    (workload,) = daemonsets.device_daemon_objects(NAMESPACE, image("deviceDaemon"))
    _pod(workload, "deviceDaemon")
    shown = ".Values.deviceDaemon"
    replace(workload, f"{POD}/tolerations", When(f"{shown}.tolerations", _values("deviceDaemon.tolerations")))
    add(workload, f"{POD}/affinity", When(f"{shown}.nodeAffinity", {"nodeAffinity": _affinity("deviceDaemon")}))
    return _program("deviceDaemon", [workload])


def _kubelet_rights(rules: list[Obj]) -> None:
    """Put the rights to two paths of kubelets in place of the one to all of them, where the value says so."""
    fine = ".Values.koordlet.kubeletFineGrainedAuthz"
    paths = [When(f"not {fine}", "nodes/proxy"), *(When(fine, name) for name in ("nodes/configz", "nodes/pods"))]
    (rule,) = [one for one in rules if "nodes/proxy" in one["resources"]]
    place = rule["resources"].index("nodes/proxy")
    rule["resources"][place : place + 1] = paths


def _host_paths(workload: Obj, proxied: str) -> None:
    """Put the values of hostDirs into the volumes; those of koord-runtime-proxy are there when it is used."""
    named = {
        "host-kubelet-rootdir": "kubeletLibDir",
        "host-prediction-checkpoints": "predictionCheckpointDir",
        "host-var-run-koordlet": "koordletSockDir",
        "host-etc-hookserver": "koordProxyRegisterDir",
        "host-pod-resources": "podResourcesProxyPath",
    }
    pod = workload["spec"]["template"]["spec"]
    for volume in pod["volumes"]:
        if volume["name"] in named:
            volume["hostPath"]["path"] = _action(f"koordlet.hostDirs.{named.pop(volume['name'])}")
    if named:
        raise KeyError(f"koordlet has no volumes {', '.join(named)}")
    needed = {name: proxied for name, _, _, _ in daemonsets.PROXY_MOUNTS}
    needed |= {mount[0]: f"$gates.{gate}" for gate, mount in daemonsets.GATE_MOUNTS.items()}
    for holder, field in ((pod, "volumes"), (pod["containers"][0], "volumeMounts")):
        holder[field] = [When(needed[one["name"]], one) if one["name"] in needed else one for one in holder[field]]


def gate_values(program: str, text: str) -> str:
    """Return the action that computes `$gates` from the text of a program's gates, a pipeline."""
    arguments = f'(dict "root" . "program" "{program}" "text" ({text}))'
    return f'{{{{- $gates := include "koord.gates" {arguments} | fromJson }}}}\n'


def _program(name: str, objects: Iterable[Obj], first: str = "") -> str:
    objects = list(objects)
    for workload in (one for one in objects if one["kind"] in ("Deployment", "DaemonSet")):
        loop = f'{{{{- range include "koord.extraArgs" (list . "{name}") | fromJsonArray }}}}'
        workload["spec"]["template"]["spec"]["containers"][0]["args"].append(
            Lines((loop, "- {{ . | quote }}", "{{- end }}"))
        )
    return template([first, *(document(obj) for obj in labelled(objects))], f".Values.{name}.enabled")


def _pod(workload: Obj, values: str) -> Obj:
    """Put into a pod what every program has a value for; return its container."""
    container: Obj = workload["spec"]["template"]["spec"]["containers"][0]
    set_flag(container, "--v", _action(f"{values}.log.level"))
    add(workload, f"{CONTAINER}/imagePullPolicy", When(".Values.image.pullPolicy", _action("image.pullPolicy")))
    replace(workload, f"{CONTAINER}/resources", _values(f"{values}.resources"))
    replace(workload, f"{POD}/priorityClassName", _action(f"{values}.priorityClassName"))
    add(workload, f"{POD}/imagePullSecrets", When(".Values.imagePullSecrets", _values("imagePullSecrets")))
    add(workload, f"{POD}/nodeSelector", When(f".Values.{values}.nodeSelector", _values(f"{values}.nodeSelector")))
    return container


def _deployment(workload: Obj, values: str) -> Obj:
    container = _pod(workload, values)
    replace(workload, "spec/replicas", _action(f"{values}.replicas"))
    hosted = f".Values.{values}.hostNetwork"
    add(workload, f"{POD}/hostNetwork", When(hosted, True))
    add(workload, f"{POD}/dnsPolicy", When(hosted, "ClusterFirstWithHostNet"))
    add(workload, f"{POD}/affinity/nodeAffinity", When(f".Values.{values}.nodeAffinity", _affinity(values)))
    add(workload, f"{POD}/tolerations", When(f".Values.{values}.tolerations", _values(f"{values}.tolerations")))
    return container


def _one_port(workload: Obj, port: str) -> None:
    replace(workload, f"{CONTAINER}/ports/0/containerPort", port)
    for probe in ("readinessProbe", "livenessProbe"):
        replace(workload, f"{CONTAINER}/{probe}/httpGet/port", port)


def _roll_on_change(workload: Obj, program: str) -> None:
    """Replace the pods when the configuration changes: the programs read it once, when they start."""
    checksum = f'{{{{ include "koord.{program}Config" . | sha256sum }}}}'
    add(workload, "spec/template/metadata/annotations", {"checksum/config": checksum})


def _config_data(file: str, program: str) -> Obj:
    return {file: Block(f'{{{{- include "koord.{program}Config" . | nindent 4 }}}}')}


def _action(path: str) -> str:
    return f"{{{{ .Values.{path} }}}}"


def _values(path: str) -> Insert:
    return Insert(f"toYaml .Values.{path}")


def _affinity(values: str) -> Insert:
    return Insert(f'include "koord.nodeAffinity" .Values.{values}.nodeAffinity')
