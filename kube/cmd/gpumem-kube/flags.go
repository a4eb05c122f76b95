// The command line: what it says, and what can be refused before anything is made.

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpumem/internal/spelling"
	"gpumem/kube/claim"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

type options struct {
	node, kubeconfig, socket, run, lib, install, pool string
	drivers                                           []string
	publish, simLibrary                               string
	reserve, simMemory                                uint64
	simGPUs                                           int
	cdi, kubelet, metrics, past                       string
}

// The memory of a simulated GPU. A driver maps pages of 2 MiB. Sixteen of 8 TiB are the
// 128 TiB of addresses that a program has.
const (
	leastSim = 2 << 20
	mostSim  = 8 << 40
)

// parse reads the command line. It looks at no file.
func parse(args []string) (o options, err error) {
	var reserve, simMemory string
	f := pflag.NewFlagSet("gpumem-kube agent", pflag.ContinueOnError)
	f.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "name of this node; $NODE_NAME if not given")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the cluster's address; the pod's service account if not given")
	f.StringVar(&o.socket, "nri-socket", "/var/run/nri/nri.sock", "socket of the container runtime for plugins")
	f.StringVar(&o.run, "run-dir", "/run/gpumem", "folder on the host for leases")
	f.StringVar(&o.lib, "library", "/opt/gpumem/lib", "folder with the pool library, as scripts/libgpumem builds it")
	f.StringVar(&o.install, "install-dir", "/var/lib/gpumem", "folder on the host that the library is copied to")
	f.StringSliceVar(&o.drivers, "drivers", []string{claim.NVIDIA, claim.Own}, "DRA drivers whose devices' memory counts")
	f.StringVar(&o.pool, "pool", "elastic", "policy of the pool that serves programs' memory")
	f.StringVar(&o.past, "past-library", "kill", "what becomes of programs that use a GPU without the library, in containers with a lease: kill or report")
	f.StringVar(&o.publish, "publish", "none", "GPUs to publish by a DRA driver: none, as another driver does; sim; cuda")
	f.StringVar(&reserve, "reserve", "0", "memory of each published GPU that no claim gets")
	f.IntVar(&o.simGPUs, "sim-gpus", 1, "number of simulated GPUs, 1 to 16")
	f.StringVar(&simMemory, "sim-memory", "24GiB", "memory of each simulated GPU, 2MiB to 8TiB")
	f.StringVar(&o.simLibrary, "sim-library", "/opt/gpumem/sim", "folder with the simulated GPU's driver library, as scripts/libcudasim builds it")
	f.StringVar(&o.cdi, "cdi-dir", "/var/run/cdi", "folder for CDI files")
	f.StringVar(&o.kubelet, "kubelet-dir", "/var/lib/kubelet", "the kubelet's folder")
	f.StringVar(&o.metrics, "metrics", ":9835", "address of /metrics and /healthz; empty for none")
	f.SortFlags = false
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprintf(os.Stderr, "usage: gpumem-kube agent [flags]\n\n%s", f.FlagUsages()) }
	if len(args) == 0 || args[0] != "agent" && args[0] != "--help" && args[0] != "-h" {
		return o, errors.New("want the command agent; see gpumem-kube --help")
	}
	if args[0] == "agent" {
		args = args[1:]
	}
	if err := f.Parse(args); err != nil {
		return o, flagError(f, err)
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: no argument is taken; see gpumem-kube --help", f.Arg(0))
	}
	if o.reserve, err = size.ParseFlag(reserve); err != nil {
		return o, fmt.Errorf("--reserve: %w", err)
	}
	if o.simMemory, err = size.ParseFlag(simMemory); err != nil {
		return o, fmt.Errorf("--sim-memory: %w", err)
	}
	if err := checkPool(o.pool); err != nil {
		return o, err
	}
	for _, p := range []struct{ flag, path string }{{"nri-socket", o.socket}, {"run-dir", o.run}, {"install-dir", o.install}, {"cdi-dir", o.cdi}, {"kubelet-dir", o.kubelet}} {
		if !filepath.IsAbs(p.path) {
			return o, bad(p.flag, p.path, "want an absolute path")
		}
	}
	drivers := strings.Join(o.drivers, ",")
	switch {
	case o.node == "":
		return o, errors.New("--node: want the name of this node, or $NODE_NAME")
	case len(validation.IsDNS1123Subdomain(o.node)) > 0:
		return o, bad("node", o.node, "no node can have this name; kubectl get nodes lists those of the cluster")
	case len(o.drivers) == 0 || slices.ContainsFunc(o.drivers, func(d string) bool { return len(validation.IsDNS1123Subdomain(d)) > 0 }):
		return o, bad("drivers", drivers, "want the names of DRA drivers with commas between, such as "+claim.NVIDIA)
	case !slices.Contains([]string{"none", "sim", "cuda"}, o.publish):
		return o, bad("publish", o.publish, "want none, sim or cuda")
	case o.publish != "none" && !slices.Contains(o.drivers, claim.Own):
		return o, bad("drivers", drivers, fmt.Sprintf("want %s among them: --publish %s publishes the GPUs of that driver, whose claims would have no limit", claim.Own, o.publish))
	case !slices.Contains([]string{"kill", "report"}, o.past):
		return o, bad("past-library", o.past, "want kill or report")
	case o.simGPUs < 1 || o.simGPUs > 16:
		return o, bad("sim-gpus", strconv.Itoa(o.simGPUs), "want 1 to 16")
	case o.simMemory < leastSim || o.simMemory > mostSim:
		return o, bad("sim-memory", simMemory, "want 2MiB, a page of GPU memory, to 8TiB: 16 such GPUs fill the 128 TiB of addresses that a program has")
	case o.publish == "sim" && o.reserve >= o.simMemory:
		return o, bad("reserve", reserve, "it leaves nothing of --sim-memory "+simMemory)
	}
	if o.metrics != "" {
		_, port, err := net.SplitHostPort(o.metrics)
		if n, wrong := strconv.Atoi(port); err != nil || wrong != nil || n < 0 || n > 65535 {
			return o, bad("metrics", o.metrics, "want [HOST]:PORT, such as :9835, or nothing for none")
		}
	}
	return o, nil
}

