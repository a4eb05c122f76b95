package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"gpumem/device"
	"gpumem/node/ledger"
	"gpumem/node/share"
	"gpumem/size"
)

const (
	gib     = 1 << 30
	node    = "n1"
	theGPU  = "GPU-6f1c2a52-1111-4222-8333-0123456789ab"
	another = "GPU-6f1c2a52-1111-4222-8333-0123456789ac"
)

// cluster is what the API server has.
type cluster struct {
	objects []runtime.Object
}

// slice adds a node's GPUs gpu-0 and gpu-1 of 16 GiB, as NVIDIA's driver publishes them.
func (c *cluster) slice() {
	yes, capability := true, "9.0.0"
	var devices []resourcev1.Device
	for i, uuid := range []string{theGPU, another} {
		devices = append(devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: &yes,
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"uuid": {StringValue: &uuid}, "cudaComputeCapability": {VersionValue: &capability}},
			Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("16Gi")}}})
	}
	n := node
	c.objects = append(c.objects, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: resourcev1.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &n, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}, Devices: devices}})
}

// uidOf makes a UID of a name.
func uidOf(name string) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", sum(name)) }

func sum(name string) (n uint64) {
	for _, b := range []byte(name) {
		n = n*31 + uint64(b)
	}
	return n & 0xffffffffffff
}

// used is a device of a claim: REQUEST DEVICE MEMORY.
func used(text string) resourcev1.DeviceRequestAllocationResult {
	f := strings.Fields(text)
	share := types.UID(uidOf(text))
	r := resourcev1.DeviceRequestAllocationResult{Request: f[0], Driver: "gpu.nvidia.com", Pool: node, Device: f[1], ShareID: &share}
	if len(f) > 2 {
		r.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse(f[2])}
	}
	return r
}

// claim adds a claim that pods may use.
func (c *cluster) claim(name string, pods []string, devices ...string) {
	cl := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uidOf("claim " + name))}}
	for _, p := range pods {
		cl.Status.ReservedFor = append(cl.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(uidOf(p))})
	}
	cl.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range devices {
		cl.Status.Allocation.Devices.Results = append(cl.Status.Allocation.Devices.Results, used(d))
	}
	c.objects = append(c.objects, cl)
}

// pod adds a pod; containers is NAME=CLAIM or NAME=CLAIM/REQUEST, several claims with +.
func (c *cluster) pod(name string, containers ...string) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uidOf(name))}}
	for _, text := range containers {
		n, claims, _ := strings.Cut(text, "=")
		ct := corev1.Container{Name: n}
		for cl := range strings.SplitSeq(claims, "+") {
			if cl == "" {
				continue
			}
			cl, request, _ := strings.Cut(cl, "/")
			ct.Resources.Claims = append(ct.Resources.Claims, corev1.ResourceClaim{Name: cl, Request: request})
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: cl, ResourceClaimName: &cl})
		}
		p.Spec.Containers = append(p.Spec.Containers, ct)
	}
	c.objects = append(c.objects, p)
}

// rig is an agent with a cluster and without a runtime.
type rig struct {
	t      testing.TB
	client *fake.Clientset
	run    string
	proc   string
	gpus   []GPU
	away   atomic.Bool // the API server
	*Agent
}

func (c *cluster) rig(t testing.TB) *rig {
	r := &rig{t: t, client: fake.NewClientset(append(c.objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})...), run: filepath.Join(t.TempDir(), "run"), proc: "/proc"}
	r.restart()
	return r
}

// restart starts the agent anew with the files that there are.
func (r *rig) restart() {
	if r.Agent != nil {
		r.close()
	}
	a, err := New(Config{Client: r.client, Node: node, Drivers: []string{"gpu.nvidia.com"}, Run: r.run, Library: "/lib-1", Pool: "elastic", Proc: r.proc, GPUs: r.gpus, Log: slog.New(slog.NewTextHandler(r.t.Output(), nil))})
	if err != nil {
		r.t.Fatal(err)
	}
	r.Agent, a.named, a.runtime = a, true, "containerd v2.3.7"
	r.t.Cleanup(a.close)
}

// down has the API server answer nothing, until up.
func (r *rig) down() {
	r.away.Store(true)
	r.client.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
		return r.away.Load(), nil, errors.New("connection refused")
	})
}

func (r *rig) up() { r.away.Store(false) }

func sandbox(pod string) *api.PodSandbox {
	return &api.PodSandbox{Id: "box-" + pod, Name: pod, Namespace: "default", Uid: uidOf(pod)}
}

// container is one of a pod with the devices of claims, as NVIDIA's driver names them.
func container(pod, name string, claims ...string) *api.Container {
	c := &api.Container{Id: idOf(pod + "/" + name), PodSandboxId: "box-" + pod, Name: name, State: api.ContainerState_CONTAINER_RUNNING}
	for _, cl := range claims {
		c.CDIDevices = append(c.CDIDevices, &api.CDIDevice{Name: "k8s.gpu.nvidia.com/claim=" + uidOf("claim "+cl) + "-gpu-0"})
	}
	return c
}

func idOf(name string) string { return fmt.Sprintf("%064x", sum(name)) }

// create creates a container and returns its lease, nil if it has none.
func (r *rig) create(pod, name string, claims ...string) (*share.ContainerLease, *api.ContainerAdjustment, error) {
	r.t.Helper()
	adj, _, err := r.CreateContainer(context.Background(), sandbox(pod), container(pod, name, claims...))
	if err != nil || adj == nil {
		return nil, adj, err
	}
	for _, m := range adj.Mounts {
		if m.Destination == LeaseFile {
			l, err := share.ReadContainerLease(m.Source)
			if err != nil {
				r.t.Fatal(err)
			}
			return &l, adj, nil
		}
	}
	r.t.Fatal("no lease file is mounted")
	return nil, nil, nil
}

