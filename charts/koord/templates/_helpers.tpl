{{- /*
With --reuse-values Helm leaves out the defaults of a chart that is newer than the release, or another one: programs
would be taken away because nobody said that they are wanted.
*/ -}}
{{- define "koord.checkValues" -}}
{{- $missing := list }}
{{- range list "image" "priorityClasses" "uninstall" "hamiDaemon" "networkPolicy" "prometheusRule" "grafanaDashboards" "koordYarnOperator" "yarnConfiguration" }}
{{- if not (hasKey $.Values .) }}{{ $missing = append $missing . }}{{ end }}
{{- end }}
{{- range list "manager" "scheduler" "descheduler" "koordlet" "deviceDaemon" }}
{{- if not (hasKey (get $.Values . | default dict) "enabled") }}{{ $missing = append $missing (printf "%s.enabled" .) }}{{ end }}
{{- end }}
{{- with $missing }}
{{- fail (printf "the chart's own values are missing (%s): upgrade with --reset-then-reuse-values in place of --reuse-values" (join ", " .)) }}
{{- end }}
{{- end }}

{{- /* Where everything is installed. */ -}}
{{- define "koord.namespace" -}}
{{ .Values.installation.namespace | default .Release.Namespace }}
{{- end }}

{{- /*
Not empty when the release makes the namespace: somebody else made the namespace of the release, and one that is there
and belongs to nobody or to another release would make Helm refuse the install.
*/ -}}
{{- define "koord.createsNamespace" -}}
{{- $name := include "koord.namespace" . }}
{{- if and .Values.installation.createNamespace (ne $name .Release.Namespace) }}
{{- $there := lookup "v1" "Namespace" "" $name }}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $there }}
{{- if or (not $there) (eq $owner .Release.Name) }}true{{ end }}
{{- end }}
{{- end }}

{{- define "koord.labels" -}}
app.kubernetes.io/part-of: koordinator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /*
The image of a program: (list root values-of-the-program). Koordinator's own images hold other programs, so that values
which name them count as not set; the notes of the release say so.
*/ -}}
{{- define "koord.image" -}}
{{- $root := index . 0 }}
{{- $own := (index . 1).image | default dict }}
{{- $repository := $root.Values.image.repository }}
{{- $tag := $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- if not (include "koord.foreignImage" $own) }}
{{- $repository = $own.repository | default $repository }}
{{- $tag = $own.tag | default $tag }}
{{- end }}
{{- include "koord.imageReference" (list $root $repository $tag) }}
{{- end }}

{{- define "koord.imageReference" -}}
{{- with (index . 0).Values.imageRepositoryHost }}{{ trimSuffix "/" . }}/{{ end }}{{ index . 1 }}:{{ index . 2 }}
{{- end }}

{{- define "koord.foreignImage" -}}
{{- $repository := toString (.repository | default "") }}
{{- $tag := toString (.tag | default "") }}
{{- if or (hasPrefix "koordinator-sh/" $repository) (and (not $repository) (regexMatch "^v[0-9]" $tag)) }}true{{ end }}
{{- end }}

{{- /* The terms of a node affinity. Koordinator's chart wants them with the word around them for koordlet, without it elsewhere. */ -}}
{{- define "koord.nodeAffinity" -}}
{{ toYaml (.nodeAffinity | default .) }}
{{- end }}