// bad returns the error of a flag's value.
func bad(flag, value, want string) error {
	if value == "" || strings.ContainsAny(value, " \t\n") {
		value = strconv.Quote(value)
	}
	return fmt.Errorf("--%s %s: %s", flag, value, want)
}

// flagError adds to a parser's error which flag a misspelt one was meant to be.
func flagError(f *pflag.FlagSet, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	near := ""
	if unknown := new(pflag.NotExistError); errors.As(err, &unknown) {
		var names []string
		f.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if n := spelling.Nearest(unknown.GetSpecifiedName(), names); n != "" {
			near = "; did you mean --" + n + "?"
		}
	}
	return fmt.Errorf("%w%s; gpumem-kube --help lists the flags", err, near)
}

// checkPool reports why a name is no policy of the pool library. Those are the ones of package
// frameworks but for env, which describes a framework's settings.
func checkPool(pool string) error {
	name, _, _ := strings.Cut(pool, ":")
	if name == "env" {
		return bad("pool", pool, "env is what a framework does by its own settings; want a policy of the pool library, such as elastic")
	}
	_, err := frameworks.Parse(pool)
	if err == nil {
		return nil
	}
	if inner := errors.Unwrap(err); inner != nil { // without "policy NAME", which the flag says
		err = inner
	}
	return bad("pool", pool, strings.TrimSuffix(err.Error(), ", env"))
}

// ready returns how the API server is reached, once the files that the flags name are there.
func (o options) ready() (*rest.Config, error) {
	type file struct{ flag, folder, name, hint string }
	files := []file{{"library", o.lib, "libcuda.so.1", "; scripts/libgpumem builds it"}}
	if o.publish == "sim" {
		files = append(files, file{"sim-library", o.simLibrary, "libcuda.so.1", "; scripts/libcudasim builds it"})
	}
	if o.publish != "none" {
		files = append(files, file{"kubelet-dir", o.kubelet, "", "; want the folder of the kubelet of this node, its --root-dir"})
	}
	for _, f := range files {
		st, err := os.Stat(filepath.Join(f.folder, f.name))
		if err == nil && f.name == "" && !st.IsDir() {
			err = errors.New("it is no folder")
		}
		if err != nil {
			return nil, bad(f.flag, f.folder, err.Error()+f.hint)
		}
	}
	if o.kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: want a file with the cluster's address, for this is no pod with a service account: %w", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, bad("kubeconfig", o.kubeconfig, err.Error())
	}
	return cfg, nil
}
