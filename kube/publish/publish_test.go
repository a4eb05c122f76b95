package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpumem/kube/claim"
)

const (
	nodeName   = "n1"
	driverName = "gpu.gpumem.dev"
	nvidia     = "gpu.nvidia.com"
	limit      = 30 * time.Second // for what takes a second at most
)

// A testNode is a node with an API server that has no validation, and without a kubelet.
type testNode struct {
	*testing.T
	client *fake.Clientset
	cfg    Config
	log    *logLines
}

var theNode = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-1"}}

var (
	slicesResource = resourcev1.SchemeGroupVersion.WithResource("resourceslices")
	slicesKind     = resourcev1.SchemeGroupVersion.WithKind("ResourceSlice")
)

// newNode returns a node with two simulated GPUs of 8 GiB and an empty API server.
func newNode(t *testing.T, objects ...runtime.Object) *testNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "publish") // short, as paths of sockets must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	gpus, err := Sim(filepath.Join(dir, "gpus", "two"), 2, 8<<30)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{T: t, client: fake.NewClientset(append(objects, theNode)...), log: &logLines{}}
	n.log.changed = sync.NewCond(&n.log.mu)
	var mu sync.Mutex
	made := 0
	n.client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		s := a.(clienttesting.CreateAction).GetObject().(*resourcev1.ResourceSlice)
		if made++; s.Name == "" { // as an API server does
			s.Name = s.GenerateName + strconv.Itoa(made)
		}
		return false, nil, nil
	})
	// The fake one sends every slice to everybody. One driver would remove another's.
	slicesOf := func(o runtime.Object, f fields.Selector) bool {
		s := o.(*resourcev1.ResourceSlice)
		return f.Matches(fields.Set{resourcev1.ResourceSliceSelectorDriver: s.Spec.Driver, resourcev1.ResourceSliceSelectorNodeName: *s.Spec.NodeName})
	}
	n.client.PrependReactor("list", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		all, err := n.client.Tracker().List(slicesResource, slicesKind, "")
		if err != nil {
			return true, nil, err
		}
		list := all.(*resourcev1.ResourceSliceList)
		list.Items = slices.DeleteFunc(list.Items, func(s resourcev1.ResourceSlice) bool {
			return !slicesOf(&s, a.(clienttesting.ListAction).GetListRestrictions().Fields)
		})
		return true, list, nil
	})
	n.client.PrependWatchReactor("resourceslices", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := n.client.Tracker().Watch(slicesResource, "")
		if err != nil {
			return true, nil, err
		}
		return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
			return e, slicesOf(e.Object, a.(clienttesting.WatchAction).GetWatchRestrictions().Fields)
		}), nil
	})
	n.cfg = Config{
		Client: n.client, Node: nodeName, Driver: driverName, GPUs: gpus, SimLibrary: "/var/lib/gpumem/sim-1",
		CDIDir: filepath.Join(dir, "cdi"), KubeletDir: filepath.Join(dir, "kubelet"), Log: slog.New(n.log),
	}
	return n
}

// start starts the driver, which is stopped with the test.
func (n *testNode) start() *Driver {
	n.Helper()
	d, err := Start(n.Context(), n.cfg)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(d.Stop)
	return d
}

// waitSlices waits until the driver's published devices are those of the names.
func (n *testNode) waitSlices(want ...string) []resourcev1.Device {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), limit)
	defer cancel()
	store := n.client.Tracker() // what a test refuses does not count here
	w, err := store.Watch(slicesResource, "")
	if err != nil {
		n.Fatal(err)
	}
	defer w.Stop()
	for {
		list, err := store.List(slicesResource, slicesKind, "")
		if err != nil {
			n.Fatal(err)
		}
		var devices []resourcev1.Device
		names, there := []string{}, false
		for _, s := range list.(*resourcev1.ResourceSliceList).Items {
			if s.Spec.Driver != driverName {
				continue
			}
			there = true
			if s.Spec.NodeName == nil || *s.Spec.NodeName != nodeName || s.Spec.Pool.Name != nodeName {
				n.Fatalf("a slice of pool %s of node %v", s.Spec.Pool.Name, s.Spec.NodeName)
			}
			for _, d := range s.Spec.Devices {
				devices, names = append(devices, d), append(names, d.Name)
			}
		}
		if there && strings.Join(names, " ") == strings.Join(want, " ") {
			return devices
		}
		select {
		case <-w.ResultChan():
		case <-ctx.Done():
			n.Fatalf("%v published, want %v", names, want)
		}
	}
}

