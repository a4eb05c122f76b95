// The account of a lease: package node/ledger's, as this package asks for it.

package shim

import (
	"errors"
	"fmt"
	"strings"

	"gpumem/device"
	"gpumem/node/ledger"
)

// Lease is the [Account] of a process in a lease.
type Lease struct{ *ledger.Member }

// Join joins the ledger of the GPU with a UUID, among files with ':' between. A UUID is
// compared by its digits. There is one without a UUID at most, for the first GPU that
// asks. parts are those of each ledger that this process is in, see [ledger.ParseParts];
// "" means none.
func Join(files, parts, uuid string) (*Lease, error) {
	limits, err := ledger.ParseParts(parts)
	if err != nil {
		return nil, err
	}
	for i, file := range strings.Split(files, ":") {
		l, err := ledger.Open(file)
		if err != nil {
			return nil, err
		}
		var m *ledger.Member
		if id := l.Header().UUID; id == "" || digits(id) == digits(uuid) {
			var in []ledger.Part
			if i < len(limits) {
				in = limits[i]
			}
			m, err = l.Join(in...)
		}
		// A member has the file for itself.
		if err := errors.Join(err, l.Close()); err != nil {
			return nil, err
		}
		if m != nil {
			return &Lease{m}, nil
		}
	}
	return nil, fmt.Errorf("the lease is of another GPU than the one with UUID %s", uuid)
}

// digits returns what is the same in all ways to write a UUID.
func digits(uuid string) string {
	uuid = strings.TrimPrefix(strings.TrimPrefix(uuid, "GPU-"), "MIG-")
	return strings.ToLower(strings.ReplaceAll(uuid, "-", ""))
}

var kinds = [...]ledger.Kind{Held: ledger.Held, Charged: ledger.Charged, Outside: ledger.Outside}

// Take counts bytes more.
func (l *Lease) Take(k Part, bytes uint64) error {
	err := l.Member.Take(kinds[k], bytes)
	if errors.Is(err, ledger.ErrFull) {
		return fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
	}
	return err
}

// Count counts bytes more, also beyond the limit: the driver has granted them.
func (l *Lease) Count(k Part, bytes uint64) { _ = l.Member.Count(kinds[k], bytes) }

// Give counts bytes less.
func (l *Lease) Give(k Part, bytes uint64) { _ = l.Member.Give(kinds[k], bytes) }

// Want announces that this process waits for bytes. The error is device.ErrNotSupported if
// it is the only one of the lease.
func (l *Lease) Want(bytes uint64) error {
	if bytes > 0 && l.Alone() {
		return device.ErrNotSupported
	}
	return l.Member.Want(bytes)
}

// Limit returns the limit of the lease, or of the smallest part that this process is in,
// and what is left.
func (l *Lease) Limit() (limit, left uint64) { return l.Member.Limit(), l.Left() }

// Publish shows what the pool does to gpumem ps.
func (l *Lease) Publish(f Figures) {
	l.Member.Publish(ledger.Figures{InUse: f.InUse, PeakInUse: f.PeakInUse, Refused: f.Refused, DriverCalls: f.DriverCalls})
}

// Refused counts a refused request in the ledger.
func (l *Lease) Refused(bytes uint64) { l.Refuse(bytes) }
