package cluster

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	roundsFlag = flag.Int("rounds", 1, "how often -cluster runs everything")
	churnFlag  = flag.Int("churn", 100, "pods that -cluster starts and deletes at random in a round")
	seedFlag   = flag.Uint64("seed", 1, "of what -cluster does at random")
)

// TestCluster runs the agent on a real cluster of one node, while it is looked at from
// outside whether any process holds more than its claim.
func TestCluster(t *testing.T) {
	if !*clusterFlag {
		t.Skip("the real cluster takes minutes: go test -run TestCluster -cluster -v -timeout 1h")
	}
	need(t)
	l := newLab(t, within(t, time.Duration(*roundsFlag)*20*time.Minute), map[string][]string{"apiserver": auditFlags(t)})
	for round := range *roundsFlag {
		begin := time.Now()
		ok := true
		for _, s := range scenarios {
			ok = l.test(fmt.Sprintf("%d/%s", round+1, s.name), func(l *lab) { s.f(l, round) }) && ok
		}
		o := l.observer
		o.mu.Lock()
		t.Logf("round %d: %.0f s, ok %v; %d looks from outside at up to %d processes with up to %d MiB, the agent has %d MiB, at most %d MiB",
			round+1, time.Since(begin).Seconds(), ok, o.looks, o.processes, o.held>>20, l.agent.RSS()>>20, l.agent.PeakRSS()>>20)
		o.mu.Unlock()
	}
	if rss := l.agent.PeakRSS(); rss > 64*mib {
		t.Errorf("the agent has %d MiB, want at most 64", rss>>20)
	}
	for _, name := range []string{"apiserver", "kubelet", "containerd", "scheduler", "controllers", "etcd"} {
		t.Logf("%s: %d MiB", name, l.node.Process(name).PeakRSS()>>20)
	}
	if err := l.agent.Stop(); err != nil {
		t.Error(err)
	}
	if err := l.node.Stop(); err != nil {
		t.Error(err)
	}
}

// scenarios are what a round consists of.
var scenarios = []struct {
	name string
	f    func(l *lab, round int)
}{
	{"two pods fit and the third waits", fitAndWait},
	{"two pods share one claim", shareOneClaim},
	{"a byte more than the claim", byteMore},
	{"several containers in one pod", severalContainers},
	{"claims of odd shapes", oddShapes},
	{"agent killed", agentKilled},
	{"agent restarted under load", agentRestarted},
	{"API server restarted", apiServerRestarted},
	{"kubelet restarted", kubeletRestarted},
	{"container out of memory", containerOutOfMemory},
	{"node out of memory", nodeOutOfMemory},
	{"pods start and go at random", churn},
	{"nothing changes", idle},
}

func fitAndWait(l *lab, _ int) {
	for _, p := range []struct {
		name  string
		bytes int64
	}{{"first", 6 * gib}, {"second", 8 * gib}} {
		l.create(labPod{name: p.name, requests: one(p.bytes), args: [][]string{{"info", "until", "64Mi", "await", simFolder + "/end-" + p.name}}})
		l.waitLine(p.name, "c0", "await")
		wantTaken(l.T, l.lines(p.name, "c0"), p.bytes)
	}
	l.create(labPod{name: "third", requests: one(6 * gib), args: [][]string{{"until", "64Mi"}}})
	l.event("third", "FailedScheduling", "")
	l.order("end-first")
	wantTaken(l.T, l.succeed("third"), 6*gib)
	l.order("end-second")
	l.succeed("second")
}

// order has a container go on that waits for a file.
func (l *lab) order(name string) {
	l.Helper()
	l.check(order(name))
	l.Cleanup(func() { _ = os.Remove(simFolder + "/" + name) })
}

func shareOneClaim(l *lab, _ int) {
	claims := l.kube.ResourceV1().ResourceClaims("default")
	_, err := claims.Create(l.ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: claimSpec(one(6 * gib))}, metav1.CreateOptions{})
	l.check(err)
	defer func() { l.check(claims.Delete(l.ctx, "shared", metav1.DeleteOptions{})) }()
	l.create(labPod{name: "one", claim: "shared", args: [][]string{{"alloc", "2Gi", "await", simFolder + "/end-one"}}})
	l.waitLine("one", "c0", "await")
	l.create(labPod{name: "two", claim: "shared", args: [][]string{{"until", "64Mi"}}})
	lines := l.succeed("two")
	used := 2*gib + outside(l.T, l.lines("one", "c0"))
	wantTaken(l.T, lines, 6*gib-used)
	l.order("end-one")
	l.succeed("one")
	l.check(l.delete("one"))
	l.check(l.delete("two"))
}