// event waits until there is an event with the reason and the text.
func (r *rig) event(reason, text string) {
	r.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		list, err := r.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("no event %s with %q among %+v", reason, text, list.Items)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestCreate(t *testing.T) {
	for _, c := range []struct {
		name      string
		make      func(*cluster)
		container string
		claims    []string
		bytes     []uint64 // of each GPU; nil: no lease
		err       string
	}{
		{"what was consumed", func(c *cluster) { c.claim("a", []string{"p"}, "gpu gpu-0 1280Mi"); c.pod("p", "main=a") }, "main", []string{"a"}, []uint64{1280 << 20}, ""},
		{"no claim", func(c *cluster) { c.pod("p", "main=") }, "main", nil, nil, ""},
		{"no memory counted", func(c *cluster) { c.claim("a", []string{"p"}, "gpu gpu-0"); c.pod("p", "main=a") }, "main", []string{"a"}, nil, ""},
		{"memory 0", func(c *cluster) { c.claim("a", []string{"p"}, "gpu gpu-0 0"); c.pod("p", "main=a") }, "main", []string{"a"}, nil, ""},
		{"two GPUs", func(c *cluster) {
			c.claim("a", []string{"p"}, "x gpu-0 2Gi", "y gpu-1 3Gi")
			c.pod("p", "main=a")
		}, "main", []string{"a"}, []uint64{2 * gib, 3 * gib}, ""},
		{"two shares of one GPU", func(c *cluster) {
			c.claim("a", []string{"p"}, "x gpu-0 1Gi", "y gpu-0 2Gi")
			c.pod("p", "main=a")
		}, "main", []string{"a"}, []uint64{3 * gib}, ""},
		{"one request of two", func(c *cluster) {
			c.claim("a", []string{"p"}, "x gpu-0 1Gi", "y gpu-0 2Gi")
			c.pod("p", "main=a/y")
		}, "main", []string{"a"}, []uint64{2 * gib}, ""},
		{"two claims", func(c *cluster) {
			c.claim("a", []string{"p"}, "x gpu-0 1Gi")
			c.claim("b", []string{"p"}, "x gpu-0 2Gi")
			c.pod("p", "main=a+b")
		}, "main", []string{"a", "b"}, []uint64{3 * gib}, ""},
		{"the whole GPU", func(c *cluster) { c.claim("a", []string{"p"}, "x gpu-0 16Gi"); c.pod("p", "main=a") }, "main", []string{"a"}, []uint64{16 * gib}, ""},
		{"more than the GPU", func(c *cluster) { c.claim("a", []string{"p"}, "x gpu-0 17Gi"); c.pod("p", "main=a") }, "main", []string{"a"}, nil, "17 GiB"},
		{"a device plugin's GPU", func(c *cluster) { c.pod("p", "main=") }, "main", []string{"of a device that looks like a claim's"}, nil, ""},
		{"no pod", func(c *cluster) {}, "main", []string{"a"}, nil, "cannot read pod default/p"},
		{"no claim there", func(c *cluster) { c.pod("p", "main=a") }, "main", []string{"a"}, nil, "cannot read claim default/a"},
		{"not reserved", func(c *cluster) { c.claim("a", []string{"other"}, "x gpu-0 1Gi"); c.pod("p", "main=a") }, "main", []string{"a"}, nil, "claim default/a is not reserved for pod default/p"},
		{"a device of another claim", func(c *cluster) { c.claim("a", []string{"p"}, "x gpu-0 1Gi"); c.pod("p", "main=a") }, "main", []string{"a", "b"}, nil, "which it does not name"},
		{"a device that no slice has", func(c *cluster) { c.claim("a", []string{"p"}, "x gpu-7 1Gi"); c.pod("p", "main=a") }, "main", []string{"a"}, nil, "no resource slice of node n1 has a device gpu.nvidia.com/n1/gpu-7"},
		{"too small for a context", func(c *cluster) { c.claim("a", []string{"p"}, "x gpu-0 16Mi"); c.pod("p", "main=a") }, "main", []string{"a"}, nil, "16 MiB of GPU memory is too little for a pool beside the 182 MiB that a process holds for its CUDA context and libraries: claim at least 184 MiB, with a unit such as Gi (claim default/a)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := &cluster{}
			cl.slice()
			c.make(cl)
			r := cl.rig(t)
			l, adj, err := r.create("p", c.container, c.claims...)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || adj != nil {
					t.Fatalf("%v, %v", adj, err)
				}
				r.event(LeaseRefused, c.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var bytes []uint64
			if l != nil {
				for _, g := range l.GPUs {
					bytes = append(bytes, g.Bytes)
				}
			}
			if !slices.Equal(bytes, c.bytes) {
				t.Fatalf("got %v", bytes)
			}
		})
	}
}

// two is a cluster in which the pods p and q have a claim each, and share one.
func two() *cluster {
	c := &cluster{}
	c.slice()
	c.claim("a", []string{"p"}, "x gpu-0 6Gi")
	c.claim("b", []string{"q"}, "x gpu-0 12Gi")
	c.claim("both", []string{"p", "q"}, "x gpu-1 4Gi")
	c.pod("p", "main=a", "side=both", "none=")
	c.pod("q", "main=b", "side=both")
	return c
}

func TestWhatAContainerGets(t *testing.T) {
	r := two().rig(t)
	ctr := container("p", "main", "a")
	ctr.Env = []string{"PATH=/bin", "XLA_PYTHON_CLIENT_MEM_FRACTION=.9", "GPUMEM_LIBCUDA=/driver/libcuda.so.1", "LD_LIBRARY_PATH=/own"}
	adj, _, err := r.CreateContainer(context.Background(), sandbox("p"), ctr)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, e := range adj.Env {
		env[e.Key] = e.Value
	}
	for name, want := range map[string]string{
		"GPUMEM_LEASE": LeaseFile, "LD_LIBRARY_PATH": LibraryFolder + ":/own", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	var at []string
	for _, m := range adj.Mounts {
		at = append(at, m.Destination+" "+strings.Join(m.Options, ","))
		if _, err := os.Stat(m.Source); m.Destination != LibraryFolder && err != nil {
			t.Error(err)
		}
	}
	if env["PATH"]+env["GPUMEM_LIBCUDA"] != "" {
		t.Error("a variable that is not changed is set")
	}
	want := []string{LeaseFile + " bind,nosuid,nodev,ro", LibraryFolder + " bind,nosuid,nodev,ro", "/run/gpumem/" + uidOf("x gpu-0 6Gi") + ".ledger bind,nosuid,nodev,rw,noexec"}
	if !slices.Equal(at, want) {
		t.Errorf("mounts %q", at)
	}
	l, err := share.ReadContainerLease(adj.Mounts[0].Source)
	if err != nil {
		t.Fatal(err)
	}
	if l.Claim != "default/a" || l.Pod != "p" || l.Container != "main" || len(l.GPUs) != 1 || l.GPUs[0].UUID != theGPU || l.GPUs[0].Total != 16*gib || l.GPUs[0].Ledger != strings.Fields(want[2])[0] {
		t.Errorf("%+v", l)
	}
	r.books.write()
	entries, err := r.books.registry.List(theGPU)
	if err != nil || len(entries) != 1 || entries[0].Bytes != 6*gib || len(entries[0].Containers) != 1 || entries[0].Containers[0].Pod != "p" {
		t.Errorf("registry: %+v, %v", entries, err)
	}
}

// TestEnvironmentOfTheDriver: the library finds the driver where the container has it, and
// the environment takes nothing from the container that is not the library's.
func TestEnvironmentOfTheDriver(t *testing.T) {
	for _, c := range []struct {
		name   string
		env    []string
		mounts []string
		want   map[string]string // "": not touched
	}{
		{"not known", nil, nil, map[string]string{"GPUMEM_LIBCUDA": "", "GPUMEM_LIBNVML": ""}},
		{"a container toolkit's", nil, []string{"/usr/lib64/libcuda.so.580.1"}, map[string]string{"GPUMEM_LIBCUDA": "GPUMEM_LIBCUDA=/usr/lib64/libcuda.so.580.1"}},
		{"the image's", []string{"GPUMEM_LIBCUDA=/d/libcuda.so.1"}, []string{"/usr/lib64/libcuda.so.580.1"}, map[string]string{"GPUMEM_LIBCUDA": ""}},
		{"the simulated one's", []string{"GPUMEM_LIBCUDA=/sim/libcuda.so.1", "GPUMEM_LIBNVML=/sim/libnvidia-ml.so.1"}, nil, map[string]string{"GPUMEM_LIBCUDA": "", "GPUMEM_LIBNVML": ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two().rig(t)
			ctr := container("p", "main", "a")
			ctr.Env = c.env
			for _, at := range c.mounts {
				ctr.Mounts = append(ctr.Mounts, &api.Mount{Destination: at})
			}
			adj, _, err := r.CreateContainer(context.Background(), sandbox("p"), ctr)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, e := range adj.Env {
				got[strings.TrimPrefix(e.Key, "-")] += e.Key + "=" + e.Value
			}
			for name, want := range c.want {
				if got[name] != want {
					t.Errorf("%s is %q, want %q", name, got[name], want)
				}
			}
		})
	}
}

// TestLeaseFileOfTwoClaims: each GPU has its shares and its ledger, and the file names each
// claim once.
func TestLeaseFileOfTwoClaims(t *testing.T) {
	c := &cluster{}
	c.slice()
	c.claim("a", []string{"p"}, "x gpu-0 1Gi")
	c.claim("b", []string{"p"}, "x gpu-1 2Gi", "y gpu-1 1Gi")
	c.pod("p", "main=a+b")
	r := c.rig(t)
	ctr := container("p", "main", "a", "b")
	adj, _, err := r.CreateContainer(context.Background(), sandbox("p"), ctr)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Stat(filepath.Dir(adj.Mounts[0].Source))
	if err != nil || dir.Mode().Perm() != 0o711 {
		t.Errorf("the folder of its files: %v, %v", dir, err)
	}
	l, err := share.ReadContainerLease(adj.Mounts[0].Source)
	if err != nil || len(l.GPUs) != 2 || l.Claim != "default/a,default/b" {
		t.Fatalf("%+v, %v", l, err)
	}
	outside := ""
	for _, e := range adj.Env {
		if e.Key == "GPUMEM_OUTSIDE" {
			outside = e.Value
		}
	}
	for i, want := range [][]string{{uidOf("x gpu-0 1Gi")}, {uidOf("x gpu-1 2Gi"), uidOf("y gpu-1 1Gi")}} {
		slices.Sort(want)
		if g := l.GPUs[i]; !slices.Equal(g.Shares, want) || g.Ledger != "/run/gpumem/"+want[0]+".ledger" || g.Outside == 0 || fmt.Sprint(g.Outside) != outside {
			t.Errorf("%+v", g)
		}
	}
}

func TestRefusedNamesTheHolders(t *testing.T) {
	r := two().rig(t)
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	_, _, err := r.create("q", "main", "b")
	if err == nil || !strings.Contains(err.Error(), "12 GiB") || !strings.Contains(err.Error(), "default/p") {
		t.Fatal(err)
	}
	r.event(LeaseRefused, "default/p")
	if text := r.gather(); !strings.Contains(text, "gpumem_containers_refused_total 1\n") {
		t.Errorf("metrics:\n%s", text)
	}
	// The first pod ends, and there is room.
	if err := r.StopPodSandbox(context.Background(), sandbox("p")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.create("q", "main", "b"); err != nil {
		t.Fatal(err)
	}
}

func TestOneShareForTwoPods(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	for _, p := range []string{"p", "q"} {
		if _, _, err := r.create(p, "side", "both"); err != nil {
			t.Fatal(err)
		}
	}
	var paths []string
	r.books.all(func(a *account) { paths = append(paths, a.path) })
	r.books.write()
	entries, err := r.books.registry.List(another)
	if err != nil || len(paths) != 1 || len(entries) != 1 || len(entries[0].Containers) != 2 {
		t.Fatalf("%v %+v %v", paths, entries, err)
	}
	for i, p := range []string{"p", "q"} {
		if err := r.StopPodSandbox(ctx, sandbox(p)); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(paths[0])
		if last := i == 1; last != os.IsNotExist(err) {
			t.Fatalf("after the end of %s: %v", p, err)
		}
	}
	if entries, err := r.books.registry.List(another); err != nil || len(entries) != 0 {
		t.Fatalf("%+v %v", entries, err)
	}
}

// TestValidate: what another plugin leaves of a container's lease.
func TestValidate(t *testing.T) {
	r := two().rig(t)
	_, whole, err := r.create("p", "main", "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.create("p", "none"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		c    *api.Container
		adj  *api.ContainerAdjustment
		err  string
	}{
		{"whole", container("p", "main", "a"), whole, ""},
		{"nothing", container("p", "main", "a"), nil, "nothing is mounted at /etc/gpumem/lease.json"},
		{"no library", container("p", "main", "a"), &api.ContainerAdjustment{Mounts: whole.Mounts[:1]}, "nothing is mounted at /opt/gpumem/lib"},
		{"no claim", container("p", "none"), nil, ""},
		{"never seen", container("p", "side", "both"), nil, "was not seen when it was created"},
	} {
		err := r.ValidateContainerAdjustment(context.Background(), &api.ValidateContainerAdjustmentRequest{Pod: sandbox("p"), Container: c.c, Adjust: c.adj})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A runtime that does not name devices.
	r.named = false
	err = r.ValidateContainerAdjustment(context.Background(), &api.ValidateContainerAdjustmentRequest{Pod: sandbox("p"), Container: container("p", "main")})
	if err == nil || !strings.Contains(err.Error(), "nothing is mounted at") {
		t.Error(err)
	}
}

// ending is a meter of a GPU whose memory a program holds at the first readings.
type ending struct {
	fixed
	readings *int
}

func (e ending) Status() (device.Status, error) {
	if *e.readings--; *e.readings >= 0 {
		return e.fixed.Status()
	}
	return fixed{}.Status()
}

// TestMemoryOfAProgramThatEnds: a container has its lease if the memory is there soon, and
// the refusal says what it lacks if it is not.
func TestMemoryOfAProgramThatEnds(t *testing.T) {
	for readings, ok := range map[int]bool{0: true, 3: true, 1 << 30: false} {
		r := two().rig(t)
		left := readings
		r.gpus = []GPU{{UUID: theGPU, Key: theGPU, Meter: ending{fixed{{PID: 1 << 30, Used: 15 * gib, Known: true}}, &left}}}
		r.restart()
		_, _, err := r.create("p", "main", "a")
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "6 GiB") {
			t.Errorf("%d readings: %v", readings, err)
		}
	}
}

// TestCrowd: more containers in one lease than its record names, whose memory is not counted
// beside the lease.
func TestCrowd(t *testing.T) {
	const pods = 60
	c := &cluster{}
	c.slice()
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("p%d", i))
		c.pod(names[i], "main=a")
	}
	c.pod("q", "main=b")
	c.claim("a", names, "x gpu-0 8Gi")
	c.claim("b", []string{"q"}, "y gpu-0 8Gi")
	r := c.rig(t)
	var list []process
	var reading fixed
	for i, n := range names {
		list = append(list, process{1<<30 + i, 1, 5, idOf(n + "/main")})
		reading = append(reading, device.Process{PID: 1<<30 + i, Used: 8 * gib / pods, Known: true})
	}
	r.proc, r.gpus = fakeProc(t, list...), []GPU{{UUID: theGPU, Key: theGPU, Meter: reading}}
	r.restart()
	for _, n := range names {
		if _, _, err := r.create(n, "main", "a"); err != nil {
			t.Fatal(err)
		}
	}
	r.books.write()
	if _, _, err := r.create("q", "main", "b"); err != nil {
		t.Fatal(err)
	}
}

func TestSharesMixed(t *testing.T) {
	c := &cluster{}
	c.slice()
	c.claim("a", []string{"p"}, "x gpu-0 1Gi", "y gpu-0 2Gi")
	c.pod("p", "one=a/x", "all=a")
	r := c.rig(t)
	if _, _, err := r.create("p", "one", "a"); err != nil {
		t.Fatal(err)
	}
	_, _, err := r.create("p", "all", "a")
	if err == nil || !strings.Contains(err.Error(), "is in use by default/p/one with other shares of that GPU") {
		t.Fatal(err)
	}
	if err := r.StopPodSandbox(context.Background(), sandbox("p")); err != nil {
		t.Fatal(err)
	}
	// While another container's is being opened.
	r.books.mu.Lock()
	done := r.books.move(uidOf("x gpu-0 1Gi"), []string{uidOf("x gpu-0 1Gi")})
	r.books.mu.Unlock()
	if _, _, err := r.create("p", "all", "a"); err == nil || !strings.Contains(err.Error(), "is in use by another container with other shares") {
		t.Fatal(err)
	}
	r.books.mu.Lock()
	done()
	r.books.mu.Unlock()
	if _, _, err := r.create("p", "all", "a"); err != nil {
		t.Fatal(err)
	}
}

// TestAPIServerAway: a container starts again, and a new agent takes up what runs, without
// the API server.
func TestAPIServerAway(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	before, _, err := r.create("p", "main", "a")
	if err != nil {
		t.Fatal(err)
	}
	r.down()
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal("a container that starts again:", err)
	}
	if _, _, err := r.create("q", "main", "b"); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Fatal("a container that nothing is known of:", err)
	}
	var path string
	r.books.all(func(a *account) { path = a.path })
	r.restart()
	if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p")}, []*api.Container{container("p", "main", "a")}); err != nil {
		t.Fatal(err)
	}
	r.takeUp()
	n := 0
	r.books.all(func(a *account) {
		if n++; a.path != path || a.Bytes != before.GPUs[0].Bytes || a.held == nil || len(a.members) != 1 {
			t.Errorf("%+v", a)
		}
	})
	if n != 1 {
		t.Fatalf("%d accounts", n)
	}
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal("after the restart:", err)
	}
}

