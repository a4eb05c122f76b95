package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"gpumem/device"
	"gpumem/kube/claim"
)

// gather returns the metrics as a scrape has them.
func (r *rig) gather() string {
	r.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r.Agent)
	families, err := reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			r.t.Fatal(err)
		}
	}
	return b.String()
}

// fakeProc makes a folder like /proc with processes of containers.
func fakeProc(t *testing.T, list ...process) string {
	dir := t.TempDir()
	for _, p := range list {
		at := filepath.Join(dir, fmt.Sprint(p.pid))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"cgroup": "0::/kubepods/burstable/pod1/" + p.container + "\n",
			"status": fmt.Sprintf("Name:\tx\nNSpid:\t%d\t%d\nThreads:\t1\n", p.pid, p.inner),
			"stat":   fmt.Sprintf("%d (a ) b) S %s%d 0 0\n", p.pid, strings.Repeat("0 ", 18), p.start),
		} {
			if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestProcesses(t *testing.T) {
	a, b := idOf("a"), idOf("b")
	all := []process{{100, 1, 5000, a}, {101, 1, 6000, b}, {102, 7, 6000, b}}
	dir := fakeProc(t, append(all, process{103, 103, 1, "system.slice"})...)
	for _, c := range []struct {
		name string
		ids  map[string]bool
		want []process
	}{
		{"all containers", nil, all},
		{"one", map[string]bool{b: true}, all[1:]},
		{"none", map[string]bool{}, nil},
	} {
		if got := processes(dir, c.ids); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	like := fakeProc(t, process{200, 1, 7000, a}, process{201, 1, 7000, b})
	both, err := Host(fixed{{PID: 1, Start: 7000, Used: 9, Known: true}}, like).Status()
	if want := []device.Process{{PID: 200, Start: 7000}, {PID: 201, Start: 7000}}; err != nil || !reflect.DeepEqual(both.Processes, want) || both.Used != 9 {
		t.Errorf("processes like each other: %+v, %v", both, err)
	}
	st, err := Host(fixed{{PID: 1, Start: 6000, Used: 5}, {PID: 1, Start: 5000, Used: 6}, {PID: 1, Used: 7}, {PID: 999, Start: 1}}, dir).Status()
	var pids []int
	for _, p := range st.Processes {
		pids = append(pids, p.PID)
	}
	if err != nil || !reflect.DeepEqual(pids, []int{101, 100, 1, 999}) {
		t.Errorf("%v %v", pids, err)
	}
}

type fixed []device.Process

func (f fixed) Status() (device.Status, error) {
	st := device.Status{Info: device.Info{Total: 16 << 30}, Free: 16 << 30, Processes: append([]device.Process{}, f...)}
	for _, p := range f {
		st.Free, st.Used = st.Free-p.Used, st.Used+p.Used
	}
	return st, nil
}

func TestInstall(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "folder")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Install(from, to, "lib", true); err == nil || !strings.Contains(err.Error(), "libcuda.so.1") {
		t.Fatal(err)
	}
	write("libcuda.so.1", "one")
	if err := os.Symlink("libcuda.so.1", filepath.Join(from, "libcuda.so")); err != nil {
		t.Fatal(err)
	}
	first, err := Install(from, to, "lib", true)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Install(from, to, "lib", true)
	if err != nil || again != first {
		t.Fatalf("%s and %s, %v", first, again, err)
	}
	plain, err := Install(from, to, "sim", false)
	if err != nil {
		t.Fatal(err)
	}
	write("libcuda.so.1", "two")
	next, err := Install(from, to, "lib", true)
	if err != nil || next == first {
		t.Fatalf("%s, %v", next, err)
	}
	for path, want := range map[string]string{first + "/libcuda.so": "one", next + "/libcuda.so.1": "two", first + "/leased": "/etc/gpumem/lease.json\n", plain + "/leased": ""} {
		if got, _ := os.ReadFile(path); string(got) != want {
			t.Errorf("%s has %q", path, got)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(from, "out")); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(from, to, "lib", true); err == nil || !strings.Contains(err.Error(), "a link out of its folder") {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(from, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(next, mark)); err != nil { // a cleaner
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(to, ".new-1"), 0o700); err != nil { // of an agent that was killed
		t.Fatal(err)
	}
	if st, err := os.Stat(next); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
	for range 2 {
		if again, err := Install(from, to, "lib", true); err != nil || again != next+"-2" {
			t.Fatalf("%s, %v", again, err)
		}
	}
	if err := errors.Join(os.Remove(next+"-2/libcuda.so"), os.Symlink("libcuda.so.9", next+"-2/libcuda.so")); err != nil {
		t.Fatal(err)
	}
	if again, err := Install(from, to, "lib", true); err != nil || again != next+"-3" {
		t.Fatalf("with another link: %s, %v", again, err)
	}
	if list, _ := filepath.Glob(filepath.Join(to, ".new*")); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
}

func TestMakeOwn(t *testing.T) {
	dir := t.TempDir()
	link, open := filepath.Join(dir, "link"), filepath.Join(dir, "open")
	if err := errors.Join(os.Symlink("/tmp", link), os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	others := filepath.Join(dir, "others")
	if err := errors.Join(os.Mkdir(others, 0o755), os.Chown(others, 12345, -1)); err != nil {
		t.Log("a folder of another user was not tried: ", err)
		others = link
	}
	for path, ok := range map[string]bool{filepath.Join(dir, "new"): true, dir: true, link: false, open: false, others: false} {
		if err := MakeOwn(path); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestDriverIn(t *testing.T) {
	m := func(at string) *api.Mount { return &api.Mount{Destination: at} }
	for _, c := range []struct {
		mounts []*api.Mount
		want   string
	}{
		{nil, ""},
		{[]*api.Mount{m("/etc/hosts"), m("/usr/lib64/libcuda.so.580.82.07")}, "/usr/lib64/libcuda.so.580.82.07"},
		{[]*api.Mount{m(LibraryFolder + "/libcuda.so.1")}, ""},
	} {
		if got := driverIn(c.mounts); got != c.want {
			t.Errorf("%q", got)
		}
	}
}

func TestNames(t *testing.T) {
	of := func(n int) (list []member) {
		for i := range n {
			m := member{pod: podRef{"u", "ns", fmt.Sprintf("p%d", i)}}
			m.Name = "c"
			list = append(list, m)
		}
		return list
	}
	for n, want := range map[int]string{0: "no container", 1: "ns/p0/c", 4: "ns/p0/c, ns/p1/c, ns/p2/c, ns/p3/c", 9: "ns/p0/c, ns/p1/c, ns/p2/c, 6 more"} {
		if got := names(of(n)); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

// TestEventsAreQuiet: the same words about the same pod come once in five minutes.
func TestEventsAreQuiet(t *testing.T) {
	p, q := podRef{"u1", "ns", "p"}, podRef{"u2", "ns", "q"}
	recorder := record.NewFakeRecorder(100)
	now := time.Unix(1e9, 0)
	e := &events{recorder: recorder, now: func() time.Time { return now }, said: map[said]time.Time{}}
	for i, c := range []struct {
		after time.Duration
		pod   podRef
		err   string
		said  bool
	}{
		{0, p, "12 GiB of 16 GiB", true},
		{time.Second, p, "12 GiB of 16 GiB", false},
		{time.Second, p, "12 GiB of 15.5 GiB", false}, // other figures
		{time.Second, p, "no such claim", true},
		{time.Second, q, "12 GiB of 16 GiB", true},
		{quiet - 10*time.Second, p, "12 GiB of 16 GiB", false},
		{10 * time.Second, p, "12 GiB of 16 GiB", true},
		{time.Second, p, strings.Repeat("ü", 600), true},
		{time.Second, p, strings.Repeat("ü", 40) + strings.Repeat("x", 600), false}, // the beginning is the same
	} {
		now = now.Add(c.after)
		e.refused(c.pod, "main", errors.New(c.err))
		text := ""
		select {
		case text = <-recorder.Events:
		default:
		}
		text, ok := strings.CutPrefix(text, "Warning LeaseRefused ")
		if ok != c.said || len(text) > 1000 || !utf8.ValidString(text) {
			t.Errorf("%d: %q", i, text)
		}
	}
	if now = now.Add(2 * quiet); len(e.said) < 2 {
		t.Errorf("%d are known", len(e.said))
	}
	if e.ignored(p, "x", "x"); len(e.said) != 1 {
		t.Errorf("%d are known long after", len(e.said))
	}
}

// TestCondition: it is written when it changes, and again after it could not be.
func TestCondition(t *testing.T) {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	var before func() error // what the API server does first
	writes := 0
	client.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		writes++
		if before != nil {
			if err := before(); err != nil {
				return true, nil, err
			}
		}
		return false, nil, nil
	})
	c := &condition{client: client, node: node, log: slog.New(slog.DiscardHandler)}
	for _, w := range []struct {
		name   string
		do     func()
		writes int
	}{
		{"nothing to write", func() { c.write(ctx) }, 0},
		{"the first", func() { c.set(ctx, false, "NoRuntime", "x") }, 1},
		{"the same", func() { c.set(ctx, false, "NoRuntime", "other words"); c.write(ctx) }, 0},
		{"another reason", func() { c.set(ctx, false, "OldRuntime", "x") }, 1},
		{"another status", func() { c.set(ctx, true, "OldRuntime", "x") }, 1},
		{"no API server", func() {
			before = func() error { return errors.New("connection refused") }
			c.set(ctx, false, "NoRuntime", "x")
		}, 1},
		{"it is back", func() { before = nil; c.write(ctx); c.write(ctx) }, 1},
		{"another one meanwhile", func() {
			before = func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				before, c.want = nil, &corev1.NodeCondition{Type: ConditionType, Status: corev1.ConditionFalse, Reason: "OldRuntime"}
				return nil
			}
			c.set(ctx, true, "Enforced", "x")
			c.write(ctx)
		}, 2},
	} {
		writes = 0
		if w.do(); writes != w.writes {
			t.Errorf("%s: %d writes, want %d", w.name, writes, w.writes)
		}
	}
	n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil || len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Reason != "OldRuntime" || c.enforced() {
		t.Errorf("%+v, %v", n.Status.Conditions, err)
	}
}

// TestReady: an agent is ready while the runtime asks it, be that an old one.
func TestReady(t *testing.T) {
	r := two().rig(t)
	if err := r.Ready(); err == nil {
		t.Error("ready before the runtime has connected")
	}
	for reason, want := range map[string]bool{"Enforced": true, "OldRuntime": true, noRuntime: false, stopped: false} {
		r.status.set(t.Context(), reason == "Enforced", reason, "because")
		if err := r.Ready(); (err == nil) != want || err != nil && err.Error() != "because" {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

// TestCompare: a condition that another has changed is written again, and a node that was
// made anew ends the agent, which begins anew then.
func TestCompare(t *testing.T) {
	ctx := context.Background()
	type conditions = []corev1.NodeCondition
	named := func(s corev1.ConditionStatus, reason string) conditions {
		return conditions{{Type: "Ready"}, {Type: ConditionType, Status: s, Reason: reason}}
	}
	for _, c := range []struct {
		name   string
		now    conditions
		uid    types.UID
		away   bool
		want   error
		writes int
	}{
		{"as it is", named(corev1.ConditionTrue, "Enforced"), "1", false, nil, 0},
		{"another reason", named(corev1.ConditionTrue, "AgentStopped"), "1", false, nil, 1},
		{"another status", named(corev1.ConditionFalse, "Enforced"), "1", false, nil, 1},
		{"gone", nil, "1", false, nil, 1},
		{"made anew", nil, "2", false, errNewNode, 0},
		{"no answer", nil, "2", true, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "1"}})
			writes := 0
			client.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) { writes++; return false, nil, nil })
			s := &condition{client: client, node: node, log: slog.New(slog.DiscardHandler)}
			s.set(ctx, true, "Enforced", "x")
			if err := s.compare(ctx); err != nil {
				t.Fatal(err)
			}
			writes = 0
			if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: c.uid}, Status: corev1.NodeStatus{Conditions: c.now}}, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			client.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
				return c.away, nil, errors.New("connection refused")
			})
			if err := s.compare(ctx); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if s.write(ctx); writes != c.writes {
				t.Errorf("%d writes, want %d", writes, c.writes)
			}
		})
	}
	r := two().rig(t)
	r.cfg.Socket, r.status.uid = filepath.Join(t.TempDir(), "none"), "of the node before"
	if err := r.Run(ctx); !errors.Is(err, errNewNode) {
		t.Errorf("Run: %v", err)
	}
}

