package schedule

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"gpumem/kube/cluster/node"
)

var (
	scheduleFlag  = flag.Bool("schedule", false, "run the simulation of a large cluster, which takes minutes")
	scheduleNodes = flag.Int("nodes", 1000, "simulated nodes of -schedule")
	schedulePods  = flag.Int("pods", 10000, "claims of -schedule")
	scheduleQPS   = flag.String("scheduler-qps", "1000", "requests a second that the scheduler may make; Kubernetes' default is 50")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !*scheduleFlag {
		os.Exit(m.Run())
	}
	os.Exit(node.Enter(func(string) error { return nil }, m.Run))
}

// TestSchedule measures a large cluster: the real scheduler with nodes that are objects
// only.
func TestSchedule(t *testing.T) {
	if !*scheduleFlag {
		t.Skip("the simulation takes minutes: go test -run TestSchedule -schedule -timeout 1h -v")
	}
	if reason := node.Skipped(); reason != "" {
		t.Skip("no control plane for tests: " + reason)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	n, err := node.New(node.Options{Flags: map[string][]string{
		// The nodes have no kubelet that would remove the taint, and pods no controller
		// that would make their service account.
		"apiserver": {"--disable-admission-plugins=TaintNodesByCondition,ServiceAccount"},
		"scheduler": {"--kube-api-qps=" + *scheduleQPS, "--kube-api-burst=" + *scheduleQPS},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Control(ctx, "scheduler"); err != nil {
		t.Fatal(err)
	}
	client, err := n.Client(node.Admin)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Nodes: *scheduleNodes, GPUs: 8, Memory: 80 << 30, Claims: *schedulePods, Mixture: Mixture, Seed: 1, Workers: 16}
	r, err := Run(ctx, client, c, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes with %d GPUs of %d GiB made in %.1f s; %d claims and pods in %.1f s", c.Nodes, c.GPUs, c.Memory>>30, r.Created.Seconds(), c.Claims, r.Submitted.Seconds())
	t.Logf("placed %d: half after %.1f s, the last after %.1f s: %.0f pods a second; %d wait", r.Packing.Placed, r.Half.Seconds(), r.Placed.Seconds(), float64(r.Packing.Placed)/r.Placed.Seconds(), r.Waiting)
	p := r.Packing
	t.Logf("%.1f TiB of %.1f TiB claimed, on %d GPUs of %d nodes; first fit, the largest first, takes %d GPUs; %d GPUs have more claims than memory",
		float64(p.Bytes)/(1<<40), float64(c.Nodes*c.GPUs)*float64(c.Memory)/(1<<40), p.Used, p.Nodes, p.Least, p.Over)
	for _, name := range []string{"etcd", "apiserver", "scheduler"} {
		t.Logf("%s: %.0f s of processor, at most %d MiB", name, n.Process(name).Seconds(), n.Process(name).PeakRSS()>>20)
	}
	before := n.Process("apiserver").Seconds()
	a, err := Ask(ctx, client, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("agents: %d pods with 2 requests (median %v) and %d lists of slices (median %v) in %.1f s, %.0f requests a second, %.1f s of the API server's processor",
		a.Pods, a.PerPod, a.Slices, a.PerList, a.Elapsed.Seconds(), a.RequestsPerSecond, n.Process("apiserver").Seconds()-before)
	if p.Over > 0 {
		t.Errorf("%d GPUs have more claims than memory", p.Over)
	}
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
}