// TestAuthor: what the author of a pod could set to get round the library keeps the
// container from being created.
func TestAuthor(t *testing.T) {
	for _, c := range []struct {
		name, err string
		env       []string
		mounts    []string
	}{
		{"nothing", "", []string{"A=1", "A=1", "LD_PRELOAD=/lib/libjemalloc.so", "LD_LIBRARY_PATH=/own"}, []string{"/opt/gpumem", "/run", "/etc", "/opt/gpumem/library"}},
		{"a variable twice", "the variable LD_LIBRARY_PATH 2 times", []string{"LD_LIBRARY_PATH=/a", "LD_LIBRARY_PATH=/b"}, nil},
		{"the driver to audit", "with a library of the driver", []string{"LD_AUDIT=/usr/lib64/libcuda.so.1"}, nil},
		{"its management first", "with a library of the driver", []string{"LD_PRELOAD=/usr/lib64/libnvidia-ml.so.1"}, nil},
		{"the driver first", "with a library of the driver", []string{"LD_PRELOAD=/x.so:/usr/lib64/libcuda.so.1"}, nil},
		{"on the library", "mounts something at /opt/gpumem/lib/libcuda.so.1", nil, []string{"/opt/gpumem/lib/libcuda.so.1"}},
		{"on the mark, written otherwise", "mounts something at opt/gpumem/x/../lib/leased", nil, []string{"opt/gpumem/x/../lib/leased"}},
		{"on the lease", "mounts something at /etc/gpumem", nil, []string{"/etc/gpumem"}},
		{"on a ledger", "where its ledgers are", nil, []string{"/run/gpumem/x.ledger"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two().rig(t)
			ctr := container("p", "main", "a")
			ctr.Env = c.env
			for _, at := range c.mounts {
				ctr.Mounts = append(ctr.Mounts, &api.Mount{Destination: at})
			}
			adj, _, err := r.CreateContainer(context.Background(), sandbox("p"), ctr)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatal(err)
			}
			for _, e := range adj.GetEnv() {
				if strings.HasPrefix(e.Key, "-") || e.Key == "A" {
					t.Errorf("changed: %v", e)
				}
			}
			n := 0
			r.books.all(func(*account) { n++ })
			if (n == 1) != (c.err == "") {
				t.Errorf("%d leases", n)
			}
		})
	}
}