// TestDeviceOfAClaim: which GPU it is, and that a GPU that was exchanged is seen.
func TestDeviceOfAClaim(t *testing.T) {
	ctx := context.Background()
	c := &cluster{}
	c.slice()
	s := c.objects[0].(*resourcev1.ResourceSlice)
	yes := true
	s.Spec.Devices[1].Attributes["simulated"] = resourcev1.DeviceAttribute{BoolValue: &yes}
	s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: "gpu-2", Attributes: s.Spec.Devices[0].Attributes})
	r := c.rig(t)
	of := func(name string) (gpu, error) {
		return r.resolver.device(ctx, claim.Device{Driver: "gpu.nvidia.com", Pool: node, Name: name})
	}
	for name, want := range map[string]gpu{"gpu-0": {theGPU, 16 * gib, 9, false}, "gpu-1": {another, 16 * gib, 9, true}, "gpu-2": {}, "gpu-3": {}} {
		r.resolver.listed = time.Time{}
		if got, err := of(name); got != want || (err == nil) != (want != gpu{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	exchanged := s.DeepCopy()
	uuid := "GPU-new"
	exchanged.Spec.Devices = exchanged.Spec.Devices[:1]
	exchanged.Spec.Devices[0].Attributes["uuid"] = resourcev1.DeviceAttribute{StringValue: &uuid}
	if _, err := r.client.ResourceV1().ResourceSlices().Update(ctx, exchanged, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.resolver.listed = time.Now()
	if got, err := of("gpu-0"); err != nil || got.uuid != theGPU {
		t.Errorf("right after: %+v, %v", got, err)
	}
	r.resolver.listed = time.Now().Add(-2 * slicesKept)
	if got, err := of("gpu-0"); err != nil || got.uuid != uuid {
		t.Errorf("later: %+v, %v", got, err)
	}
	if got, err := of("gpu-1"); err == nil {
		t.Errorf("of a GPU that is gone: %+v", got)
	}
}

// TestPodsFileOfOthers: a file that does not say what it should is as good as none.
func TestPodsFileOfOthers(t *testing.T) {
	r := two().rig(t)
	p := podRef{uidOf("p"), "default", "p"}
	for text, known := range map[string]bool{
		`{"namespace":"default","name":"p","claims":null,"containers":{}}`: true,
		`{"namespace":"default","name":"p"}`:                               false,
		`{"namespace":"other","name":"p","containers":{}}`:                 false,
		`{"namespace":"default","name":"q","containers":{}}`:               false,
		`{`: false,
	} {
		clear(r.resolver.pods)
		if err := os.WriteFile(r.resolver.file(p.uid), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.resolver.known(p); (got != nil) != known {
			t.Errorf("%s: %+v", text, got)
		}
		if _, _, err := r.create("p", "main", "a"); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
