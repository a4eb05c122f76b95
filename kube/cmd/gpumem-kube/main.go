// Gpumem-kube is the agent of a Kubernetes node: it gives each container the bytes of GPU
// memory that its claim consumed, and no more. See docs/kubernetes.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpumem/kube/agent"
	"gpumem/kube/claim"
	"gpumem/kube/publish"
	"gpumem/policy/frameworks"
	"gpumem/share"
	"gpumem/size"
)

type options struct {
	node, kubeconfig, socket, run, library, install, pool string
	drivers                                               []string
	publish, simLibrary                                   string
	reserve, simMemory                                    uint64
	simGPUs                                               int
	cdi, kubelet, metrics, past                           string
}

func main() {
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fail(2, err)
	}
	// Garbage is collected early: an agent is idle nearly always, and there is one on each
	// node. The limit is soft, and above what lives.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(16 << 20)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o); err != nil {
		fail(1, err)
	}
}

// parse reads the command line.
func parse(args []string) (o options, err error) {
	var reserve, simMemory string
	f := pflag.NewFlagSet("gpumem-kube agent", pflag.ContinueOnError)
	f.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "name of this node; $NODE_NAME if not given")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the cluster's address; the pod's service account if not given")
	f.StringVar(&o.socket, "nri-socket", "/var/run/nri/nri.sock", "socket of the container runtime for plugins")
	f.StringVar(&o.run, "run-dir", "/run/gpumem", "folder on the host for leases")
	f.StringVar(&o.library, "library", "/opt/gpumem/lib", "folder with the pool library, as scripts/libgpumem builds it")
	f.StringVar(&o.install, "install-dir", "/var/lib/gpumem", "folder on the host that the library is copied to")
	f.StringSliceVar(&o.drivers, "drivers", []string{claim.NVIDIA, claim.Own}, "DRA drivers whose devices' memory counts")
	f.StringVar(&o.pool, "pool", "elastic", "policy of the pool that serves programs' memory")
	f.StringVar(&o.past, "past-library", "kill", "what becomes of programs that use a GPU without the library, in containers with a lease: kill or report")
	f.StringVar(&o.publish, "publish", "none", "GPUs to publish by a DRA driver: none, as another driver does; sim; cuda")
	f.StringVar(&reserve, "reserve", "0", "memory of each published GPU that no claim gets")
	f.IntVar(&o.simGPUs, "sim-gpus", 1, "number of simulated GPUs")
	f.StringVar(&simMemory, "sim-memory", "24GiB", "memory of each simulated GPU")
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
		return o, err
	}
	if o.reserve, err = size.ParseFlag(reserve); err != nil {
		return o, fmt.Errorf("--reserve: %w", err)
	}
	if o.simMemory, err = size.ParseFlag(simMemory); err != nil {
		return o, fmt.Errorf("--sim-memory: %w", err)
	}
	if _, err := frameworks.Parse(o.pool); err != nil || o.pool == "env" {
		return o, fmt.Errorf("--pool %s: want a policy of the pool library, such as elastic: %w", o.pool, cmp.Or(err, errors.New("env is none")))
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("%q: no argument is taken; see gpumem-kube --help", f.Arg(0))
	case o.node == "":
		return o, errors.New("--node: want the name of this node, or $NODE_NAME")
	case len(o.drivers) == 0 || slices.Contains(o.drivers, ""):
		return o, fmt.Errorf("--drivers %s: want the names of DRA drivers with commas between, such as %s", strings.Join(o.drivers, ","), claim.NVIDIA)
	case !slices.Contains([]string{"none", "sim", "cuda"}, o.publish):
		return o, fmt.Errorf("--publish %s: want none, sim or cuda", o.publish)
	case !slices.Contains([]string{"kill", "report"}, o.past):
		return o, fmt.Errorf("--past-library %s: want kill or report", o.past)
	case o.simGPUs < 1 || o.simGPUs > 16:
		return o, fmt.Errorf("--sim-gpus %d: want 1 to 16", o.simGPUs)
	}
	for flag, path := range map[string]string{"run-dir": o.run, "install-dir": o.install, "cdi-dir": o.cdi, "kubelet-dir": o.kubelet} {
		if !filepath.IsAbs(path) {
			return o, fmt.Errorf("--%s %s: want an absolute path", flag, path)
		}
	}
	return o, nil
}

func fail(status int, err error) {
	fmt.Fprintf(os.Stderr, "gpumem-kube: %v\n", err)
	os.Exit(status)
}

func run(ctx context.Context, o options) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if o.kubeconfig == "" {
		cfg, err = rest.InClusterConfig()
	}
	if err != nil {
		return err
	}
	cfg.UserAgent, cfg.QPS, cfg.Burst = "gpumem-kube", 50, 100 // two requests for each pod that starts
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	library, err := agent.Install(o.library, o.install, "lib", true)
	if err != nil {
		return err
	}
	var gpus []publish.GPU
	simLibrary := ""
	switch o.publish {
	case "sim":
		if simLibrary, err = agent.Install(o.simLibrary, o.install, "sim", false); err != nil {
			return err
		}
		// With the node's name in the path the UUIDs are those of no other node.
		if _, err := share.Open(o.run); err != nil { // it makes the folder
			return err
		}
		if err := agent.MakeOwn(filepath.Join(o.run, "sim")); err != nil {
			return err
		}
		if gpus, err = publish.Sim(filepath.Join(o.run, "sim", o.node), o.simGPUs, o.simMemory); err != nil {
			return err
		}
	case "cuda":
		if gpus, err = publish.CUDA(); err != nil {
			return err
		}
	case "none": // what is free of the other driver's GPUs is known where they can be read
		if gpus, err = publish.CUDA(); err != nil {
			log.Info("GPUs are not read: what programs without a lease hold of them is not known", "err", err)
		}
	}
	var readable []agent.GPU
	for _, g := range gpus {
		m := share.Meter(g.Meter)
		if o.publish == "sim" {
			m = agent.Host(m, "/proc")
		}
		readable = append(readable, agent.GPU{UUID: g.UUID, Key: g.Key, Meter: m})
	}
	a, err := agent.New(agent.Config{Client: client, Node: o.node, Drivers: o.drivers, Socket: o.socket, Run: o.run, Library: library, Pool: o.pool, GPUs: readable, Proc: "/proc", KeepPast: o.past == "report", Log: log})
	if err != nil {
		return err
	}
	if o.metrics != "" {
		if err := serve(ctx, o.metrics, a, log); err != nil {
			return err
		}
	}
	if o.publish != "none" {
		d, err := publish.Start(ctx, publish.Config{Client: client, Node: o.node, Driver: claim.Own, CDIDir: o.cdi, KubeletDir: o.kubelet, GPUs: gpus, Reserve: o.reserve, SimLibrary: simLibrary, Log: log})
		if err != nil {
			return err
		}
		defer d.Stop()
	}
	return a.Run(ctx)
}

// serve serves /metrics, /healthz and /readyz until ctx is done.
func serve(ctx context.Context, addr string, a *agent.Agent, log *slog.Logger) error {
	r := prometheus.NewRegistry()
	if err := r.Register(a); err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics", "err", err)
		}
	}()
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return nil
}
