package node

// configs are the templates of the configuration files. What is unusual in them:
//
//   - restrict_oom_score_adj: a process without CAP_SYS_RESOURCE may not make itself less
//     likely to be killed than its parent is.
//   - failCgroupV1 is false for machines that still have the first version of cgroups.
//   - the kubelet changes no iptables and evicts no pods for want of disk, which is the
//     machine's.
var configs = map[string]string{
	"containerd.toml": `version = 3
root = "{{.Folder}}/containerd/root"
state = "{{.Folder}}/containerd/state"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{{.Socket}}"
[ttrpc]
  address = "{{.Socket}}.ttrpc"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{{.Pause}}"
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["{{.CDI}}"]
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{{.Plugins}}"]
    conf_dir = "{{.Folder}}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{{.Runc}}"
      SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = "{{.NRI}}"
  plugin_path = "{{.Folder}}/nri/plugins"
  plugin_config_path = "{{.Folder}}/nri/conf.d"
{{- if .Validator}}
  [plugins.'io.containerd.nri.v1.nri'.default_validator]
    enable = true
{{- end}}
`,
	"cni/10-node.conflist": `{"cniVersion": "1.0.0", "name": "node", "plugins": [
{{- if .Loopback}}{"type": "loopback"}
{{- else}}{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "{{.Folder}}/ipam",
  "ranges": [[{"subnet": "10.77.0.0/22"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
{{- end}}]}
`,
	"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: {{.Cgroup}}
containerRuntimeEndpoint: unix://{{.Socket}}
podLogsDir: {{.PodLogs}}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
resolvConf: ""
evictionHard: {memory.available: 100Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`,
}
