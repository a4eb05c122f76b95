// Requests for leases on one GPU.

package share

import (
	"fmt"
	"unicode/utf8"

	"gpumem/device"
	"gpumem/node/internal/account"
	"gpumem/node/internal/registry"
)

// Meter reads the status of a GPU without using it.
type Meter interface {
	// Status returns the GPU's current status. Free and Used both 0 mean that they
	// are unknown, and Notes then have the reason.
	Status() (device.Status, error)
}

// Request describes the leases wanted on one GPU. At most one of Bytes and Share is
// set; neither means all that can be shared, in equal parts with Copies, or all of it for each by Turns.
type Request struct {
	Device  string            // the GPU's key, the same in every process: its UUID, or the file and number of a simulated one; 1 to 512 bytes of text
	Meter   Meter             // of that GPU; nil with Settled and Total: only leases count
	Bytes   uint64            // of each lease
	Share   float64           // of each lease, as a part of what can be shared, above 0 and at most 1
	Copies  int               // leases of that size each, taken together or not at all; 0 means 1, at most 1024
	Settled bool              // believe the first reading of Meter, and refuse at once what does not fit by it
	Total   uint64            // bytes of the GPU, where Meter is nil
	Reserve uint64            // bytes left for the desktop and others, besides what the display needs
	Command []string          // for lists; a long one is cut
	Nested  bool              // inside a lease on that GPU, take a part of it, or be refused at once
	Turns   bool              // share by turns with this user's other leases on that GPU, see the package comment
	Parts   map[string]uint64 // with Nested, by lease ID: the bytes of that lease that this program may use; all of it without an entry
	Wait    func(p Position)  // nil: do not wait. Else called when the place in the queue or the missing memory changes
}

// Position describes a waiting request.
type Position struct {
	Place   int                      // in the queue; 0: next
	Missing uint64                   // bytes that were missing when the GPU was last read; 0: others are before it
	Why     *InsufficientMemoryError // the leases, programs and waiters at that time
}

// checked fills in defaults; the error names a field that makes no sense.
func (q Request) checked() (Request, error) {
	bad := func(format string, args ...any) (Request, error) {
		return q, fmt.Errorf("share: "+format, args...)
	}
	if q.Copies == 0 {
		q.Copies = 1
	}
	switch {
	case q.Device == "" || len(q.Device) > registry.MaxDevice || !utf8.ValidString(q.Device):
		return bad("the device's key %.80q has %d bytes; want 1 to %d of text", q.Device, len(q.Device), registry.MaxDevice)
	case q.Meter == nil && !(q.Settled && q.Total > 0):
		return bad("no meter for %s; want one, or Settled with the Total of the GPU", q.Device)
	case q.Bytes != 0 && q.Share != 0:
		return bad("both bytes and a share are asked for; want one of them")
	case !(q.Share >= 0 && q.Share <= 1): // NaN too
		return bad("share %v; want above 0 and at most 1", q.Share)
	case q.Copies < 0 || q.Copies > maxCopies:
		return bad("%d copies; want 1 to %d", q.Copies, maxCopies)
	}
	return q, nil
}

const maxCopies = 1024

// ask is what the request wants on its GPU, for the account.
func (b *bid) ask() account.Ask {
	return account.Ask{Bytes: b.q.Bytes, Share: b.q.Share, Copies: b.q.Copies, Group: b.group()}
}