{{- /*
The feature gates of a program as JSON, name to value: (dict "root" . "program" "koordlet" "text" "A=true"). What the
program would refuse at its start is refused here, before anything is installed.
*/ -}}
{{- define "koord.gates" -}}
{{- $table := .root.Files.Get "files/gates.yaml" | fromYaml }}
{{- $known := get $table .program }}
{{- $tolerated := get $table.tolerated .program | default list }}
{{- $stated := dict }}
{{- $errors := list }}
{{- range splitList "," .text }}
{{- $item := trim . }}
{{- if $item }}
{{- $name := trim (regexReplaceAll "=.*$" $item "") }}
{{- if $tolerated }}{{ $name = trimPrefix "kube:" $name }}{{ end }}
{{- $value := trim (regexReplaceAll "^[^=]*=?" $item "") }}
{{- if not (contains "=" $item) }}
{{- $errors = append $errors (printf "%s must be written as %s=true or %s=false" $name $name $name) }}
{{- else if not (has $value (list "true" "false" "True" "False" "TRUE" "FALSE" "t" "f" "T" "F" "1" "0")) }}
{{- $errors = append $errors (printf "%s must be true or false, not %q" $name $value) }}
{{- else if or (hasKey $known $name) (has $name (list "AllAlpha" "AllBeta")) }}
{{- $_ := set $stated $name (has (lower $value) (list "true" "t" "1")) }}
{{- else if not (has $name $tolerated) }}
{{- $errors = append $errors (printf "%s is not a known feature gate; known are %s" $name (keys $known | sortAlpha | join ", ")) }}
{{- end }}
{{- end }}
{{- end }}
{{- $values := dict }}
{{- range $name, $gate := $known }}
{{- $value := $gate.default }}
{{- if hasKey $stated $name }}
{{- $value = get $stated $name }}
{{- else if and (hasKey $stated "AllAlpha") (eq $gate.stage "alpha") }}
{{- $value = $stated.AllAlpha }}
{{- else if and (hasKey $stated "AllBeta") (eq $gate.stage "beta") }}
{{- $value = $stated.AllBeta }}
{{- end }}
{{- if and (hasKey $gate "unbuilt") (eq $value $gate.unbuilt) (ne $value $gate.default) }}
{{- $errors = append $errors (printf "%s=%v is not built: %s" $name $value $gate.why) }}
{{- end }}
{{- $_ := set $values $name $value }}
{{- end }}
{{- with $errors }}
{{- fail (printf "feature gates of %s: %s" $.program (join "; " .)) }}
{{- end }}
{{- toJson $values }}
{{- end }}

{{- /* Refuse what a program would refuse when it starts, for all programs that the release runs. */ -}}
{{- define "koord.checkGates" -}}
{{- $texts := dict "manager" .Values.featureGates "scheduler" .Values.scheduler.featureGates "descheduler" .Values.descheduler.featureGates "koordlet" .Values.koordlet.features }}
{{- range $program, $text := $texts }}
{{- if (get $.Values $program).enabled }}
{{- $_ := include "koord.gates" (dict "root" $ "program" $program "text" $text) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The further flags of a program as JSON: (list root program). */ -}}
{{- define "koord.extraArgs" -}}
{{- $root := index . 0 }}
{{- $program := index . 1 }}
{{- $known := get ($root.Files.Get "files/flags.yaml" | fromYaml) $program }}
{{- $args := (get $root.Values $program).extraArgs | default list }}
{{- range $args }}
{{- $name := regexReplaceAll "=.*$" . "" | trimPrefix "--" }}
{{- if not (has $name $known) }}
{{- fail (printf "%s.extraArgs: %s has no flag --%s" $program $program $name) }}
{{- end }}
{{- end }}
{{- toJson $args }}
{{- end }}

{{- /*
The data of slo-controller-config. People edit it with kubectl, and an upgrade that puts defaults back would change
every node: what the cluster has stays, unless a value says otherwise.
*/ -}}
{{- define "koord.sloControllerConfig" -}}
{{- $live := lookup "v1" "ConfigMap" (include "koord.namespace" .) (include "koord.sloControllerConfigName" .) }}
{{- $data := dig "data" (include "koord.sloControllerDefaults" . | fromJson) $live }}
{{- range $key, $document := .Values.sloControllerConfig }}
{{- $_ := set $data $key (kindIs "string" $document | ternary $document (toJson $document)) }}
{{- end }}
{{- toYaml $data }}
{{- end }}

{{- /* The files of further YARN clusters. */ -}}
{{- define "koord.yarnClusters" -}}
{{- range $id, $site := .Values.yarnConfiguration.clusters }}
{{ printf "%s.yarn-site.xml" $id | quote }}: {{ $site | quote }}
{{- end }}
{{- end }}

{{- /* The name of a program's objects after koord-, from the name of its values. */ -}}
{{- define "koord.programName" -}}
{{- get (dict "koordYarnOperator" "yarn-operator") . | default . }}
{{- end }}