// add makes or changes another driver's slice with devices of those UUIDs.
func (n *testNode) add(driver string, uuids ...string) {
	n.Helper()
	if err := n.client.Tracker().Add(foreignSlice(driver, nodeName, uuids...)); err != nil {
		n.Fatal(err)
	}
}

func (n *testNode) remove(driver string) {
	n.Helper()
	if err := n.client.ResourceV1().ResourceSlices().Delete(n.Context(), "slice-of-"+driver, metav1.DeleteOptions{}); err != nil {
		n.Fatal(err)
	}
}

func foreignSlice(driver, node string, uuids ...string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-of-" + driver}, Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node}}}
	for i, u := range uuids {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"uuid": {StringValue: &u}}})
	}
	return s
}

// allocation is one result of a claim: request, device and the share's ID.
type allocation struct{ request, device, share string }

// newClaim makes an allocated claim. The number is the end of its UID.
func newClaim(number int, results ...allocation) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("c%d", number), UID: types.UID(fmt.Sprintf("6f1c2a52-1111-4222-8333-%012d", number))}}
	if len(results) == 0 {
		return c
	}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, r := range results {
		share := types.UID(r.share)
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: r.request, Driver: driverName, Pool: nodeName, Device: r.device, ShareID: &share,
			ConsumedCapacity: map[resourcev1.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse("2Gi")},
		})
	}
	return c
}

const (
	share1 = "11111111-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
	share2 = "22222222-bbbb-4bbb-8bbb-bbbbbbbbbbbb"
)

// kubelet calls the driver as the kubelet does, by its socket.
func (n *testNode) kubelet() dra.DRAPluginClient { return dra.NewDRAPluginClient(n.dial()) }

func (n *testNode) dial() *grpc.ClientConn {
	n.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.cfg.KubeletDir, "plugins", driverName, "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestHealth: the kubelet's watch of devices is answered, and stays open until the driver
// stops.
func TestHealth(t *testing.T) {
	n := newNode(t)
	d := n.start()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	stream, err := health.NewDRAResourceHealthClient(n.dial()).NodeWatchResources(ctx, &health.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range n.cfg.GPUs {
		if h := got.Devices[i]; len(got.Devices) != len(n.cfg.GPUs) || h.Device.PoolName != nodeName || h.Device.DeviceName != g.Name || h.Health != health.HealthStatus_UNKNOWN {
			t.Errorf("%+v", got)
		}
	}
	d.Stop()
	if _, err := stream.Recv(); err == nil || ctx.Err() != nil {
		t.Errorf("after the driver's end: %v, %v", err, ctx.Err())
	}
}

func (n *testNode) prepare(c *resourcev1.ResourceClaim) ([]*dra.Device, error) {
	n.Helper()
	answer, err := n.kubelet().NodePrepareResources(n.Context(), &dra.NodePrepareResourcesRequest{Claims: []*dra.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}})
	if err != nil {
		return nil, err
	}
	got := answer.Claims[string(c.UID)]
	if got.Error != "" {
		return nil, errors.New(got.Error)
	}
	return got.Devices, nil
}

func (n *testNode) unprepare(c *resourcev1.ResourceClaim) {
	n.Helper()
	answer, err := n.kubelet().NodeUnprepareResources(n.Context(), &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}})
	if err != nil {
		n.Fatal(err)
	}
	if got := answer.Claims[string(c.UID)]; got.Error != "" {
		n.Fatal(got.Error)
	}
}