// TestLostLedger: no second ledger is made while containers may count in the first.
func TestLostLedger(t *testing.T) {
	for _, c := range []struct {
		name    string
		harm    func(path string) error
		restart bool
		lost    bool
	}{
		{"removed", os.Remove, false, true},
		{"removed, and a new agent", os.Remove, true, true},
		{"its folder removed, and a new agent", func(path string) error { return os.RemoveAll(filepath.Dir(path)) }, true, true},
		{"emptied", func(path string) error { return os.Truncate(path, 0) }, false, true},
		{"damaged, and a new agent", func(path string) error { return os.WriteFile(path, []byte("x"), 0o666) }, true, true},
		{"made larger", func(path string) error { return os.Truncate(path, 1<<20) }, false, false},
		{"another limit", func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{0, 0, 0, 0, 3, 0, 0, 0}, 8)
			return errors.Join(err, f.Close())
		}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two().rig(t)
			ctx := context.Background()
			if _, _, err := r.create("p", "side", "both"); err != nil {
				t.Fatal(err)
			}
			var path string
			r.books.all(func(a *account) { path = a.path })
			if err := c.harm(path); err != nil {
				t.Fatal(err)
			}
			if c.restart {
				r.restart()
				if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p"), sandbox("q")}, []*api.Container{container("p", "side", "both")}); err != nil {
					t.Fatal(err)
				}
				r.takeUp()
			}
			_, _, err := r.create("q", "side", "both")
			if c.lost != (err != nil) || err != nil && !strings.Contains(err.Error(), "no other container can have the share before these have ended") {
				t.Fatal(err)
			}
			r.past()
			if c.lost {
				r.event(LeaseIgnored, "the ledger of share")
			} else {
				r.event(LeaseIgnored, "has written into the ledger of its claim: the limit of 4 GiB stays")
			}
			if entries, err := r.books.registry.List(another); err != nil || len(entries) != 1 || entries[0].Bytes != 4*gib {
				t.Errorf("registry: %+v, %v", entries, err)
			}
			// They end, and there is a new one.
			if err := r.StopPodSandbox(ctx, sandbox("p")); err != nil {
				t.Fatal(err)
			}
			if _, _, err := r.create("q", "side", "both"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSandboxes: the sandbox that counts is the one that the containers are in.
func TestSandboxes(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	accounts := func() (n int) {
		r.books.all(func(*account) { n++ })
		return n
	}
	old := sandbox("p")
	old.Id = "box-old"
	before := container("p", "main", "a")
	before.PodSandboxId = old.Id
	if _, _, err := r.CreateContainer(ctx, old, before); err != nil {
		t.Fatal(err)
	}
	if err := r.StopPodSandbox(ctx, old); err != nil || accounts() != 0 {
		t.Fatal(err, accounts())
	}
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.StopPodSandbox(ctx, old), r.RemovePodSandbox(ctx, old)); err != nil || accounts() != 1 {
		t.Fatal(err, accounts())
	}
	// A runtime that was restarted says nothing of sandboxes.
	now := container("p", "main", "a")
	if err := r.RemoveContainer(ctx, sandbox("p"), now); err != nil || accounts() != 0 {
		t.Fatal(err, accounts())
	}
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	if r.past(); accounts() != 1 {
		t.Fatal("the lease of a container without a process ended before it was stopped")
	}
	if _, err := r.StopContainer(ctx, sandbox("p"), now); err != nil {
		t.Fatal(err)
	}
	if r.past(); accounts() != 0 {
		t.Fatal("the lease of a container that has stopped goes on")
	}
}

// TestAPIHangs: the API server answers nothing, and other containers do not wait for it.
func TestAPIHangs(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	r.restart()
	asked, answer := make(chan bool, 10), make(chan bool)
	t.Cleanup(sync.OnceFunc(func() { close(answer) }))
	r.client.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
		asked <- true
		<-answer
		return true, nil, errors.New("timeout")
	})
	if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p"), sandbox("q")}, []*api.Container{container("q", "main", "b")}); err != nil {
		t.Fatal(err)
	}
	<-asked // of the condition, or of the container of q
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.create("q", "none"); err != nil {
		t.Fatal(err)
	}
	r.gather()
}

// TestReconnect: the runtime was away, and pods have ended meanwhile.
func TestReconnect(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	for _, p := range []string{"p", "q"} {
		if _, _, err := r.create(p, "side", "both"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("q")}, []*api.Container{container("q", "side", "both")}); err != nil {
		t.Fatal(err)
	}
	r.takeUp()
	r.books.all(func(a *account) {
		if a.UUID != another || len(a.boxes) != 1 || len(a.members) != 1 {
			t.Errorf("%+v", a)
		}
	})
	for _, dir := range []string{"shares", "pods", "containers"} {
		if left, _ := os.ReadDir(filepath.Join(r.run, dir)); len(left) != 1 {
			t.Errorf("%s: %v", dir, left)
		}
	}
}

