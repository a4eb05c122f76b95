package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestParse(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for _, c := range []struct{ name, args, err string }{
		{"node alone", "agent --node n1", ""},
		{"simulated GPUs", "agent --node n1 --publish sim --sim-gpus 2 --sim-memory 16GiB --reserve 1GiB --metrics=", ""},
		{"node with the command's name", "agent --node agent", ""},
		{"least memory", "agent --node n1 --sim-memory 2MiB", ""},
		{"most memory", "agent --node n1 --sim-memory 8TiB", ""},
		{"policy with keys", "agent --node n1 --pool jax@0.4.30:preallocate=false", ""},
		{"one address for metrics", "agent --node n1 --metrics [::1]:0", ""},

		{"no command", "", "want the command agent; see gpumem-kube --help"},
		{"misspelt command", "agnet --node n1", "want the command agent; see gpumem-kube --help"},
		{"no node", "agent", "--node: want the name of this node, or $NODE_NAME"},
		{"no node's name", "agent --node N_1", "--node N_1: no node can have this name; kubectl get nodes lists those of the cluster"},
		{"argument with the command's name", "agent --node n1 agent", `"agent": no argument is taken; see gpumem-kube --help`},
		{"argument", "agent --node n1 more", `"more": no argument is taken; see gpumem-kube --help`},
		{"misspelt flag", "agent --nod n1", "unknown flag: --nod; did you mean --node?; gpumem-kube --help lists the flags"},
		{"another misspelt flag", "agent --node n1 --publsh sim", "unknown flag: --publsh; did you mean --publish?; gpumem-kube --help lists the flags"},
		{"flag like no other", "agent --node n1 --gpu-count 2", "unknown flag: --gpu-count; gpumem-kube --help lists the flags"},
		{"short flag", "agent -n n1", `unknown shorthand flag: 'n' in -n; gpumem-kube --help lists the flags`},
		{"flag without its value", "agent --node", "flag needs an argument: --node; gpumem-kube --help lists the flags"},
		{"publish", "agent --node n1 --publish nvidia", "--publish nvidia: want none, sim or cuda"},
		{"past-library", "agent --node n1 --past-library ignore", "--past-library ignore: want kill or report"},
		{"reserve without unit", "agent --node n1 --reserve 5", `--reserve: size "5": missing unit; write 5GiB, 5MiB or 5B`},
		{"reserve of all", "agent --node n1 --publish sim --reserve 24GiB", "--reserve 24GiB: it leaves nothing of --sim-memory 24GiB"},
		{"sim-memory", "agent --node n1 --sim-memory lots", `--sim-memory: size "lots": want a number of bytes, at least 0, with or without a unit, such as 512, 4KiB, 1.5GiB or 80G`},
		{"no sim-memory", "agent --node n1 --sim-memory 0", simRange("0")},
		{"too little sim-memory", "agent --node n1 --sim-memory 1MiB", simRange("1MiB")},
		{"too much sim-memory", "agent --node n1 --sim-memory 99TiB", simRange("99TiB")},
		{"far too much sim-memory", "agent --node n1 --sim-memory 999PiB", simRange("999PiB")},
		{"no sim-gpus", "agent --node n1 --sim-gpus 0", "--sim-gpus 0: want 1 to 16"},
		{"sim-gpus", "agent --node n1 --sim-gpus many", `invalid argument "many" for "--sim-gpus" flag: must be an integer; gpumem-kube --help lists the flags`},
		{"relative folder", "agent --node n1 --run-dir run", "--run-dir run: want an absolute path"},
		{"empty folder", "agent --node n1 --cdi-dir=", `--cdi-dir "": want an absolute path`},
		{"empty socket", "agent --node n1 --nri-socket=", `--nri-socket "": want an absolute path`},
		{"misspelt pool", "agent --node n1 --pool elastik", `--pool elastik: unknown policy "elastik" (did you mean "elastic"?); want one of ` + pools},
		{"empty pool", "agent --node n1 --pool=", `--pool "": unknown policy ""; want one of ` + pools},
		{"pool's key", "agent --node n1 --pool elastic:reserv=1GiB", `--pool elastic:reserv=1GiB: unknown key "reserv" (did you mean "reserve"?)`},
		{"env", "agent --node n1 --pool env", "--pool env: env is what a framework does by its own settings; want a policy of the pool library, such as elastic"},
		{"no drivers", "agent --node n1 --drivers=", `--drivers "": want the names of DRA drivers with commas between, such as gpu.nvidia.com`},
		{"empty driver", "agent --node n1 --drivers a,,b", "--drivers a,,b: want the names of DRA drivers"},
		{"publish without its driver", "agent --node n1 --publish sim --drivers gpu.nvidia.com", "--drivers gpu.nvidia.com: want gpu.gpumem.dev among them: --publish sim publishes"},
		{"metrics without port", "agent --node n1 --metrics localhost", "--metrics localhost: want [HOST]:PORT, such as :9835, or nothing for none"},
		{"metrics with no port", "agent --node n1 --metrics :x", "--metrics :x: want [HOST]:PORT"},
		{"metrics beyond ports", "agent --node n1 --metrics :99999", "--metrics :99999: want [HOST]:PORT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(strings.Fields(c.args))
			checkLine(t, err, c.err)
		})
	}
	if _, err := parse([]string{"--help"}); !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	t.Setenv("NODE_NAME", "n2")
	if o, err := parse([]string{"agent"}); err != nil || o.node != "n2" || o.simMemory != 24<<30 {
		t.Errorf("%+v, %v", o, err)
	}
}

