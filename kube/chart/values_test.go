package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gpumem/policy/frameworks"
)

// template runs Helm on the chart. scripts/kube-yaml --check builds Helm and names it here.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Skip("no Helm: scripts/kube-yaml --check builds it and runs this; HELM names one")
	}
	out, err := exec.Command(helm, append([]string{"template", "gpumem", "gpumem", "--kube-version", "1.36.0"}, args...)...).CombinedOutput()
	return string(out), err
}

func TestRightValuesAreTaken(t *testing.T) {
	cases := []struct {
		name string
		args []string
		has  string
	}{
		{"defaults", nil, "--publish=none"},
		{"image of a registry with a port", []string{"--set", "image.repository=registry:5000/team/gpumem-kube,image.tag=v1"}, `"registry:5000/team/gpumem-kube:v1"`},
		{"lists", []string{"--set", "drivers={gpu.nvidia.com}", "--set-json", "extendedResources=[]"}, "--drivers=gpu.nvidia.com\n"},
		{"pool with release and keys", []string{"--set", `pool=jax@0.4.30:preallocate=false\,fraction=0.5`}, "--pool=jax@0.4.30:preallocate=false,fraction=0.5"},
		{"lab with a reserve", []string{"--set", "publish=sim,lab.gpus=16,lab.memory=1.5TiB,reserve=512M"}, "--reserve=512M"},
		{"most of a lab's memory", []string{"--set", "publish=sim,lab.memory=8TiB"}, "--sim-memory=8TiB"},
		{"a reserve of 0 as a number", []string{"--set", "reserve=0"}, "--publish=none"},
		{"no metrics", []string{"--set", "metricsPort=0"}, "--metrics=\n"},
		{"report", []string{"--set", "pastLibrary=report"}, "--past-library=report"},
		{"where it runs", []string{"--set", "nodeSelector.a/b=c,tolerations[0].key=x,affinity.nodeAffinity.y=z,resources.limits.cpu=1,imagePullSecrets[0].name=s"}, "a/b: c"},
		{"chart of a chart", []string{"--set", "global.x=y"}, "--publish=none"},
	}
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range regexp.MustCompile(`(helm install gpumem[^\n]*?)?(--set [a-z][A-Za-z.]*=[^ \n\x60]+ ?)+`).FindAllString(string(page), -1) {
		if !strings.Contains(text, "gpuResourcesEnabledOverride") { // of NVIDIA's chart
			_, text, _ = strings.Cut(text, "--set ")
			cases = append(cases, struct {
				name string
				args []string
				has  string
			}{"page: " + text, strings.Fields("--set " + text), "kind: DaemonSet"})
		}
	}
	if len(cases) < 13 {
		t.Errorf("%d cases: those of the page are not found", len(cases))
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if out, err := template(t, c.args...); err != nil || !strings.Contains(out, c.has) {
				t.Errorf("%v: want %q in\n%s", err, c.has, out)
			}
		})
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	const (
		oneOf = "want one of jax, tensorflow, pytorch, bfc, platform, address, async, vmm, elastic"
		path  = "want the absolute path of a folder of the nodes"
		image = "want the name of an image without its tag"
		lab   = "lab: it is for simulated GPUs, with publish: sim; publish is none"
	)
	for _, c := range []struct{ name, set, err string }{
		{"misspelt key", "publsh=sim", "at '': additional properties 'publsh' not allowed"},
		{"misspelt key of lab", "lab.memroy=1GiB", "at '/lab': additional properties 'memroy' not allowed"},
		{"another of lab", "lab.gpu=2", "at '/lab': additional properties 'gpu' not allowed"},
		{"misspelt path", "paths.nir=/run", "at '/paths': additional properties 'nir' not allowed"},
		{"misspelt key of image", "image.name=x", "at '/image': additional properties 'name' not allowed"},
		{"misspelt key of a secret", "imagePullSecrets[0].nam=x", "at '/imagePullSecrets/0'"},
		{"key that is removed", "publish=null", "missing property 'publish'"},
		{"extendedResources as text", "extendedResources=nvidia.com/gpu", "at '/extendedResources': got string, want array"},
		{"extended resource without a domain", "extendedResources={gpu}", `extendedResources: "gpu": want the names of extended resources`},
		{"drivers as text", "drivers=gpu.nvidia.com", "at '/drivers': got string, want array"},
		{"no drivers", "drivers={}", `drivers: "": want the names of DRA drivers`},
		{"driver that is no name", "drivers={a b}", `drivers: "a b": want the names of DRA drivers`},
		{"publish without its driver", "publish=sim,drivers={gpu.nvidia.com}", "drivers: want gpu.gpumem.dev among them: with publish: sim"},
		{"publish as yes", "publish=true", "at '/publish': value must be one of 'none', 'sim', 'cuda'"},
		{"publish", "publish=nvidia", "at '/publish': value must be one of 'none', 'sim', 'cuda'"},
		{"cuda without runtime class", "publish=cuda", "runtimeClassName: with publish: cuda it is needed"},
		{"metricsPort", "metricsPort=x", "at '/metricsPort': got string, want integer"},
		{"metricsPort beyond ports", "metricsPort=99999", "at '/metricsPort': maximum: got 99,999, want 65,535"},
		{"misspelt pool", "pool=elastik", `pool: "elastik": ` + oneOf},
		{"empty pool", "pool=", `pool: "": ` + oneOf},
		{"pool env", "pool=env", `pool: "env": ` + oneOf},
		{"release of a pool without", "pool=vmm@1", `pool: "vmm@1": ` + oneOf},
		{"pastLibrary", "pastLibrary=ignore", "at '/pastLibrary': value must be one of 'kill', 'report'"},
		{"pullPolicy", "image.pullPolicy=Sometimes", "at '/image/pullPolicy': value must be one of"},
		{"lab.memory without unit", "publish=sim,lab.memory=80", `lab.memory: "80": want a size with its unit`},
		{"lab.memory empty", "publish=sim,lab.memory=", `lab.memory: "": want a size with its unit`},
		{"lab.memory as Kubernetes has it", "publish=sim,lab.memory=24Gig", `lab.memory: "24Gig": want a size with its unit`},
		{"lab.memory 0", "publish=sim,lab.memory=0GiB", `lab.memory: "0GiB": want 2MiB to 8TiB`},
		{"lab.memory too much", "publish=sim,lab.memory=99TiB", `lab.memory: "99TiB": want 2MiB to 8TiB`},
		{"no lab.gpus", "publish=sim,lab.gpus=0", "at '/lab/gpus': minimum: got 0, want 1"},
		{"lab.gpus too many", "publish=sim,lab.gpus=17", "at '/lab/gpus': maximum: got 17, want 16"},
		{"lab.gpus half", "publish=sim,lab.gpus=1.5", "at '/lab/gpus': got string, want integer"},
		{"lab.gpus as text", "publish=sim,lab.gpus=x", "at '/lab/gpus': got string, want integer"},
		{"lab.gpus without publish", "lab.gpus=2", lab},
		{"lab.memory without publish", "lab.memory=80GiB", lab},
		{"reserve", "publish=sim,reserve=some", `reserve: "some": want 0, or a size with its unit`},
		{"reserve below 0", "publish=sim,reserve=-1GiB", `reserve: "-1GiB": want 0, or a size with its unit`},
		{"reserve without unit", "publish=sim,reserve=5", `reserve: "5": want 0, or a size with its unit`},
		{"reserve of all", "publish=sim,reserve=24GiB", `reserve: "24GiB": it leaves nothing of lab.memory, 24GiB`},
		{"reserve without publish", "reserve=1GiB", "reserve: it is for GPUs that the agent publishes"},
		{"relative path", "paths.run=run/gpumem", `paths.run: "run/gpumem": ` + path},
		{"empty path", "paths.kubelet=", `paths.kubelet: "": ` + path},
		{"path of nothing", "paths.nri=/", `paths.nri: "/": ` + path},
		{"path as a number", "paths.cdi=1", "at '/paths/cdi': got number, want string"},
		{"no image", "image.repository=", `image.repository: "": ` + image},
		{"image with its tag", "image.repository=gpumem.dev/gpumem-kube:1", `image.repository: "gpumem.dev/gpumem-kube:1": ` + image},
		{"image's tag as a number", "image.tag=1", "at '/image/tag': got number, want string"},
		{"image's tag", "image.tag=a b", `image.tag: "a b": want a tag`},
		{"toleration as text", "tolerations={all}", "at '/tolerations/0': got string, want object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out, err := template(t, "--set", c.set); err == nil || !strings.Contains(out, c.err) {
				t.Errorf("%v: want %q in\n%.2000s", err, c.err, out)
			}
		})
	}
}

// A pool that the chart lets pass and the agent does not know would keep it from starting.
func TestPoolsAreThoseOfTheAgent(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("gpumem", "templates", "_check.tpl"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\$pools := list ("[a-z" ]*")`).FindSubmatch(text)
	if names == nil {
		t.Fatal("no list of pools")
	}
	list := strings.ReplaceAll(strings.ReplaceAll(string(names[1]), `" "`, ", "), `"`, "")
	if _, err := frameworks.Parse("-"); !strings.HasSuffix(err.Error(), "want one of "+list+", env") {
		t.Errorf("the chart has %s; the agent: %v", list, err)
	}
}
