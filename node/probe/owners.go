// The leases that processes belong to.

package probe

import (
	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/internal/account"
	"gpumem/node/internal/registry"
	"gpumem/node/share"
)

// owners finds the leases that processes belong to, as the registry counts their
// memory. It reads each process once, so it is good for one reading of the GPU.
type owners struct {
	kin    *account.Ancestry
	leases []share.Entry
	held   map[int]share.Entry // by the processes that hold them
}

// newOwners returns the owners among the leases. A lease whose process has ended owns the
// processes that hold it.
func newOwners(leases []share.Entry) *owners {
	o := &owners{leases: leases, held: map[int]share.Entry{}}
	var counted []account.Lease
	for _, l := range leases {
		counted = append(counted, l.Counted())
		for _, h := range l.HeldBy {
			o.held[h.PID] = l
		}
	}
	o.kin = account.NewAncestry(proc.ReadStat, counted, registry.PIDNamespace())
	return o
}

// leaseOf returns the lease that a process belongs to, of several that its owner has the
// first; ok is false if it belongs to none.
func (o *owners) leaseOf(p device.Process) (l share.Entry, ok bool) {
	if i, ok := o.kin.LeaseOf(p); ok {
		return o.leases[i], true
	}
	l, ok = o.held[p.PID]
	return l, ok
}