// spec reads a claim's CDI spec; ok is false if there is none.
func (n *testNode) spec(c *resourcev1.ResourceClaim) (s cdiSpec, ok bool) {
	n.Helper()
	text, err := os.ReadFile(filepath.Join(n.cfg.CDIDir, driverName+"-"+string(c.UID)+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return s, false
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		n.Fatal(err)
	}
	return s, true
}

// logLines keeps the log.
type logLines struct {
	mu      sync.Mutex
	changed *sync.Cond
	lines   []string
}

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }
func (l *logLines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logLines) WithGroup(string) slog.Handler            { return l }
func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	l.lines = append(l.lines, line)
	l.changed.Broadcast()
	return nil
}

// wait waits for a line of the log that has the text.
func (n *testNode) wait(text string) {
	n.Helper()
	late := false
	timer := time.AfterFunc(limit, func() {
		n.log.mu.Lock()
		defer n.log.mu.Unlock()
		late = true
		n.log.changed.Broadcast()
	})
	defer timer.Stop()
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	for !late {
		for _, line := range n.log.lines {
			if strings.Contains(line, text) {
				return
			}
		}
		n.log.changed.Wait()
	}
	n.Fatalf("the log never has %q:\n%s", text, strings.Join(n.log.lines, "\n"))
}

func TestGPUsArePublishedWithConsumableMemory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.cfg.Reserve = 1<<30 + 1 // what is left is a multiple of 1 MiB
	n.start()
	got := n.waitSlices("gpu-0", "gpu-1")[1]
	text, err := json.MarshalIndent(got, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want := `{
 "name": "gpu-1",
 "attributes": {
  "architecture": {
   "string": "Hopper"
  },
  "cudaComputeCapability": {
   "version": "9.0.0"
  },
  "productName": {
   "string": "sim:8GiB"
  },
  "simulated": {
   "bool": true
  },
  "uuid": {
   "string": "` + n.cfg.GPUs[1].UUID + `"
  }
 },
 "capacity": {
  "memory": {
   "value": "7167Mi",
   "requestPolicy": {
    "default": "7167Mi",
    "validRange": {
     "min": "1Mi",
     "max": "7167Mi",
     "step": "1Mi"
    }
   }
  }
 },
 "allowMultipleAllocations": true
}`
	if string(text) != want {
		t.Errorf("got %s\nwant %s", text, want)
	}
}

