package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpumem/kube/cluster/cri"
	"gpumem/kube/cluster/node"
	"gpumem/kube/cluster/standin"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// gpuBytes is the memory of each simulated GPU.
	gpuBytes = 16 * gib
	// simFolder has the file through which containers share the simulated GPUs, and the
	// files by which tests order containers. It is mounted into them.
	simFolder = "/run/simulated"
	// simLibrary is where containers find the simulated driver.
	simLibrary = "/opt/driver"
	// required is the annotation that the admission policy puts on pods with claims.
	required = "required-plugins.noderesource.dev"
)

// Drivers, as their claims name them and as they name their CDI devices.
const (
	nvidia = "gpu.nvidia.com"
	ours   = "gpu.gpumem.dev"
)

// bench is a runtime with the agent, and an API server that is a stand-in. The test does
// what a kubelet and a DRA driver do.
type bench struct {
	*testing.T
	ctx    context.Context
	node   *node.Node
	api    *standin.Server
	cri    *cri.Client
	agent  *node.Process
	uuids  []string // of the GPUs gpu-0 and gpu-1
	number int      // of the last UID
}

func newBench(t *testing.T) *bench {
	need(t)
	b := &bench{T: t, ctx: within(t, 5*time.Minute), api: standin.New()}
	t.Cleanup(b.api.Close)
	var err error
	b.node, err = node.New(node.Options{Validator: true, Loopback: true})
	b.check(err)
	b.check(b.node.Runtime(b.ctx, at("pause.tar"), at("probe.tar")))
	t.Cleanup(func() {
		if err := b.node.Stop(); err != nil {
			t.Error(err)
		}
	})
	b.cri, err = cri.New(node.Socket, b.node.Cgroup(), node.PodLogs)
	b.check(err)
	b.check(os.MkdirAll(simFolder, 0o755))
	for i, words := range []string{fmt.Sprintf("create,total=%d/%d", gpuBytes, gpuBytes), "device=1"} {
		out := b.onNode("sim@"+simFolder+"/gpus,"+words, "uuid")
		b.uuids = append(b.uuids, strings.TrimPrefix(strings.TrimSpace(out), "uuid "))
		if i == 0 {
			b.check(os.Chmod(simFolder+"/gpus", 0o666))
		}
	}
	b.check(b.api.Kubeconfig(at("standin.conf")))
	b.check(b.api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: b.uid()}}, b.slice(nvidia), b.slice(ours)))
	return b
}

func (b *bench) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// onNode runs the probe on the node itself, past every lease, and returns what it printed.
func (b *bench) onNode(device string, args ...string) string {
	b.Helper()
	c := exec.Command(at("bin", "probe"), args...)
	c.Env = []string{"LD_LIBRARY_PATH=" + at("sim"), "GPUMEM_DEVICE=" + device}
	out, err := c.CombinedOutput()
	if err != nil {
		b.Fatalf("probe on the node: %v\n%s", err, out)
	}
	return string(out)
}

// uid returns another UID.
func (b *bench) uid() types.UID {
	b.number++
	return types.UID(fmt.Sprintf("6f1c2a52-1111-4222-8333-%012x", b.number))
}

// slice returns the GPUs as a driver publishes them.
func (b *bench) slice(driver string) *resourcev1.ResourceSlice {
	name, yes := node.Name, true
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1}}}
	for i := range b.uuids {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i), AllowMultipleAllocations: &yes,
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"uuid": {StringValue: &b.uuids[i]}},
			Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: *resource.NewQuantity(gpuBytes, resource.BinarySI)}}})
	}
	return s
}

// part is memory that a claim consumed.
type part struct {
	request string
	gpu     int
	bytes   int64 // 0 for none
}

// claim makes a claim that is allocated.
func (b *bench) claim(driver, name string, parts ...part) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: b.uid()}, Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}}}
	for _, p := range parts {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourcev1.DeviceRequest{Name: p.request, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: driver}})
		r := resourcev1.DeviceRequestAllocationResult{Request: p.request, Driver: driver, Pool: node.Name, Device: fmt.Sprintf("gpu-%d", p.gpu)}
		if p.bytes > 0 {
			id := b.uid()
			r.ShareID, r.ConsumedCapacity = &id, map[resourcev1.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(p.bytes, resource.BinarySI)}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
	}
	b.check(b.api.Put(c))
	b.prepare(c)
	return c
}

// device is a CDI device of a claim.
type device struct{ request, name string }

// devices returns the names under which a driver has the parts of a claim. NVIDIA's are
// named by the GPU, so two shares of one GPU have one name.
func devices(c *resourcev1.ResourceClaim) (kind string, list []device) {
	for i, r := range c.Status.Allocation.Devices.Results {
		kind = "k8s." + r.Driver + "/claim"
		name := string(c.UID) + "-" + r.Device
		if r.Driver == ours {
			name = fmt.Sprintf("%s-%d", c.UID, i)
		}
		list = append(list, device{r.Request, name})
	}
	return kind, list
}

