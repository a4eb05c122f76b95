// From a container to its leases: the claims that its pod has, what they consumed, and
// the GPUs that those devices are.
//
// There is no informer of claims: a thousand nodes that each watch ten thousand claims
// would cost the API server ten million messages for what a node needs a few of. A
// container's first start costs a GET of the pod and of each of its claims; the answer is
// kept, on disk too, until the pod is gone, since neither a pod's claims nor what they
// consumed changes while it lives. So a container that starts again needs no API server,
// nor does a new agent.

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpumem/kube/claim"
)

// lease is what a container gets of one GPU.
type lease struct {
	claim.Lease
	Claims []string `json:"claims"` // namespace/name
	UUID   string   `json:"uuid"`   // of the GPU
	Total  uint64   `json:"total"`  // bytes of the GPU, as its driver publishes them

	CCMajor   int  `json:"cc_major,omitempty"` // compute capability, such as 9 of 9.0; 0: not known
	Simulated bool `json:"simulated,omitempty"`
}

// resolvedPod is what is known of a pod.
type resolvedPod struct {
	Namespace  string             `json:"namespace"`
	Name       string             `json:"name"`
	Claims     []string           `json:"claims"`     // UIDs
	Containers map[string][]lease `json:"containers"` // of the containers that have started; an empty list is one without a lease
}

// gpu is what a device of a claim is.
type gpu struct {
	uuid      string
	total     uint64
	ccMajor   int
	simulated bool
}

type resolver struct {
	client  kubernetes.Interface
	node    string
	drivers []string
	dir     string // a file for each pod

	mu      sync.Mutex
	pods    map[string]*resolvedPod // by UID
	devices map[claim.Device]gpu
	listed  time.Time // when devices were read
}

func newResolver(client kubernetes.Interface, node string, drivers []string, dir string) (*resolver, error) {
	if err := MakeOwn(dir); err != nil {
		return nil, err
	}
	return &resolver{client: client, node: node, drivers: drivers, dir: dir, pods: map[string]*resolvedPod{}, devices: map[claim.Device]gpu{}}, nil
}

// podRef names a pod as the runtime has it.
type podRef struct{ uid, namespace, name string }

func (p podRef) String() string { return p.namespace + "/" + p.name }

// leases returns what a container gets. uids are those of the claims that the runtime was
// given devices of; nil where it does not say. A container whose uids are known and none
// is of a claim with memory has none, which an empty list says.
func (r *resolver) leases(ctx context.Context, pod podRef, container string, uids []string) ([]lease, error) {
	if l, ok := r.cached(pod, container, uids); ok {
		return l, nil
	}
	p, err := r.client.CoreV1().Pods(pod.namespace).Get(ctx, pod.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot read pod %s: %w", pod, err)
	}
	if string(p.UID) != pod.uid {
		return nil, fmt.Errorf("pod %s is another one now: its UID is %s, and the runtime's %s", pod, p.UID, pod.uid)
	}
	uses, err := claim.Uses(p, container)
	if err != nil {
		return nil, err
	}
	var shares []claim.Share
	var claims []string            // UIDs
	claimOf := map[string]string{} // by share
	for _, u := range uses {
		c, err := r.client.ResourceV1().ResourceClaims(pod.namespace).Get(ctx, u.Claim, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("cannot read claim %s/%s: %w", pod.namespace, u.Claim, err)
		}
		if !reserved(c, p) {
			return nil, fmt.Errorf("claim %s/%s is not reserved for pod %s", c.Namespace, c.Name, pod)
		}
		all, err := claim.Shares(c, r.drivers)
		if err != nil {
			return nil, err
		}
		for _, s := range u.Of(all) {
			shares = append(shares, s)
			claimOf[s.ID] = c.Namespace + "/" + c.Name
		}
		claims = append(claims, string(c.UID))
	}
	if len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		claims = uids // what looks like a claim's device is not one
	}
	if !containsAll(claims, uids) {
		return nil, fmt.Errorf("pod %s: container %s has a device of a claim with UID %v, which it does not name; its claims are %v", pod, container, uids, claims)
	}
	all, err := claim.Leases(shares)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod, err)
	}
	list := []lease{}
	for _, l := range all {
		g, err := r.device(ctx, l.Device)
		if err != nil {
			return nil, err
		}
		of := lease{Lease: l, UUID: g.uuid, Total: g.total, CCMajor: g.ccMajor, Simulated: g.simulated}
		for _, s := range l.Shares {
			if c := claimOf[s]; !slices.Contains(of.Claims, c) {
				of.Claims = append(of.Claims, c)
			}
		}
		list = append(list, of)
	}
	return list, r.keepOne(pod, container, claims, list)
}