func byteMore(l *lab, _ int) {
	l.create(labPod{name: "greedy", requests: one(2 * gib), args: [][]string{{"alloc", fmt.Sprint(2*gib + 1), "until", "16Mi"}}})
	lines := l.succeed("greedy")
	wantLine(l.T, lines, fmt.Sprintf("alloc %d refused 2", 2*gib+1))
	wantTaken(l.T, lines, 2*gib)
	l.event("greedy", "OutOfLease", "claim")
}

func severalContainers(l *lab, _ int) {
	l.create(labPod{name: "several", requests: one(6 * gib), args: [][]string{{"alloc", "1Gi", "await", simFolder + "/end-several"}, {"alloc", "1Gi", "await", simFolder + "/end-several"}, {"await", simFolder + "/go-several", "until", "64Mi"}}})
	l.waitLine("several", "c0", "await")
	l.waitLine("several", "c1", "await")
	l.order("go-several")
	l.waitLine("several", "c2", "until")
	lines := l.lines("several", "c2")
	wantTaken(l.T, lines, 6*gib-2*(gib+outside(l.T, lines)))
	l.order("end-several")
	l.succeed("several")
}

func oddShapes(l *lab, _ int) {
	for _, s := range []struct {
		name     string
		requests map[string]int64
		want     int64 // 0: it never starts
	}{
		{"odd-bytes", one(2*gib + 1), 2*gib + mib},
		{"two-requests", map[string]int64{"a": 2 * gib, "b": gib}, 3 * gib},
		{"no-bytes", one(0), labGPU},
		{"too-much", one(labGPU + mib), 0},
	} {
		l.create(labPod{name: s.name, requests: s.requests, args: [][]string{{"devices", "until", "4Mi"}}})
		if s.want == 0 {
			l.event(s.name, "FailedScheduling", "")
		} else {
			lines := l.succeed(s.name)
			wantLine(l.T, lines, "devices 1")
			wantTaken(l.T, lines, s.want)
		}
		l.check(l.delete(s.name))
	}
}

func agentKilled(l *lab, _ int) {
	l.create(labPod{name: "before", requests: one(4 * gib), args: [][]string{{"alloc", "1Gi", "await", simFolder + "/go-before", "until", "64Mi"}}})
	l.waitLine("before", "c0", "await")
	l.agent.Kill()
	l.create(labPod{name: "during", requests: one(4 * gib), args: [][]string{{"until", "64Mi"}}})
	l.create(labPod{name: "plain", args: [][]string{{"env", "GPUMEM"}}})
	l.succeed("plain")
	l.order("go-before")
	l.waitLine("before", "c0", "until")
	wantTaken(l.T, l.lines("before", "c0"), 3*gib)
	p, err := l.kube.CoreV1().Pods("default").Get(l.ctx, "during", metav1.GetOptions{})
	l.check(err)
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running != nil || c.State.Terminated != nil {
			l.Errorf("container %s was started without the agent", c.Name)
		}
	}
	l.startAgent()
	wantTaken(l.T, l.succeed("during"), 4*gib)
	l.succeed("before") // the kubelet needs the driver to let go of a claim
}

func agentRestarted(l *lab, _ int) {
	for i := range 4 {
		l.create(labPod{name: fmt.Sprintf("load-%d", i), requests: one(3 * gib), args: [][]string{{"until", "64Mi", "await", simFolder + "/end-load"}}})
		l.agent.Kill()
		l.startAgent()
	}
	for i := range 4 {
		l.waitLine(fmt.Sprintf("load-%d", i), "c0", "await")
		wantTaken(l.T, l.lines(fmt.Sprintf("load-%d", i), "c0"), 3*gib)
	}
	l.order("end-load")
	for i := range 4 {
		l.succeed(fmt.Sprintf("load-%d", i))
	}
}

func apiServerRestarted(l *lab, _ int) {
	l.create(labPod{name: "old", requests: one(4 * gib), args: [][]string{{"alloc", "1Gi", "await", simFolder + "/go-old", "until", "64Mi"}}})
	l.waitLine("old", "c0", "await")
	l.create(labPod{name: "between", requests: one(4 * gib), args: [][]string{{"until", "64Mi"}}})
	l.check(l.node.Restart(l.ctx, "apiserver"))
	wantTaken(l.T, l.succeed("between"), 4*gib)
	l.order("go-old")
	wantTaken(l.T, l.succeed("old"), 3*gib)
}