// prepare writes the CDI file of a claim, as a DRA driver does before the pod starts.
func (b *bench) prepare(c *resourcev1.ResourceClaim) {
	kind, list := devices(c)
	var entries []map[string]any
	for i, d := range list {
		gpu := strings.TrimPrefix(c.Status.Allocation.Devices.Results[i].Device, "gpu-")
		entries = append(entries, map[string]any{"name": d.name, "containerEdits": map[string]any{
			"env": []string{"GPUMEM_DEVICE=sim@" + simFolder + "/gpus", "GPUMEM_SIM_VISIBLE_" + gpu + "=1", "GPUMEM_LIBCUDA=" + simLibrary + "/libcuda.so.1"},
			"mounts": []map[string]any{
				{"hostPath": at("sim"), "containerPath": simLibrary, "options": []string{"ro", "rbind"}},
				{"hostPath": simFolder, "containerPath": simFolder, "options": []string{"rw", "rbind"}},
			}}})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": kind, "devices": entries})
	b.check(err)
	b.check(os.WriteFile(filepath.Join(node.CDIFolder, string(c.UID)+".json"), text, 0o644))
}

// pod is a pod of the stand-in and of the runtime.
type pod struct {
	b      *bench
	api    *corev1.Pod
	cri    *cri.Pod
	claims []*resourcev1.ResourceClaim
}

// pod makes a pod whose containers main and second have all of the claims, and whose
// container none has none.
func (b *bench) pod(name string, claims ...*resourcev1.ResourceClaim) *pod {
	b.Helper()
	p := &pod{b: b, claims: claims, api: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: b.uid()}}}
	annotations := map[string]string{}
	var uses []corev1.ResourceClaim
	for _, c := range claims {
		annotations[required] = "[gpumem]"
		uses = append(uses, corev1.ResourceClaim{Name: c.Name})
		p.api.Spec.ResourceClaims = append(p.api.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c.Name, ResourceClaimName: &c.Name})
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: p.api.UID})
		b.check(b.api.Put(c))
	}
	for _, n := range []string{"main", "second"} {
		p.api.Spec.Containers = append(p.api.Spec.Containers, corev1.Container{Name: n, Resources: corev1.ResourceRequirements{Claims: uses}})
	}
	p.api.Spec.Containers = append(p.api.Spec.Containers, corev1.Container{Name: "none"})
	b.check(b.api.Put(p.api))
	var err error
	p.cri, err = b.cri.Run(b.ctx, "default", name, string(p.api.UID), annotations)
	b.check(err)
	b.Cleanup(func() { _ = p.cri.Remove(context.WithoutCancel(b.ctx)) })
	return p
}

// only leaves a container of the pod one request of its first claim.
func (p *pod) only(container, request string) {
	for i := range p.api.Spec.Containers {
		if c := &p.api.Spec.Containers[i]; c.Name == container {
			c.Resources.Claims = []corev1.ResourceClaim{{Name: p.claims[0].Name, Request: request}}
		}
	}
	p.b.check(p.b.api.Put(p.api))
}

// start starts a container of the pod with the orders for the probe.
func (p *pod) start(name string, args ...string) (*cri.Container, error) {
	return p.startWith(name, nil, args...)
}

// startWith starts a container with variables of the pod's author.
func (p *pod) startWith(name string, env map[string]string, args ...string) (*cri.Container, error) {
	s := cri.Spec{Name: name, Image: tag, Args: args, Env: env}
	for _, c := range p.api.Spec.Containers {
		if c.Name != name {
			continue
		}
		for _, use := range c.Resources.Claims {
			i := slices.IndexFunc(p.claims, func(c *resourcev1.ResourceClaim) bool { return c.Name == use.Name })
			kind, list := devices(p.claims[i])
			for _, d := range list {
				if n := kind + "=" + d.name; (use.Request == "" || use.Request == d.request) && !slices.Contains(s.Devices, n) {
					s.Devices = append(s.Devices, n)
				}
			}
		}
	}
	return p.cri.Start(p.b.ctx, s)
}

// run runs a container of the pod to its end and returns its lines.
func (p *pod) run(name string, args ...string) []string {
	p.b.Helper()
	return p.runWith(name, nil, args...)
}

func (p *pod) runWith(name string, env map[string]string, args ...string) []string {
	p.b.Helper()
	c, err := p.startWith(name, env, append([]string{"env", "GPUMEM_OUTSIDE"}, args...)...)
	p.b.check(err)
	lines, err := c.Wait(p.b.ctx, "")
	p.b.check(err)
	return lines
}

// order has a container go on that waits for a file.
func order(name string) error { return os.WriteFile(filepath.Join(simFolder, name), nil, 0o644) }

// startAgent starts the agent and waits until it is connected to the runtime.
func (b *bench) startAgent() {
	b.Helper()
	before := len(b.api.Seen().Patches)
	var err error
	b.agent, err = node.Start("agent", at("bin", "gpumem-kube"), "agent", "--node", node.Name, "--kubeconfig", at("standin.conf"),
		"--library", at("library"), "--nri-socket", node.NRISocket, "--metrics", "127.0.0.1:9835")
	b.check(err)
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	err = b.api.Wait(ctx, func(s standin.Seen) bool {
		return slices.ContainsFunc(s.Patches[before:], func(p string) bool {
			return strings.Contains(p, `"GPUMemoryEnforced"`) && strings.Contains(p, `"True"`)
		})
	})
	if err != nil {
		b.check(errors.Join(err, errors.New(b.agent.Tail(20))))
	}
}

// waitEvent waits for an event about a pod.
func (b *bench) waitEvent(p *pod, reason string, parts ...string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	err := b.api.Wait(ctx, func(s standin.Seen) bool {
		return slices.ContainsFunc(s.Events, func(e standin.Event) bool {
			has := e.Object == "Pod default/"+p.api.Name && e.Reason == reason
			for _, part := range parts {
				has = has && strings.Contains(e.Message, part)
			}
			return has
		})
	})
	if err != nil {
		b.Errorf("event %s with %q about pod %s: %v", reason, parts, p.api.Name, err)
	}
}
