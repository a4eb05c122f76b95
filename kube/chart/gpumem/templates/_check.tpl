{{- /*
What of the values the schema cannot refuse, or not in words that help. The agent refuses the
same at its start, in its log.
*/ -}}
{{- define "gpumem.check" }}
{{- $v := .Values }}
{{- if not (regexMatch "^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?/)?[a-z0-9]+(([.]|_|__|-+|/)[a-z0-9]+)*$" $v.image.repository) }}
{{- fail (printf "image.repository: %q: want the name of an image without its tag, such as gpumem.dev/gpumem-kube" $v.image.repository) }}
{{- end }}
{{- if not (regexMatch "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$" $v.image.tag) }}
{{- fail (printf "image.tag: %q: want a tag, such as 0.2.0, or nothing for the chart's appVersion" $v.image.tag) }}
{{- end }}
{{- range $v.drivers }}
{{- if not (regexMatch "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$" .) }}
{{- fail (printf "drivers: %q: want the names of DRA drivers, such as gpu.nvidia.com" .) }}
{{- end }}
{{- end }}
{{- range $v.extendedResources }}
{{- if not (regexMatch "^[a-z0-9.-]+/[A-Za-z0-9._-]+$" .) }}
{{- fail (printf "extendedResources: %q: want the names of extended resources, such as nvidia.com/gpu" .) }}
{{- end }}
{{- end }}
{{- $pools := list "jax" "tensorflow" "pytorch" "bfc" "platform" "address" "async" "vmm" "elastic" }}
{{- if not (and (has (regexFind "^[a-z]*" $v.pool) $pools) (regexMatch "^((jax|tensorflow|pytorch)(@[0-9][0-9A-Za-z.+]*)?|[a-z]+)(:\\S+)?$" $v.pool)) }}
{{- fail (printf "pool: %q: want one of %s, with a release or keys as in jax@0.4.30:preallocate=false" $v.pool (join ", " $pools)) }}
{{- end }}
{{- range $name, $path := $v.paths }}
{{- if not (regexMatch "^(/[^/:,\\s]+)+$" $path) }}
{{- fail (printf "paths.%s: %q: want the absolute path of a folder of the nodes, such as /run/gpumem" $name $path) }}
{{- end }}
{{- end }}
{{- /* Numbers are not written as they came: 1e+09 and 1.5 are among them. */}}
{{- $reserve := toString $v.reserve }}
{{- if not (or (eq $reserve "0") (regexMatch "^[0-9]+([.][0-9]+)?[MGT](i?B)?$" $reserve)) }}
{{- fail (printf "reserve: %q: want 0, or a size with its unit, such as 512MiB or 1.5GiB" $reserve) }}
{{- end }}
{{- $memory := toString $v.lab.memory }}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?[MGT](i?B)?$" $memory) }}
{{- fail (printf "lab.memory: %q: want a size with its unit, such as 24GiB or 512MiB" $memory) }}
{{- end }}
{{- $mib := include "gpumem.mib" $memory | float64 }}
{{- if or (lt $mib 2.0) (gt $mib 8388608.0) }}
{{- fail (printf "lab.memory: %q: want 2MiB to 8TiB" $memory) }}
{{- end }}
{{- if eq $v.publish "none" }}
{{- if ne $reserve "0" }}
{{- fail "reserve: it is for GPUs that the agent publishes, with publish: sim or cuda; the driver that publishes them has a setting of its own" }}
{{- end }}
{{- else if not (has "gpu.gpumem.dev" $v.drivers) }}
{{- fail (printf "drivers: want gpu.gpumem.dev among them: with publish: %s it publishes the GPUs, and their claims would have no limit" $v.publish) }}
{{- end }}
{{- if eq $v.publish "sim" }}
{{- if ge (include "gpumem.mib" $reserve | float64) $mib }}
{{- fail (printf "reserve: %q: it leaves nothing of lab.memory, %s" $reserve $memory) }}
{{- end }}
{{- else if or (ne (int $v.lab.gpus) 1) (ne $memory "24GiB") }}
{{- fail (printf "lab: it is for simulated GPUs, with publish: sim; publish is %s" $v.publish) }}
{{- end }}
{{- if and (eq $v.publish "cuda") (not $v.runtimeClassName) }}
{{- fail "runtimeClassName: with publish: cuda it is needed, to read the GPUs: the runtime class of NVIDIA's container toolkit, such as nvidia" }}
{{- end }}
{{- end }}

{{- /* A size in MiB. */ -}}
{{- define "gpumem.mib" -}}
{{- mulf (regexFind "^[0-9.]+" .) (get (dict "M" 1 "G" 1024 "T" 1048576 "" 0) (regexFind "[MGT]" .)) -}}
{{- end }}