func kubeletRestarted(l *lab, _ int) {
	l.create(labPod{name: "old", requests: one(4 * gib), args: [][]string{{"alloc", "1Gi", "await", simFolder + "/go-kubelet", "until", "64Mi"}}})
	l.waitLine("old", "c0", "await")
	l.check(l.node.Restart(l.ctx, "kubelet"))
	l.create(labPod{name: "new", requests: one(4 * gib), args: [][]string{{"until", "64Mi"}}})
	wantTaken(l.T, l.succeed("new"), 4*gib)
	l.order("go-kubelet")
	wantTaken(l.T, l.succeed("old"), 3*gib)
}

// containerOutOfMemory has the kernel kill a program that holds GPU memory: the container
// starts again and has all of its lease.
func containerOutOfMemory(l *lab, _ int) {
	l.create(labPod{name: "hungry", requests: one(3 * gib), again: true, memory: "128Mi", args: [][]string{{"until", "64Mi", "await", simFolder + "/go-hungry", "eat", "512Mi"}}})
	l.waitLine("hungry", "c0", "await")
	l.order("go-hungry")
	_, err := l.kube.WaitPod(l.ctx, "default", "hungry", func(p *corev1.Pod, _ bool) (bool, error) {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0, nil
	})
	l.check(err)
	l.waitLine("hungry", "c0", "until")
	wantTaken(l.T, l.lines("hungry", "c0"), 3*gib)
}

// nodeOutOfMemory has the node's pods together run out of the host's memory, so that the
// kernel kills the largest of their processes. A pod beside it keeps what it has, and what
// the killed one had is free.
func nodeOutOfMemory(l *lab, _ int) {
	const before = "go-beside"
	l.create(labPod{name: "beside", requests: one(3 * gib), args: [][]string{{"alloc", "1Gi", "await", simFolder + "/" + before, "until", "64Mi"}}})
	l.waitLine("beside", "c0", "await")
	limit := filepath.Join("/sys/fs/cgroup/memory", filepath.Base(at("")), "kubepods", "memory.limit_in_bytes")
	old, err := os.ReadFile(limit)
	if err != nil {
		l.Skipf("the memory of all pods cannot be limited: %v", err)
	}
	l.check(os.WriteFile(limit, []byte(fmt.Sprint(512*mib)), 0))
	defer func() { l.check(os.WriteFile(limit, old, 0)) }()
	l.create(labPod{name: "eater", requests: one(8 * gib), args: [][]string{{"until", "64Mi", "eat", "2Gi", "await", simFolder + "/never"}}})
	_, err = l.kube.WaitPhase(l.ctx, "default", "eater", corev1.PodFailed)
	l.check(err)
	l.order(before)
	wantTaken(l.T, l.succeed("beside"), 2*gib)
	l.create(labPod{name: "after", requests: one(8 * gib), args: [][]string{{"until", "64Mi"}}})
	wantTaken(l.T, l.succeed("after"), 8*gib)
}

// churn starts pods and deletes some of them at any moment of their lives.
func churn(l *lab, round int) {
	r := rand.New(rand.NewPCG(*seedFlag, uint64(round)))
	var alive []string
	deleted := 0
	begin := time.Now()
	for i := range *churnFlag {
		name := fmt.Sprintf("churn-%d", i)
		bytes := int64(1+r.IntN(5)) * gib
		l.create(labPod{name: name, requests: one(bytes), args: [][]string{{"until", "64Mi", "hold", fmt.Sprintf("%.1f", r.Float64()), "alloc", fmt.Sprint(bytes)}}})
		alive = append(alive, name)
		switch {
		case i%40 == 20:
			l.agent.Kill()
			l.startAgent()
		case len(alive) > 8 && r.IntN(3) > 0:
			// Any of them: it may run, wait or have ended.
			k := r.IntN(len(alive))
			l.check(l.delete(alive[k]))
			alive = slices.Delete(alive, k, k+1)
			deleted++
		case len(alive) > 12:
			l.succeed(alive[0])
			alive = alive[1:]
		}
	}
	for _, name := range alive {
		lines := l.succeed(name)
		if !strings.Contains(strings.Join(lines, "\n"), "refused 2") {
			l.Errorf("pod %s got its whole claim once more: %q", name, lines)
		}
		l.event(name, "OutOfLease", "")
	}
	l.Logf("%d pods, %d of them deleted early, in %.0f s", *churnFlag, deleted, time.Since(begin).Seconds())
}