func TestClaimIsPreparedAndUnprepared(t *testing.T) {
	t.Parallel()
	c := newClaim(1, allocation{"gpu", "gpu-1", share1})
	n := newNode(t, c)
	n.start()
	id := string(c.UID) + "-gpu-1-11111111"
	for range 2 { // the kubelet asks again when it was restarted
		devices, err := n.prepare(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(devices) != 1 || !reflect.DeepEqual(devices[0].RequestNames, []string{"gpu"}) || devices[0].PoolName != nodeName || devices[0].DeviceName != "gpu-1" ||
			*devices[0].ShareId != share1 || !reflect.DeepEqual(devices[0].CdiDeviceIds, []string{Kind + "=" + id}) {
			t.Fatalf("devices %v", devices)
		}
	}
	file := strings.TrimPrefix(n.cfg.GPUs[0].Words, "sim@")
	want := cdiSpec{Version: "0.6.0", Kind: Kind, Annotations: map[string]string{claimAnnotation: "default/c1"}, Devices: []cdiDevice{{
		Name: id, Annotations: map[string]string{deviceAnnotation: "gpu-1"},
		Edits: cdiEdits{
			Env: []string{"GPUMEM_DEVICE=sim@" + file, "GPUMEM_SIM_VISIBLE_1=1", "GPUMEM_LIBCUDA=/opt/gpumem/sim/libcuda.so.1", "GPUMEM_LIBNVML=/opt/gpumem/sim/libnvidia-ml.so.1"},
			Mounts: []cdiMount{
				{"/var/lib/gpumem/sim-1", "/opt/gpumem/sim", []string{"ro", "nosuid", "nodev", "rbind"}},
				{file, file, []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
			},
		},
	}}}
	if got, _ := n.spec(c); !reflect.DeepEqual(got, want) {
		t.Errorf("spec\n%+v, want\n%+v", got, want)
	}
	for range 2 {
		n.unprepare(c)
	}
	if entries, err := os.ReadDir(n.cfg.CDIDir); err != nil || len(entries) > 0 {
		t.Errorf("left in the folder: %v, %v", entries, err)
	}
}

// Two shares of one GPU must have two names, or the runtime refuses the spec; and what two
// requests set in one container must not contradict.
func TestRequestsOfOneContainerDoNotOverwriteEachOther(t *testing.T) {
	t.Parallel()
	for number, c := range []struct {
		name    string
		results []allocation
		visible []string
	}{
		{"two shares of one GPU", []allocation{{"a", "gpu-0", share1}, {"b", "gpu-0", share2}}, []string{"GPUMEM_SIM_VISIBLE_0=1"}},
		{"two GPUs", []allocation{{"a", "gpu-0", share1}, {"b", "gpu-1", share2}}, []string{"GPUMEM_SIM_VISIBLE_0=1", "GPUMEM_SIM_VISIBLE_1=1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			claim := newClaim(number, c.results...)
			n := newNode(t, claim)
			n.start()
			devices, err := n.prepare(claim)
			if err != nil || len(devices) != 2 || devices[0].CdiDeviceIds[0] == devices[1].CdiDeviceIds[0] || *devices[1].ShareId != share2 {
				t.Fatalf("devices %v, %v", devices, err)
			}
			spec, _ := n.spec(claim)
			env := map[string]string{}
			for i, d := range spec.Devices {
				if devices[i].CdiDeviceIds[0] != Kind+"="+d.Name {
					t.Errorf("the kubelet has %s, the spec %s", devices[i].CdiDeviceIds[0], d.Name)
				}
				for _, line := range d.Edits.Env {
					name, value, _ := strings.Cut(line, "=")
					if old, ok := env[name]; ok && old != value {
						t.Errorf("%s is %s and %s", name, old, value)
					}
					env[name] = value
				}
			}
			for _, line := range c.visible {
				if name, value, _ := strings.Cut(line, "="); env[name] != value {
					t.Errorf("%s is not there: %v", line, env)
				}
			}
		})
	}
}

func TestRestartGoesOnWhereTheDriverWas(t *testing.T) {
	t.Parallel()
	kept, gone, replaced := newClaim(1, allocation{"a", "gpu-0", share1}), newClaim(2, allocation{"a", "gpu-1", share2}), newClaim(3, allocation{"a", "gpu-1", share2})
	n := newNode(t, kept, gone, replaced)
	d, err := Start(n.Context(), n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*resourcev1.ResourceClaim{kept, gone, replaced} {
		if _, err := n.prepare(c); err != nil {
			t.Fatal(err)
		}
	}
	n.waitSlices("gpu-0", "gpu-1")
	d.Stop()
	n.waitSlices("gpu-0", "gpu-1") // a stop withdraws nothing

	// While it is away: a claim goes, another comes under the same name, and another driver
	// publishes both GPUs.
	claims := n.client.ResourceV1().ResourceClaims("default")
	for _, c := range []*resourcev1.ResourceClaim{gone, replaced} {
		if err := claims.Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	other := newClaim(4, allocation{"a", "gpu-1", share2})
	other.Name = replaced.Name
	if err := n.client.Tracker().Add(other); err != nil {
		t.Fatal(err)
	}
	n.add(nvidia, n.cfg.GPUs[0].UUID, n.cfg.GPUs[1].UUID)
	files := map[string]bool{ // whether it stays
		driverName + "-6f1c2a52-1111-4222-8333-000000000009.json":     false, // damaged
		driverName + "-6f1c2a52-1111-4222-8333-000000000008.json.tmp": false,
		driverName + "-notes.json":                                    true,
		"other-6f1c2a52-1111-4222-8333-000000000009.json":             true,
		driverName + ".two-6f1c2a52-1111-4222-8333-000000000009.json": true,
	}
	for name := range files {
		if err := os.WriteFile(filepath.Join(n.cfg.CDIDir, name), []byte("{"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	strange := driverName + "-6f1c2a52-1111-4222-8333-000000000007.json" // whole, and of another kind
	files[strange] = false
	if err := os.WriteFile(filepath.Join(n.cfg.CDIDir, strange), []byte(`{"kind":"example.com/x","annotations":{"gpumem.dev/claim":"default/`+kept.Name+`"}}`), 0o644); err != nil {
		t.Fatal(err)
	}

	n.start()
	n.waitSlices("gpu-0") // kept has it
	for _, c := range []*resourcev1.ResourceClaim{gone, replaced} {
		n.wait("CDI spec removed: its claim is gone claim=default/" + c.Name)
		if _, ok := n.spec(c); ok {
			t.Errorf("claim %s is gone and has a spec", c.Name)
		}
	}
	if _, ok := n.spec(kept); !ok {
		t.Error("the spec of a claim that is there was removed")
	}
	for name, stays := range files {
		if _, err := os.Stat(filepath.Join(n.cfg.CDIDir, name)); (err == nil) != stays {
			t.Errorf("%s: %v, want it to stay: %v", name, err, stays)
		}
	}
	if _, err := n.prepare(kept); err != nil {
		t.Errorf("prepared again after the restart: %v", err)
	}
	n.unprepare(kept)
	n.waitSlices()
}

func TestGPUOfAnotherDriver(t *testing.T) {
	t.Parallel()
	c, late := newClaim(1, allocation{"a", "gpu-0", share1}), newClaim(2, allocation{"a", "gpu-1", share2})
	n := newNode(t, c, late, foreignSlice("gpu.elsewhere.example", "n2"))
	upper := strings.ToUpper(strings.TrimPrefix(n.cfg.GPUs[1].UUID, "GPU-"))
	n.add(nvidia, upper)
	n.start()
	n.waitSlices("gpu-0")
	n.wait("GPU is not published: another driver publishes it other=" + nvidia)
	if _, err := n.prepare(late); err == nil || !strings.Contains(err.Error(), "is published by another driver, too: "+nvidia) {
		t.Errorf("a claim on it is prepared: %v", err)
	}
	n.remove(nvidia)
	n.waitSlices("gpu-0", "gpu-1")
	n.wait("GPU is published again")

	if _, err := n.prepare(c); err != nil {
		t.Fatal(err)
	}
	n.add(nvidia, n.cfg.GPUs[0].UUID, n.cfg.GPUs[1].UUID)
	n.waitSlices("gpu-0") // it has a claim
	n.wait("GPU stays published until its claims have ended, although another driver publishes it other=" + nvidia + " claims=1")
	n.unprepare(c)
	n.waitSlices()
}

// A slice of a GPU has that GPU's memory: the GPU is not published beside it.
func TestGPUOfWhichAnotherDriverHasASlice(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	part := foreignSlice(nvidia, nodeName, "MIG-0f6c0a4b-1111-2222-3333-444444444444")
	part.Spec.Devices[0].Attributes["resource.kubernetes.io/parentUUID"] = resourcev1.DeviceAttribute{StringValue: &n.cfg.GPUs[1].UUID}
	if err := n.client.Tracker().Add(part); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.waitSlices("gpu-0")
}

func TestSlicesOfOtherNodesDoNotCount(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if err := n.client.Tracker().Add(foreignSlice(nvidia, "n2", n.cfg.GPUs[0].UUID, n.cfg.GPUs[1].UUID)); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.waitSlices("gpu-0", "gpu-1")
}

func TestClaimThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	unknown, elsewhere, foreign := newClaim(2, allocation{"a", "gpu-7", share1}), newClaim(3, allocation{"a", "gpu-0", share1}), newClaim(4, allocation{"a", "gpu-0", share1})
	elsewhere.Status.Allocation.Devices.Results[0].Pool = "n2"
	foreign.Status.Allocation.Devices.Results[0].Driver = nvidia
	another := newClaim(5, allocation{"a", "gpu-0", share1})
	asked := newClaim(6, allocation{"a", "gpu-0", share1})
	asked.Name = another.Name
	n := newNode(t, newClaim(1), unknown, elsewhere, foreign, another)
	n.start()
	for _, c := range []struct {
		name  string
		claim *resourcev1.ResourceClaim
		want  string
	}{
		{"no allocation", newClaim(1), "claim default/c1 not allocated"},
		{"a GPU that is not there", unknown, "claim default/c2: node n1 has no n1/gpu-7; it was allocated from what the node published before: delete the pod"},
		{"a GPU of another node", elsewhere, "claim default/c3: node n1 has no n2/gpu-0"},
		{"nothing of this driver", foreign, "claim default/c4: nothing of its allocation is of driver gpu.gpumem.dev"},
		{"another claim of that name", asked, "claim default/c5 got replaced"},
		{"no such claim", newClaim(9), `resourceclaims.resource.k8s.io "c9" not found`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := n.prepare(c.claim); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if _, ok := n.spec(c.claim); ok {
				t.Error("it has a spec")
			}
		})
	}
}

// A spec that cannot be written must not count as prepared.
func TestSpecThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	c := newClaim(1, allocation{"a", "gpu-0", share1})
	n := newNode(t, c)
	d := n.start()
	if err := os.Mkdir(d.specFile(c.UID)+".tmp", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := n.prepare(c); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("error %v", err)
	}
	if got := d.users("gpu-0"); got != 0 {
		t.Errorf("%d claims are prepared", got)
	}
}

func TestAPIServerIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var mu sync.Mutex
	refused := 0
	n.client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if refused++; refused <= 1 {
			return true, nil, errors.New("the API server is away")
		}
		return false, nil, nil
	})
	n.start()
	n.waitSlices("gpu-0", "gpu-1")
}

// A claim that the API server does not answer for may be there.
func TestSpecStaysWhenTheAPIServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := newClaim(1, allocation{"a", "gpu-0", share1})
	n := newNode(t, c)
	d, err := Start(n.Context(), n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.prepare(c); err != nil {
		t.Fatal(err)
	}
	d.Stop()
	n.client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	n.start()
	n.waitSlices("gpu-0", "gpu-1") // after the left-over specs
	if _, ok := n.spec(c); !ok {
		t.Error("the spec was removed")
	}
}

func TestPublishingErrorsAreLogged(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("slices are forbidden")
	})
	n.start()
	n.wait("slices are forbidden")
}

func TestConfigurationErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no node", func(c *Config) { c.Node = "" }, `driver "gpu.gpumem.dev" of node "": a client and both names are needed`},
		{"a relative folder", func(c *Config) { c.CDIDir = "cdi" }, `folders "cdi" and`},
		{"no GPU", func(c *Config) { c.GPUs = nil }, "node n1 has no GPU to publish"},
		{"a reserve of all", func(c *Config) { c.Reserve = 8 << 30 }, "a reserve of 8 GiB leaves nothing of 8 GiB"},
		{"no simulated driver", func(c *Config) { c.SimLibrary = "" }, "no folder with the simulated driver is named"},
		{"no UUID", func(c *Config) { c.GPUs[0].UUID = "" }, "the UUID has 0 hexadecimal digits; want 32"},
		{"a private GPU", func(c *Config) { c.GPUs[0].Words = "sim:8GiB" }, `device "sim:8GiB" is private to one program`},
		{"words that are none", func(c *Config) { c.GPUs[0].Words = "gpu" }, `device "gpu": no card is known`},
		{"a file in the folder's place", func(c *Config) { c.CDIDir = os.Args[0] }, "not a directory"},
		{"no such way to the kubelet", func(c *Config) { c.KubeletDir = os.Args[0] }, "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			c.change(&n.cfg)
			d, err := Start(t.Context(), n.cfg)
			if err == nil {
				d.Stop()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
