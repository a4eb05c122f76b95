// Package claim reads ResourceClaims: what memory of which GPUs a claim consumed, and
// what of it each container of a pod gets. It asks no API server.
//
// The only source is status.allocation of the claim, which the scheduler writes. What was
// requested does not count: the scheduler rounds it up to what the driver's policy allows,
// and takes the policy's default where nothing was requested.
package claim

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// Memory is the name of the capacity that counts, as NVIDIA's DRA driver and ours
// publish it.
const Memory resourcev1.QualifiedName = "memory"

// Device names a device in the cluster.
type Device struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Name   string `json:"device"`
}

// String returns the device as driver/pool/name.
func (d Device) String() string { return d.Driver + "/" + d.Pool + "/" + d.Name }

// Share is memory of one device that a claim consumed.
type Share struct {
	Device
	// ID is the share's, one in the cluster. Two pods with one claim have the same share.
	ID      string `json:"id"`
	Request string `json:"request"` // of the claim; with a subrequest, NAME/SUBREQUEST
	// Bytes is 0 where no memory is counted: the device was allocated as a whole, or its
	// driver counts none, as NVIDIA's in its modes other than memory.
	Bytes uint64 `json:"bytes"`
}

// Shares returns the shares of a claim of the drivers' devices, in the claim's order.
func Shares(c *resourcev1.ResourceClaim, drivers []string) ([]Share, error) {
	if c.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s/%s has no allocation yet", c.Namespace, c.Name)
	}
	var list []Share
	for _, r := range c.Status.Allocation.Devices.Results {
		if !slices.Contains(drivers, r.Driver) || r.AdminAccess != nil && *r.AdminAccess {
			continue // with admin access a device is looked at: its capacity is written, and counted for nobody
		}
		q := r.ConsumedCapacity[Memory]
		if q.Value() < 0 {
			return nil, fmt.Errorf("claim %s/%s consumed %s of memory of %s/%s/%s", c.Namespace, c.Name, q.String(), r.Driver, r.Pool, r.Device)
		}
		s := Share{Device: Device{r.Driver, r.Pool, r.Device}, Request: r.Request, Bytes: uint64(q.Value())}
		if r.ShareID != nil {
			s.ID = string(*r.ShareID)
		} else { // the API server wants one with consumed capacity; the claim is as good a name
			s.ID = string(c.UID) + "-" + r.Device
		}
		if !name.MatchString(s.ID) {
			return nil, fmt.Errorf("claim %s/%s has the share %q, which is no name", c.Namespace, c.Name, s.ID)
		}
		list = append(list, s)
	}
	return list, nil
}

// name is what identities of shares look like. They become names of files.
var name = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.-]{0,127}$`)

// A Use is a claim as a container of a pod has it.
type Use struct {
	Claim   string // its name, in the pod's namespace
	Request string // of the claim, without subrequest; "" for all of them
}

// Uses returns the claims of a container, of any kind. The error says what the pod's
// status does not have yet, or that there is no such container.
func Uses(p *corev1.Pod, container string) ([]Use, error) {
	var wants []corev1.ResourceClaim
	found := false
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name == container {
			wants, found = c.Resources.Claims, true
		}
	}
	for _, c := range p.Spec.EphemeralContainers {
		if c.Name == container {
			wants, found = c.Resources.Claims, true
		}
	}
	if !found {
		return nil, fmt.Errorf("pod %s/%s has no container %q", p.Namespace, p.Name, container)
	}
	var uses []Use
	for _, w := range wants {
		n, err := claimName(p, w.Name)
		if err != nil {
			return nil, err
		}
		if n != "" {
			uses = append(uses, Use{n, w.Request})
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil { // requested as limits of the container
		for _, m := range s.RequestMappings {
			if m.ContainerName == container {
				uses = append(uses, Use{s.ResourceClaimName, m.RequestName})
			}
		}
	}
	return uses, nil
}

// claimName returns the name of a pod's claim; "" where none is needed.
func claimName(p *corev1.Pod, inPod string) (string, error) {
	for _, c := range p.Spec.ResourceClaims {
		if c.Name != inPod {
			continue
		}
		if c.ResourceClaimName != nil {
			return *c.ResourceClaimName, nil
		}
		for _, s := range p.Status.ResourceClaimStatuses {
			if s.Name != inPod {
				continue
			}
			if s.ResourceClaimName == nil { // the template's claim was not needed
				return "", nil
			}
			return *s.ResourceClaimName, nil
		}
		return "", fmt.Errorf("pod %s/%s: its claim %q has no name yet", p.Namespace, p.Name, inPod)
	}
	return "", fmt.Errorf("pod %s/%s: it has no claim %q", p.Namespace, p.Name, inPod)
}

// Of returns those shares of a claim that a use of it has.
func (u Use) Of(shares []Share) []Share {
	return slices.DeleteFunc(slices.Clone(shares), func(s Share) bool {
		request, _, _ := strings.Cut(s.Request, "/")
		return u.Request != "" && u.Request != request
	})
}

// Lease is what one container gets of one device: all its shares of it together.
type Lease struct {
	Device
	Shares []string `json:"shares"` // their IDs, sorted, each once
	Bytes  uint64   `json:"bytes"`
}

// Key names the lease by its shares. Containers with the same shares of a device have one
// lease together.
func (l Lease) Key() string { return strings.Join(l.Shares, "+") }

// Leases adds up shares by device. A share that is there twice, as a container may name a
// claim and its request, counts once. Devices of which no memory is counted have none; the
// error says that there are such beside others.
func Leases(shares []Share) ([]Lease, error) {
	var list []Lease
	for _, s := range shares {
		if s.Bytes == 0 {
			continue
		}
		i := slices.IndexFunc(list, func(l Lease) bool { return l.Device == s.Device })
		if i < 0 {
			i, list = len(list), append(list, Lease{Device: s.Device})
		}
		if l := &list[i]; !slices.Contains(l.Shares, s.ID) {
			l.Shares = append(l.Shares, s.ID)
			l.Bytes += s.Bytes // at most 2^63 each: a sum beyond 2^64 is no GPU's
		}
	}
	for _, l := range list {
		slices.Sort(l.Shares)
	}
	slices.SortStableFunc(list, func(a, b Lease) int { return cmp.Compare(a.Device.String(), b.Device.String()) })
	for _, s := range shares {
		if len(list) > 0 && !slices.ContainsFunc(list, func(l Lease) bool { return l.Device == s.Device }) {
			return nil, fmt.Errorf("a container has a lease on %s and all of %s, of which no memory is counted: a program in a lease has no other GPU; give them to two containers, or request memory of both", list[0].Device, s.Device)
		}
	}
	return list, nil
}

var uid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// Named reports whether a driver names the CDI devices of claims so that UIDs finds them.
// Of other drivers nothing is known.
func Named(driver string) bool { return driver == NVIDIA || driver == Own }

// The drivers whose CDI devices begin with the claim's UID.
const (
	NVIDIA = "gpu.nvidia.com"
	Own    = "gpu.gpumem.dev"
)

// UIDs returns the UIDs of claims in the names of CDI devices, each once: NVIDIA's DRA
// driver names a device k8s.gpu.nvidia.com/claim=UID-DEVICE. Names of device plugins, such
// as nvidia.com/gpu=GPU-UUID, have none.
func UIDs(cdi []string) []string {
	var list []string
	for _, d := range cdi {
		if _, device, ok := strings.Cut(d, "="); ok {
			if u := uid.FindString(device); u != "" && !slices.Contains(list, u) {
				list = append(list, u)
			}
		}
	}
	return list
}