// cached returns what is known of a container.
func (r *resolver) cached(pod podRef, container string, uids []string) ([]lease, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.known(pod)
	if p == nil || !containsAll(p.Claims, uids) {
		return nil, false
	}
	l, ok := p.Containers[container]
	return l, ok
}

// keepOne notes what was found out about a container.
func (r *resolver) keepOne(pod podRef, container string, claims []string, list []lease) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.known(pod)
	if p == nil {
		p = &resolvedPod{Namespace: pod.namespace, Name: pod.name, Containers: map[string][]lease{}}
		r.pods[pod.uid] = p
	}
	for _, c := range claims {
		if !slices.Contains(p.Claims, c) {
			p.Claims = append(p.Claims, c)
		}
	}
	p.Containers[container] = list
	return r.write(pod.uid, p)
}

func containsAll(list, of []string) bool {
	return !slices.ContainsFunc(of, func(s string) bool { return !slices.Contains(list, s) })
}

func reserved(c *resourcev1.ResourceClaim, p *corev1.Pod) bool {
	return slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == p.UID })
}

// slicesKept is how long a device's GPU is believed without another look: a GPU may be
// exchanged, or divided anew.
const slicesKept = time.Minute

// device returns the GPU that a device of a claim is, from the slices of this node: its
// drivers publish the UUID as an attribute.
func (r *resolver) device(ctx context.Context, d claim.Device) (gpu, error) {
	r.mu.Lock()
	g, ok := r.devices[d]
	fresh := time.Since(r.listed) < slicesKept
	r.mu.Unlock()
	if ok && fresh && g.total > 0 {
		return g, nil
	}
	slices, err := r.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorNodeName + "=" + r.node})
	if err != nil {
		return gpu{}, fmt.Errorf("cannot read the resource slices of node %s: %w", r.node, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.devices)
	r.listed = time.Now()
	for _, s := range slices.Items {
		for _, dev := range s.Spec.Devices {
			uuid := dev.Attributes["uuid"].StringValue
			if uuid == nil || *uuid == "" {
				continue
			}
			memory := dev.Capacity[claim.Memory]
			g := gpu{uuid: *uuid, total: uint64(max(memory.Value.Value(), 0))}
			if v := dev.Attributes["cudaComputeCapability"].VersionValue; v != nil {
				if _, err := fmt.Sscanf(*v, "%d.", &g.ccMajor); err != nil {
					g.ccMajor = 0
				}
			}
			if sim := dev.Attributes["simulated"].BoolValue; sim != nil { // our driver's
				g.simulated = *sim
			}
			r.devices[claim.Device{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Name: dev.Name}] = g
		}
	}
	g, ok = r.devices[d]
	switch {
	case !ok:
		return gpu{}, fmt.Errorf("no resource slice of node %s has a device %s with an attribute uuid", r.node, d)
	case g.total == 0:
		return gpu{}, fmt.Errorf("the resource slices of node %s say no memory of device %s", r.node, d)
	}
	return g, nil
}

// known returns what is known of a pod, from memory or from disk; nil if nothing is. Caller
// holds r.mu. What cannot be read there is read from the API server again.
func (r *resolver) known(pod podRef) *resolvedPod {
	if p := r.pods[pod.uid]; p != nil {
		return p
	}
	text, err := os.ReadFile(r.file(pod.uid))
	if err != nil {
		return nil
	}
	p := &resolvedPod{}
	if json.Unmarshal(text, p) != nil || p.Namespace != pod.namespace || p.Name != pod.name || p.Containers == nil {
		return nil
	}
	r.pods[pod.uid] = p
	return p
}

func (r *resolver) file(uid string) string { return filepath.Join(r.dir, filepath.Base(uid)+".json") }

func (r *resolver) write(uid string, p *resolvedPod) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(r.file(uid), text, 0o600)
}

// forget drops a pod that is gone.
func (r *resolver) forget(uid string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, uid)
	if err := os.Remove(r.file(uid)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// keep drops all pods on disk but these.
func (r *resolver) keep(uids map[string]bool) error {
	list, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if uid := e.Name()[:len(e.Name())-len(filepath.Ext(e.Name()))]; !uids[uid] {
			err = errors.Join(err, r.forget(uid))
		}
	}
	return err
}

// MakeOwn makes a folder in the registry's, where all users may make some. One that another
// user has made, or may write to, is refused: what is mounted into containers lies there.
func MakeOwn(dir string) error {
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if s, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || st.Mode().Perm()&0o022 != 0 || !ok || int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a folder that only this user can write to: remove it, and start the agent again", dir)
	}
	return nil
}

// writeFile writes a file as a whole or not at all.
func writeFile(path string, text []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