const pools = "jax, tensorflow, pytorch, bfc, platform, address, async, vmm, elastic"

func simRange(value string) string {
	return "--sim-memory " + value + ": want 2MiB, a page of GPU memory, to 8TiB: 16 such GPUs fill the 128 TiB of addresses that a program has"
}

// checkLine checks that an error is one line with a beginning. A pool's error ends with it, so
// that none offers a policy that is refused.
func checkLine(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case err == nil && want == "":
	case err == nil || want == "" || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n"):
		t.Errorf("error %v\n want %s", err, want)
	case strings.HasSuffix(want, pools) && err.Error() != want:
		t.Errorf("error %v\n want %s", err, want)
	}
}

// What the flags name is looked for before anything is made, such as the kubelet's folder.
func TestReadyNamesTheFlag(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	at := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	at("lib/libcuda.so.1", "")
	conf := at("conf", `{kind: Config, apiVersion: v1, clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`)
	for _, c := range []struct{ name, args, err string }{
		{"all there", "--publish sim --sim-library DIR/lib --kubelet-dir DIR --kubeconfig " + conf, ""},
		{"the kubelet's folder is not used", "--kubelet-dir /nowhere --kubeconfig " + conf, ""},
		{"no pod", "", "--kubeconfig: want a file with the cluster's address, for this is no pod with a service account: "},
		{"no kubeconfig", "--kubeconfig DIR/nowhere", "--kubeconfig DIR/nowhere: stat DIR/nowhere: no such file or directory"},
		{"no YAML", "--kubeconfig " + at("bad", "{"), "--kubeconfig DIR/bad: error loading config file"},
		{"empty kubeconfig", "--kubeconfig " + at("empty", ""), "--kubeconfig DIR/empty: invalid configuration"},
		{"no kubelet's folder", "--publish sim --sim-library DIR/lib --kubelet-dir DIR/kubelet", "--kubelet-dir DIR/kubelet: stat DIR/kubelet: no such file or directory; want the folder of the kubelet"},
		{"file for the kubelet's folder", "--publish cuda --kubelet-dir DIR/conf", "--kubelet-dir DIR/conf: it is no folder"},
		{"no library", "--library DIR/no", "--library DIR/no: stat DIR/no/libcuda.so.1: no such file or directory; scripts/libgpumem builds it"},
		{"no simulated driver", "--publish sim --sim-library DIR", "--sim-library DIR: stat DIR/libcuda.so.1: no such file or directory; scripts/libcudasim builds it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(strings.ReplaceAll("agent --node n1 --library DIR/lib "+c.args, "DIR", dir))
			o, err := parse(args)
			if err != nil {
				t.Fatal(err)
			}
			_, err = o.ready()
			checkLine(t, err, strings.ReplaceAll(c.err, "DIR", dir))
		})
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "kubelet")); left != nil {
		t.Error("the kubelet's folder was made")
	}
}

func TestWaitNode(t *testing.T) {
	there := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, c := range []struct {
		name  string
		comes time.Duration // the node; 0: it is there
		api   error
		logs  []string
		err   string
	}{
		{"node is there", 0, nil, nil, ""},
		{"node comes", 10 * time.Second, nil, []string{"level=ERROR msg=\"the cluster has no node of this name; it is waited for\" node=n1", "level=INFO msg=\"the cluster has this node now\""}, ""},
		{"node does not come", time.Hour, nil, []string{"level=ERROR msg=\"the cluster has no node"}, "--node n1: the cluster has no node of this name; kubectl get nodes lists those it has"},
		{"API server is away", time.Hour, errors.New("connection refused"), []string{"level=WARN msg=\"whether the cluster has this node is not known\" node=n1 err=\"connection refused\""}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				began := time.Now()
				client := fake.NewClientset()
				client.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
					return c.api != nil || time.Since(began) >= c.comes, there, c.api
				})
				err := waitNode(t.Context(), client, "n1", time.Minute, slog.New(slog.NewTextHandler(&log, nil)))
				checkLine(t, err, c.err)
				lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
				if len(c.logs) == 0 {
					lines = nil
				}
				if len(lines) != len(c.logs) {
					t.Fatalf("log\n%s", log.String())
				}
				for i, l := range lines {
					if !strings.Contains(l, c.logs[i]) {
						t.Errorf("log %s\nwant %s", l, c.logs[i])
					}
				}
			})
		})
	}
	t.Run("agent is stopped meanwhile", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/10)
		defer cancel()
		if err := waitNode(ctx, fake.NewClientset(), "n1", time.Minute, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
}
