// Containers that a lease is for, and how they fit into its record.

package share

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Container is one container that a lease is for, as the agent of a Kubernetes node
// knows it.
type Container struct {
	ID        string `json:"id"` // the runtime's, 64 hex digits
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns NAMESPACE/POD/NAME; the first 12 digits of the ID where the record had no
// room for the names.
func (c Container) String() string {
	if c == c.bare() {
		return c.ID[:min(12, len(c.ID))]
	}
	return c.Namespace + "/" + c.Pod + "/" + c.Name
}

// bare is the container without its names.
func (c Container) bare() Container { return Container{ID: c.ID} }

// length is the number of bytes that the container has in a record.
func (c Container) length() int {
	text, _ := json.Marshal(c) // text never fails
	return len(text)
}

const (
	idDigits = 64 // of a container's ID
	// mostContainers is more than a record can have.
	mostContainers = fileSize / idDigits
	maxLedger      = 1024 // bytes of a path; the record must have room for it
)

// isContainerID reports whether an ID is one that a container runtime makes.
func isContainerID(id string) bool {
	return len(id) == idDigits && strings.Trim(id, "0123456789abcdef") == ""
}

// use returns the record with these containers and this ledger in the place of its own.
func (r record) use(containers []Container, ledger string) (record, error) {
	for _, c := range containers {
		if !isContainerID(c.ID) {
			return r, fmt.Errorf("lease %s: container %.80q (%s/%s): its id has not %d hex digits", r.ID, c.ID, c.Namespace, c.Pod, idDigits)
		}
	}
	if ledger != "" && (!filepath.IsAbs(ledger) || len(ledger) > maxLedger) {
		return r, fmt.Errorf("lease %s: ledger %.80q has %d bytes; want an absolute path of at most %d", r.ID, ledger, len(ledger), maxLedger)
	}
	least := r
	least.Command, least.Containers, least.More, least.Ledger = nil, nil, 1<<31, ledger
	r.Containers, r.More, r.Ledger = slices.Clone(containers), 0, ledger
	if len(least.trimmed()) > fileSize-headerSize {
		return r, fmt.Errorf("lease %s: its record has no room for the ledger's path %.80q; want a shorter one", r.ID, ledger)
	}
	return r, nil
}

// drop leaves out of a record that is some bytes too large what is missed least: the names
// of the last containers, then half of the command, then the last containers, which are
// counted. What it leaves may still be too large. It reports false when nothing is left to
// drop.
func (r *record) drop(excess int) bool {
	if extra := len(r.Containers) - mostContainers; extra > 0 {
		r.Containers, r.More = r.Containers[:mostContainers], r.More+extra
		return true
	}
	named := slices.Clone(r.Containers)
	saved := 0
	for i, c := range slices.Backward(named) {
		if c != c.bare() && saved < excess {
			saved += c.length() - c.bare().length()
			named[i] = c.bare()
		}
	}
	switch n := len(r.Containers); {
	case saved > 0:
		r.Containers = named
	case len(r.Command) > 0: // bytes that JSON writes as six
		r.Command = r.Command[:len(r.Command)/2]
	case n > 0:
		cut := min(n, max(1, excess/(r.Containers[n-1].length()+1)))
		r.Containers, r.More = r.Containers[:n-cut], r.More+cut
	default:
		return false
	}
	return true
}

// containerOf returns the lease whose container a process is in, by the lines of its
// /proc/PID/cgroup. Of containers one inside the other it is the innermost.
func containerOf(cgroup string, leases map[string]string) (lease string, ok bool) {
	for line := range strings.Lines(cgroup) {
		for part := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), "/") {
			for at := 0; at+idDigits <= len(part); at++ {
				if id, found := leases[part[at:at+idDigits]]; found {
					lease, ok = id, true
				}
			}
		}
	}
	return lease, ok
}