// TestTakeUp: containers that run are never refused, and files of those that do not are
// removed.
func TestTakeUp(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	for _, p := range []string{"p", "q"} {
		if _, _, err := r.create(p, "side", "both"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	r.restart()
	reg, err := share.Open(r.run) // somebody takes all in the gap
	if err != nil {
		t.Fatal(err)
	}
	taken, err := reg.Acquire(ctx, share.Request{Device: theGPU, Bytes: 16 * gib, Total: 16 * gib, Settled: true})
	if err != nil {
		t.Fatal(err)
	}
	stopped := container("q", "side", "both")
	stopped.State = api.ContainerState_CONTAINER_STOPPED
	if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p"), sandbox("q")}, []*api.Container{container("p", "main", "a"), stopped}); err != nil {
		t.Fatal(err)
	}
	r.takeUp()
	n := 0
	r.books.all(func(a *account) {
		if n++; a.UUID != theGPU || a.held != nil {
			t.Errorf("%+v", a)
		}
	})
	if left, _ := os.ReadDir(filepath.Join(r.run, "shares")); n != 1 || len(left) != 1 {
		t.Errorf("%d accounts, files %v", n, left)
	}
	if err := taken[0].Close(); err != nil {
		t.Fatal(err)
	}
	r.books.again(ctx)
	r.books.all(func(a *account) {
		if a.held == nil {
			t.Error("its lease was not taken again")
		}
	})
}

func TestRunsWithoutLease(t *testing.T) {
	r := two().rig(t)
	if _, err := r.Synchronize(context.Background(), []*api.PodSandbox{sandbox("p")}, []*api.Container{container("p", "main", "a"), container("p", "none")}); err != nil {
		t.Fatal(err)
	}
	r.takeUp()
	r.event(LeaseIgnored, "container main was started while the agent was away")
	if n := r.counts.ignored.Load(); n != 1 {
		t.Errorf("%d containers", n)
	}
}

// TestOutOfLease: a program that is refused is told of in the pod's events.
func TestOutOfLease(t *testing.T) {
	r := two().rig(t)
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	var path string
	r.books.all(func(a *account) { path = a.path })
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := l.Join()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Take(ledger.Held, 5*gib); err != nil {
		t.Fatal(err)
	}
	if err := m.Take(ledger.Held, 2*gib); !errors.Is(err, ledger.ErrFull) {
		t.Fatal(err)
	}
	if r.look(""); r.counts.outOfLease.Load() != 0 {
		t.Error("told of a request that the program may not have seen refused")
	}
	m.Refuse(2 * gib)
	r.look("")
	r.event(OutOfLease, "default/p/main: a request for 2 GiB of GPU memory was refused: the claim's 6 GiB hold 5 GiB of 1 process(es). Claim at least 7 GiB")
	if n := r.counts.outOfLease.Load(); n != 1 {
		t.Errorf("%d", n)
	}
	families := r.gather()
	for _, want := range []string{
		`gpumem_lease_bytes{container="main",namespace="default",pod="p",share="` + uidOf("x gpu-0 6Gi") + `",uuid="` + theGPU + `"} 6.442450944e+09`,
		`gpumem_share_held_bytes{share="` + uidOf("x gpu-0 6Gi") + `",uuid="` + theGPU + `"} 5.36870912e+09`,
		`gpumem_share_refused_requests_total{share="` + uidOf("x gpu-0 6Gi") + `",uuid="` + theGPU + `"} 1`,
		`gpumem_gpu_memory_bytes{uuid="` + theGPU + `"} 1.7179869184e+10`,
		`gpumem_gpu_leased_bytes{uuid="` + theGPU + `"} 6.442450944e+09`,
		"gpumem_containers_leased_total 1",
		"gpumem_containers_refused_total 0",
		"gpumem_containers_without_lease_total 0",
		"gpumem_programs_past_library_total 0",
		"gpumem_enforced 0",
	} {
		if !strings.Contains(families, want+"\n") {
			t.Errorf("no %s in\n%s", want, families)
		}
	}
}

// TestMetricsOfProcessesLikeEachOther: the first processes of two pods that started within
// one tick of the clock have one number and one start. Each is its own container's.
func TestMetricsOfProcessesLikeEachOther(t *testing.T) {
	c := &cluster{}
	c.slice()
	c.claim("a", []string{"p"}, "x gpu-0 6Gi")
	c.claim("b", []string{"q"}, "x gpu-0 8Gi")
	c.pod("p", "main=a")
	c.pod("q", "main=b")
	r := c.rig(t)
	for pod, claim := range map[string]string{"p": "a", "q": "b"} {
		if _, _, err := r.create(pod, "main", claim); err != nil {
			t.Fatal(err)
		}
	}
	var start uint64
	r.books.all(func(a *account) {
		l, err := ledger.Open(a.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		m, err := l.Join()
		if err == nil {
			err = m.Take(ledger.Held, a.Bytes/2)
		}
		if err != nil {
			t.Fatal(err)
		}
		start = l.Members()[0].Start
	})
	r.cfg.Proc = fakeProc(t, process{1 << 30, os.Getpid(), start, idOf("p/main")}, process{1<<30 + 1, os.Getpid(), start, idOf("q/main")})
	families := r.gather()
	for _, want := range []string{
		`gpumem_held_bytes{container="main",namespace="default",pod="p",share="` + uidOf("x gpu-0 6Gi") + `",uuid="` + theGPU + `"} 3.221225472e+09`,
		`gpumem_held_bytes{container="main",namespace="default",pod="q",share="` + uidOf("x gpu-0 8Gi") + `",uuid="` + theGPU + `"} 4.294967296e+09`,
	} {
		if !strings.Contains(families, want+"\n") {
			t.Errorf("no %s in\n%s", want, families)
		}
	}
}

// TestPast: programs that use a GPU without the library are found, and reported.
func TestPast(t *testing.T) {
	r := two().rig(t)
	id := idOf("p/main")
	r.proc = fakeProc(t, process{1 << 30, 7, 5, id}, process{1<<30 + 1, 8, 5, id}, process{1<<30 + 2, 9, 5, id}, process{1<<30 + 3, 10, 5, id})
	for i, maps := range []string{
		"1-2 r-xp 0 0:0 1 /usr/bin/python\n1-2 r-xp 0 0:0 1 /usr/lib64/libcuda.so.580.1\n1-2 r-xp 0 0:0 1 /opt/gpumem/lib/libcuda.so.1\n",
		"1-2 r-xp 0 0:0 1 /usr/bin/python\n1-2 r-xp 0 0:0 1 /usr/lib64/libcuda.so.580.1\n",
		"1-2 r--p 0 0:0 1 /usr/lib64/libcuda.so.580.1\n",
		"",
	} {
		dir := filepath.Join(r.proc, fmt.Sprint(1<<30+i))
		if err := errors.Join(os.WriteFile(dir+"/maps", []byte(maps), 0o600), os.Mkdir(dir+"/fd", 0o700), os.Symlink("/dev/null", dir+"/fd/0")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/nvidia-uvm", filepath.Join(r.proc, fmt.Sprint(1<<30+3), "fd", "3")); err != nil {
		t.Fatal(err)
	}
	r.gpus = []GPU{{UUID: theGPU, Key: theGPU, Meter: fixed{{PID: 1 << 30, Used: 7 * gib}}}}
	r.restart()
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	r.past()
	if n := r.counts.past.Load(); n != 0 {
		t.Errorf("%d programs that are not there were ended", n)
	}
	r.cfg.KeepPast = true
	r.past()
	r.event(LeaseIgnored, "container main: process 8 has loaded /usr/lib64/libcuda.so.580.1, and not the library in /opt/gpumem/lib: nothing limits it")
	r.event(LeaseIgnored, "process 10 has opened /dev/nvidia-uvm")
	r.event(LeaseIgnored, "default/p/main: 7 GiB of GPU memory are in use, and the claim has 6 GiB")
	if n := r.counts.past.Load(); n != 2 {
		t.Errorf("%d programs", n)
	}
}

// TestEnd: a process is ended, and one that has its number later is not.
func TestEnd(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip("no program sleep to end: ", err)
	}
	p := process{cmd.Process.Pid, cmd.Process.Pid, 77, idOf("x")}
	later := p
	later.start++
	if err := later.end(fakeProc(t, p)); !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
	if err := p.end(fakeProc(t, p)); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Error(err)
	}
}

// TestCosts: what a container start asks of the API server, and what the agent writes when
// nothing changes.
func TestCosts(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	r.status.set(ctx, true, "Enforced", "x")
	r.client.ClearActions()
	if _, _, err := r.create("p", "none"); err != nil {
		t.Fatal(err)
	}
	if n := len(r.client.Actions()); n != 0 {
		t.Errorf("a container without a claim: %v", r.client.Actions())
	}
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	if n := len(r.client.Actions()); n != 3 { // pod, claim, and the slices once
		t.Errorf("a container's first start: %v", r.client.Actions())
	}
	r.client.ClearActions()
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.look("")
		r.past()
		r.takeUp()
		r.books.again(ctx)
		r.status.set(ctx, true, "Enforced", "x")
	}
	if n := len(r.client.Actions()); n != 0 {
		t.Errorf("nothing has changed: %v", r.client.Actions())
	}
}

