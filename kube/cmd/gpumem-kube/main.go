// Gpumem-kube is the agent of a Kubernetes node: it gives each container the bytes of GPU
// memory that its claim consumed, and no more. See docs/kubernetes.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpumem/kube/agent"
	"gpumem/kube/claim"
	"gpumem/kube/publish"
	"gpumem/node/share"
)

func main() {
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fail(2, err)
	}
	cfg, err := o.ready()
	if err != nil {
		fail(2, err)
	}
	// Garbage is collected early: an agent is idle nearly always, and there is one on each
	// node. The limit is soft, and above what lives.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(16 << 20)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o, cfg); err != nil {
		fail(1, err)
	}
}

func fail(status int, err error) {
	fmt.Fprintf(os.Stderr, "gpumem-kube: %v\n", err)
	os.Exit(status)
}

func run(ctx context.Context, o options, cfg *rest.Config) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg.UserAgent, cfg.QPS, cfg.Burst = "gpumem-kube", 50, 100 // two requests for each pod that starts
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if err := waitNode(ctx, client, o.node, time.Minute, log); err != nil || ctx.Err() != nil {
		return err
	}
	library, err := agent.Install(o.lib, o.install, "lib", true)
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

// waitNode waits until the cluster has the node, most at most: a kubelet that starts with
// the agent registers it. An API server that does not answer is not waited for, since what
// runs on the node needs its agent meanwhile.
func waitNode(ctx context.Context, client kubernetes.Interface, node string, most time.Duration, log *slog.Logger) error {
	until := time.Now().Add(most)
	for said := false; ; said = true {
		asking, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err := client.CoreV1().Nodes().Get(asking, node, metav1.GetOptions{})
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case !apierrors.IsNotFound(err):
			if err != nil {
				log.Warn("whether the cluster has this node is not known", "node", node, "err", err)
			} else if said {
				log.Info("the cluster has this node now", "node", node)
			}
			return nil
		case time.Now().After(until):
			return fmt.Errorf("--node %s: the cluster has no node of this name; kubectl get nodes lists those it has", node)
		case !said:
			log.Error("the cluster has no node of this name; it is waited for", "node", node, "most", most)
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(time.Second, most/10)):
		}
	}
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