// TestOutOfLeaseSaysWhatHelps: how much a claim would have to have.
func TestOutOfLeaseSaysWhatHelps(t *testing.T) {
	for _, c := range []struct {
		name        string
		holds, asks uint64
		want        string
	}{
		{"nothing held", 0, 2 * gib, "the claim's 6 GiB hold nothing any more. Claim at least " + size.Format(6*gib+1) + ", "},
		{"the rest and more", 5 * gib, 2 * gib, "the claim's 6 GiB hold 5 GiB of 1 process(es). Claim at least 7 GiB, "},
		{"freed meanwhile", 1 * gib, 2 * gib, "the claim's 6 GiB hold 1 GiB of 1 process(es). Claim at least " + size.Format(6*gib+1) + ", "},
		{"all of the claim", 1 * gib, 6 * gib, "Claim at least 7 GiB, "},
		{"more than the claim", 1 * gib, 8 * gib, "The request alone is more than the claim: claim at least 8 GiB, "},
		{"more than the GPU", 6 * gib, 11 * gib, "With the request that is more than the GPU's 16 GiB: make the program use less, or take a larger GPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two().rig(t)
			if _, _, err := r.create("p", "main", "a"); err != nil {
				t.Fatal(err)
			}
			r.books.all(func(a *account) {
				if c.holds > 0 {
					if err := r.member(a).Take(ledger.Held, c.holds); err != nil {
						t.Fatal(err)
					}
				}
				if got := outOfLease(a, c.asks); !strings.Contains(got, c.want) {
					t.Errorf("%s", got)
				}
			})
		})
	}
}

// member joins the ledger of an account as a program of one of its containers.
func (r *rig) member(a *account) *ledger.Member {
	r.t.Helper()
	l, err := ledger.Open(a.path)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := l.Join()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = errors.Join(m.Leave(), l.Close()) })
	return m
}

// TestMetricsOfContainers: what each container holds and uses, by the processes that it has
// in the ledger.
func TestMetricsOfContainers(t *testing.T) {
	r := two().rig(t)
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	start, err := strconv.ParseUint(strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	r.proc = fakeProc(t, process{1 << 30, os.Getpid(), start, idOf("p/side")})
	r.restart()
	for _, p := range []string{"p", "q"} {
		if _, _, err := r.create(p, "side", "both"); err != nil {
			t.Fatal(err)
		}
	}
	r.books.all(func(a *account) {
		m := r.member(a)
		if err := errors.Join(m.Take(ledger.Held, 2*gib), m.Give(ledger.Held, gib)); err != nil {
			t.Error(err)
		}
		m.Publish(ledger.Figures{InUse: gib / 2, PeakInUse: gib})
	})
	r.status.set(context.Background(), true, "Enforced", "x")
	r.counts.past.Add(3)
	text := r.gather()
	of := func(pod string) string {
		return `{container="side",namespace="default",pod="` + pod + `",share="` + uidOf("x gpu-1 4Gi") + `",uuid="` + another + `"} `
	}
	for _, want := range []string{
		"gpumem_held_bytes" + of("p") + "1.073741824e+09", "gpumem_held_bytes" + of("q") + "0",
		"gpumem_in_use_bytes" + of("p") + "5.36870912e+08", "gpumem_in_use_bytes" + of("q") + "0",
		"gpumem_peak_held_bytes" + of("p") + "2.147483648e+09", "gpumem_processes" + of("p") + "1",
		"gpumem_lease_bytes" + of("q") + "4.294967296e+09",
		"gpumem_enforced 1", "gpumem_programs_past_library_total 3", "gpumem_containers_without_lease_total 0",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// TestOverLease: what a GPU says that a lease's processes use together, and of no others.
func TestOverLease(t *testing.T) {
	for _, c := range []struct {
		name string
		used fixed
		over bool
	}{
		{"all of it", fixed{{PID: 1, Used: 3 * gib}, {PID: 2, Used: 3 * gib}}, false},
		{"a byte more", fixed{{PID: 1, Used: 3 * gib}, {PID: 2, Used: 3*gib + 1}}, true},
		{"of others", fixed{{PID: 1, Used: 3 * gib}, {PID: 3, Used: 4 * gib}, {PID: 4, Used: 4 * gib}}, false},
	} {
		r := two().rig(t)
		if _, _, err := r.create("p", "main", "a"); err != nil {
			t.Fatal(err)
		}
		r.cfg.GPUs = []GPU{{UUID: theGPU, Key: theGPU, Meter: c.used}}
		r.overLease([]process{{1, 1, 5, idOf("p/main")}, {2, 2, 5, idOf("p/main")}, {3, 1, 5, idOf("q/main")}})
		r.events.mu.Lock()
		n := len(r.events.said)
		r.events.mu.Unlock()
		if (n == 1) != c.over {
			t.Errorf("%s: %d events", c.name, n)
		}
	}
}

// TestLeftLedger: a file that an agent has left half-made is made anew once all that runs is
// known, and never before; nor is another lease's used.
func TestLeftLedger(t *testing.T) {
	for _, c := range []struct {
		name, err string
		swept     bool
		make      func(path string) error
	}{
		{"half-made", "", true, func(path string) error { return os.WriteFile(path, nil, 0o666) }},
		{"half-made, of who knows whom", "ledger", false, func(path string) error { return os.WriteFile(path, nil, 0o666) }},
		{"another GPU's", "is of another lease", false, func(path string) error {
			return ledger.Create(path, ledger.Header{UUID: another, Limit: 6 * gib, Total: 16 * gib, Shared: true})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two().rig(t)
			r.books.swept = c.swept
			dir := filepath.Join(r.books.dir, uidOf("x gpu-0 6Gi"))
			if err := errors.Join(os.Mkdir(dir, 0o711), c.make(filepath.Join(dir, "ledger"))); err != nil {
				t.Fatal(err)
			}
			_, _, err := r.create("p", "main", "a")
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Error(err)
			}
			if entries, err := r.books.registry.List(theGPU); err != nil || (len(entries) == 1) != (c.err == "") {
				t.Errorf("registry: %+v, %v", entries, err)
			}
		})
	}
}

// TestWholeGPU: a claim of all of a GPU has all but what the driver keeps for itself.
func TestWholeGPU(t *testing.T) {
	c := &cluster{}
	c.slice()
	c.claim("a", []string{"p"}, "x gpu-0 16Gi")
	c.pod("p", "main=a")
	r := c.rig(t)
	r.gpus = []GPU{{UUID: theGPU, Key: theGPU, Meter: reserving(gib / 2)}}
	r.restart()
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
}

// reserving is a meter of a GPU of which the driver keeps some bytes.
type reserving uint64

func (n reserving) Status() (device.Status, error) {
	return device.Status{Info: device.Info{Total: 16 * gib}, Reserved: uint64(n), Free: 16*gib - uint64(n)}, nil
}

// TestRunFolderIsForAllUsers: as gpumem run makes it, whoever has made it.
func TestRunFolderIsForAllUsers(t *testing.T) {
	r := two().rig(t)
	if err := os.Chmod(r.run, 0o755); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if st, err := os.Stat(r.run); err != nil || st.Mode()&(os.ModeSticky|os.ModePerm) != 0o777|os.ModeSticky {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// TestLastWords: a request that is refused right before the end of a container or of its
// pod is reported, and by the next agent no second time.
func TestLastWords(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name string
		end  func(*rig) error
		want uint64
	}{
		{"its container stops", func(r *rig) error {
			_, err := r.StopContainer(ctx, sandbox("p"), container("p", "main", "a"))
			return err
		}, 1},
		{"its container is removed", func(r *rig) error {
			return r.RemoveContainer(ctx, sandbox("p"), container("p", "main", "a"))
		}, 1},
		{"its pod ends", func(r *rig) error { return r.StopPodSandbox(ctx, sandbox("p")) }, 1},
		{"another pod ends", func(r *rig) error { return r.StopPodSandbox(ctx, sandbox("q")) }, 0},
		{"looked at twice", func(r *rig) error { r.look(""); r.look(""); return nil }, 1},
		{"of the agent before", func(r *rig) error {
			r.restart()
			_, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p")}, []*api.Container{container("p", "main", "a")})
			r.takeUp()
			r.look("")
			return err
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two().rig(t)
			if _, _, err := r.create("p", "main", "a"); err != nil {
				t.Fatal(err)
			}
			r.books.all(func(a *account) { r.member(a).Refuse(2 * gib) })
			if err := c.end(r); err != nil {
				t.Fatal(err)
			}
			if n := r.counts.outOfLease.Load(); n != c.want {
				t.Errorf("%d refusals are reported, want %d", n, c.want)
			}
		})
	}
}

// accounts returns how many leases there are.
func (r *rig) accounts() (n int) {
	r.books.all(func(*account) { n++ })
	return n
}

// TestRefusedLeavesNothing: a container that has one of its two leases and cannot have the
// other keeps neither.
func TestRefusedLeavesNothing(t *testing.T) {
	c := &cluster{}
	c.slice()
	c.claim("a", []string{"p"}, "x gpu-0 1Gi", "y gpu-1 17Gi")
	c.pod("p", "main=a")
	r := c.rig(t)
	if _, _, err := r.create("p", "main", "a"); err == nil {
		t.Fatal("a lease of 17 of 16 GiB")
	}
	entries, err := r.books.registry.List(theGPU)
	if err != nil || len(entries) != 0 || r.accounts() != 0 {
		t.Errorf("%d accounts, registry %+v, %v", r.accounts(), entries, err)
	}
}

// TestTakeUpByState: what has a lease is what may hold memory.
func TestTakeUpByState(t *testing.T) {
	for state, want := range map[api.ContainerState]int{
		api.ContainerState_CONTAINER_CREATED: 1, api.ContainerState_CONTAINER_RUNNING: 1, api.ContainerState_CONTAINER_PAUSED: 1,
		api.ContainerState_CONTAINER_STOPPED: 0, api.ContainerState_CONTAINER_UNKNOWN: 0,
	} {
		r := two().rig(t)
		if _, _, err := r.create("p", "main", "a"); err != nil {
			t.Fatal(err)
		}
		r.restart()
		ctr := container("p", "main", "a")
		ctr.State = state
		if _, err := r.Synchronize(context.Background(), []*api.PodSandbox{sandbox("p")}, []*api.Container{ctr}); err != nil {
			t.Fatal(err)
		}
		r.takeUp()
		if _, tookUp, _ := r.state(); r.accounts() != want || !tookUp {
			t.Errorf("%v: %d leases, want %d", state, r.accounts(), want)
		}
	}
}

// TestTakeUpWithoutAPIServer: what is not known is asked for again, and no file is removed
// before.
func TestTakeUpWithoutAPIServer(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	var path string
	r.books.all(func(a *account) { path = a.path })
	if err := r.resolver.forget(uidOf("p")); err != nil { // its file is lost
		t.Fatal(err)
	}
	r.restart()
	r.down()
	for range 2 { // the second is of a runtime that was restarted
		if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p")}, []*api.Container{container("p", "main", "a")}); err != nil {
			t.Fatal(err)
		}
		r.takeUp()
		pending, tookUp, swept := r.state()
		if _, err := os.Stat(path); err != nil || tookUp || swept || pending != 1 {
			t.Fatalf("%v, took up %t, swept %t, %d pending", err, tookUp, swept, pending)
		}
	}
	r.up()
	r.takeUp()
	if _, tookUp, swept := r.state(); r.accounts() != 1 || !tookUp || !swept {
		t.Fatalf("%d leases, took up %t, swept %t", r.accounts(), tookUp, swept)
	}
	r.books.all(func(a *account) {
		if a.path != path || a.lost != nil {
			t.Errorf("%+v", a)
		}
	})
	r.still()
	if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("q")}, []*api.Container{container("q", "main", "b")}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Synchronize(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if pending, tookUp, swept := r.state(); pending != 0 || tookUp || swept {
		t.Errorf("%d pending after their end, took up %t, swept %t", pending, tookUp, swept)
	}
}

// state returns how many containers are not taken up yet, and whether all were.
func (r *rig) state() (pending int, tookUp, swept bool) {
	r.mu.Lock()
	pending, tookUp = len(r.pending), r.tookUp
	r.mu.Unlock()
	r.books.mu.Lock()
	defer r.books.mu.Unlock()
	return pending, tookUp, r.books.swept
}

// still has no container be taken up from now on, as before a runtime has connected.
func (r *rig) still() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runtime = ""
}

// TestTakeUpMeanwhile: a container is removed, or the runtime connects anew, while the API
// server is asked about it.
func TestTakeUpMeanwhile(t *testing.T) {
	ctx := context.Background()
	ctr := container("p", "main", "a")
	ctr.Mounts = []*api.Mount{{Destination: LeaseFile}} // it was given its lease
	for _, c := range []struct {
		name              string
		do                func(*rig) error
		accounts, pending int
	}{
		{"it is removed", func(r *rig) error { return r.RemoveContainer(ctx, sandbox("p"), container("p", "main", "a")) }, 0, 0},
		{"connected anew", func(r *rig) error {
			r.still()
			_, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p")}, []*api.Container{ctr})
			return err
		}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := two().rig(t)
			if _, err := r.Synchronize(ctx, []*api.PodSandbox{sandbox("p")}, []*api.Container{ctr}); err != nil {
				t.Fatal(err)
			}
			ledgerOf := filepath.Join(r.books.dir, uidOf("x gpu-0 6Gi"))
			header := ledger.Header{UUID: theGPU, Limit: 6 * gib, Total: 16 * gib, Shared: true}
			if err := errors.Join(os.Mkdir(ledgerOf, 0o711), ledger.Create(filepath.Join(ledgerOf, "ledger"), header)); err != nil {
				t.Fatal(err)
			}
			once := false
			r.client.PrependReactor("get", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
				if !once {
					once = true
					if err := c.do(r); err != nil {
						t.Error(err)
					}
				}
				return false, nil, nil
			})
			r.takeUp()
			if pending, tookUp, _ := r.state(); r.accounts() != c.accounts || pending != c.pending || tookUp != (pending == 0) {
				t.Errorf("%d leases, %d pending, took up %t", r.accounts(), pending, tookUp)
			}
		})
	}
}

// TestFilesGo: with the container its folder, and with the last sandbox of its pod what is
// known of that.
func TestFilesGo(t *testing.T) {
	r := two().rig(t)
	ctx := context.Background()
	now, old := sandbox("p"), sandbox("p")
	old.Id = "box-old"
	for _, p := range []*api.PodSandbox{old, now} {
		if err := r.RunPodSandbox(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.create("p", "main", "a"); err != nil {
		t.Fatal(err)
	}
	left := func(dir string) int {
		list, err := os.ReadDir(filepath.Join(r.run, dir))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for _, c := range []struct {
		name                   string
		do                     func() error
		containers, pods, said int
	}{
		{"created", func() error { return nil }, 1, 1, 1},
		{"the container is removed", func() error { return r.RemoveContainer(ctx, now, container("p", "main", "a")) }, 0, 1, 1},
		{"the old sandbox is removed", func() error { return r.RemovePodSandbox(ctx, old) }, 0, 1, 1},
		{"the last sandbox is removed", func() error { return r.RemovePodSandbox(ctx, now) }, 0, 0, 0},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if left("containers") != c.containers || left("pods") != c.pods || len(r.resolver.pods) != c.said {
			t.Errorf("%s: %d folders of containers, %d files of pods, %d pods known", c.name, left("containers"), left("pods"), len(r.resolver.pods))
		}
	}
}

// TestMadeAnew: another pod under the same name, a container of the same name in the same
// pod, and a share with another number of bytes.
func TestMadeAnew(t *testing.T) {
	ctx := context.Background()
	t.Run("pod", func(t *testing.T) {
		r := two().rig(t)
		box := sandbox("p")
		box.Uid = uidOf("p of before")
		if _, _, err := r.CreateContainer(ctx, box, container("p", "main", "a")); err == nil || !strings.Contains(err.Error(), "is another one now") {
			t.Error(err)
		}
	})
	t.Run("container", func(t *testing.T) {
		r := two().rig(t)
		for _, id := range []string{"first", "second"} {
			ctr := container("p", "main", "a")
			ctr.Id = idOf(id)
			if _, _, err := r.CreateContainer(ctx, sandbox("p"), ctr); err != nil {
				t.Fatal(err)
			}
		}
		r.books.all(func(a *account) {
			if _, ok := a.members[idOf("second")]; !ok || len(a.members) != 1 {
				t.Errorf("%+v", a.members)
			}
		})
	})
	t.Run("share", func(t *testing.T) {
		r := two().rig(t)
		if _, _, err := r.create("p", "side", "both"); err != nil {
			t.Fatal(err)
		}
		r.books.all(func(a *account) { a.Bytes = 3 * gib })
		if _, _, err := r.create("q", "side", "both"); err == nil || !strings.Contains(err.Error(), "when its first container started") {
			t.Error(err)
		}
	})
}

// TestOneOfTwoContainersGoes: the sandbox has the lease while another container of it does.
func TestOneOfTwoContainersGoes(t *testing.T) {
	c := &cluster{}
	c.slice()
	c.claim("a", []string{"p", "q"}, "x gpu-0 1Gi")
	c.pod("p", "one=a", "two=a")
	c.pod("q", "main=a")
	r := c.rig(t)
	for _, name := range []string{"p/one", "p/two", "q/main"} {
		pod, ctr, _ := strings.Cut(name, "/")
		if _, _, err := r.create(pod, ctr, "a"); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []struct{ name, boxes, use string }{
		{"p/one", "box-p box-q", "p/two q/main"}, {"p/two", "box-q", "q/main"},
	} {
		pod, ctr, _ := strings.Cut(w.name, "/")
		if err := r.RemoveContainer(context.Background(), sandbox(pod), container(pod, ctr, "a")); err != nil {
			t.Fatal(err)
		}
		r.books.write()
		entries, err := r.books.registry.List(theGPU)
		if err != nil || len(entries) != 1 {
			t.Fatalf("%+v, %v", entries, err)
		}
		var use []string
		for _, e := range entries[0].Containers {
			use = append(use, e.Pod+"/"+e.Name)
		}
		r.books.all(func(a *account) {
			if boxes := strings.Join(slices.Sorted(maps.Keys(a.boxes)), " "); boxes != w.boxes || strings.Join(use, " ") != w.use {
				t.Errorf("after the end of %s: sandboxes %s, containers %v", w.name, boxes, use)
			}
		})
	}
}

func TestTooOld(t *testing.T) {
	for _, c := range []struct{ runtime, version, want string }{
		{"containerd", "v2.3.7", ""},
		{"containerd", "2.4.0", ""},
		{"containerd", "v2.2.1", "does not pass the names"},
		{"containerd", "v2.1.5", "fails open"},
		{"containerd", "1.7.27", "fails open"},
		{"containerd", "unknown", ""},
		{"cri-o", "1.36.0", "it is not known"},
	} {
		got := tooOld(c.runtime, c.version)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %q", c.runtime, c.version, got)
		}
	}
}

// A runtime without validators closes the connection of a plugin that asks for an event that
// it does not know, and then containers start without a limit although the agent runs.
func TestEventsOfOldRuntimes(t *testing.T) {
	r := two().rig(t)
	for _, c := range []struct {
		version string
		last    api.Event // that the release knows
	}{
		{"2.0.7", api.Event_REMOVE_CONTAINER},
		{"v2.1.5", api.Event_REMOVE_CONTAINER},
		{"v2.2.1", api.Event_VALIDATE_CONTAINER_ADJUSTMENT},
		{"v2.3.7", api.Event_VALIDATE_CONTAINER_ADJUSTMENT},
	} {
		events, err := r.Configure(context.Background(), "", "containerd", c.version)
		if err != nil {
			t.Fatal(err)
		}
		if c.last == api.Event_VALIDATE_CONTAINER_ADJUSTMENT {
			if events != 0 && !events.IsSet(c.last) {
				t.Errorf("%s: events %s, without the validation", c.version, events.PrettyString())
			}
			continue
		}
		if events == 0 || events>>c.last != 0 {
			t.Errorf("%s: events %#x, want none beyond %s", c.version, int(events), c.last)
		}
		for _, e := range []api.Event{api.Event_RUN_POD_SANDBOX, api.Event_STOP_POD_SANDBOX, api.Event_REMOVE_POD_SANDBOX, api.Event_CREATE_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER} {
			if !events.IsSet(e) {
				t.Errorf("%s: no %s", c.version, e)
			}
		}
	}
}

// A stopped agent enforces nothing and says nothing else: the timer of Synchronize may fire
// after its end.
func TestNothingIsTakenUpAfterTheEnd(t *testing.T) {
	r := two().rig(t)
	if _, err := r.Synchronize(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	r.close()
	r.takeUp()
	n, err := r.client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Status.Conditions) != 0 {
		t.Errorf("the node has the condition %+v", n.Status.Conditions[0])
	}
}

func TestConfigureSaysSo(t *testing.T) {
	r := two().rig(t)
	for _, c := range []struct {
		version string
		status  corev1.ConditionStatus
		named   bool
	}{{"v2.2.1", corev1.ConditionFalse, false}, {"v2.3.7", corev1.ConditionTrue, true}} {
		if _, err := r.Configure(context.Background(), "", "containerd", c.version); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Synchronize(context.Background(), nil, nil); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(10 * time.Second)
		for {
			n, err := r.client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(n.Status.Conditions) == 1 && n.Status.Conditions[0].Status == c.status {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", c.version, n.Status.Conditions)
			}
			time.Sleep(time.Millisecond)
		}
		if r.named != c.named {
			t.Errorf("%s: named %t", c.version, r.named)
		}
	}
	// A driver of which no names are known.
	r.cfg.Drivers = append(r.cfg.Drivers, "gpu.example.com")
	if _, err := r.Configure(context.Background(), "", "containerd", "v2.3.7"); err != nil || r.named {
		t.Errorf("named %t, %v", r.named, err)
	}
	// A runtime that does not name devices: the pod is looked up.
	r.named = false
	adj, _, err := r.CreateContainer(context.Background(), sandbox("p"), container("p", "main"))
	if err != nil || adj == nil {
		t.Errorf("%v %v", adj, err)
	}
	if adj, _, err := r.CreateContainer(context.Background(), sandbox("p"), container("p", "none")); err != nil || adj != nil {
		t.Errorf("%v %v", adj, err)
	}
}

// A control plane's pods are files of the kubelet. Where each pod is looked up they start all
// the same: the API server is one of them.
func TestStaticPods(t *testing.T) {
	r := two().rig(t)
	r.named = false
	r.down()
	for _, source := range []string{"file", "http", "api"} {
		box, ctr := sandbox("apiserver"), container("apiserver", "main")
		box.Annotations = map[string]string{"kubernetes.io/config.source": source}
		adj, _, err := r.CreateContainer(context.Background(), box, ctr)
		if adj != nil || (err == nil) != (source != "api") {
			t.Errorf("%s: %v, %v", source, adj, err)
		}
		err = r.ValidateContainerAdjustment(context.Background(), &api.ValidateContainerAdjustmentRequest{Pod: box, Container: ctr})
		if (err == nil) != (source != "api") {
			t.Errorf("%s: validation: %v", source, err)
		}
		if _, err := r.Synchronize(context.Background(), []*api.PodSandbox{box}, []*api.Container{ctr}); err != nil || len(r.pending) != 0 && source != "api" {
			t.Errorf("%s: %d containers are to be taken up, %v", source, len(r.pending), err)
		}
	}
}

// BenchmarkCreate is what the agent adds to a container's start: of one with a lease, whose
// claim is known, and of one without a claim.
func BenchmarkCreate(b *testing.B) {
	for _, c := range []struct {
		name   string
		claims []string
	}{{"lease", []string{"a"}}, {"none", nil}} {
		b.Run(c.name, func(b *testing.B) {
			r := two().rig(b)
			r.log = slog.New(slog.DiscardHandler)
			p, ctr := sandbox("p"), container("p", "main", c.claims...)
			if len(c.claims) == 0 {
				ctr.Name = "none"
			}
			for b.Loop() {
				if _, _, err := r.CreateContainer(b.Context(), p, ctr); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := r.StopPodSandbox(b.Context(), p); err != nil { // the lease ends
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
