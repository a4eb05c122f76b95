// The clock of turns.

package ledger

import "time"

// Moment is a time in ns on a clock that all processes of a machine share, which nobody sets, and
// which stands still while the machine is suspended: a step of the wall clock would end turns, or
// make all seem to be silent. It begins anew with the machine; 0 means none.
type Moment int64

// Sub returns how long a moment is after another.
func (m Moment) Sub(before Moment) time.Duration { return time.Duration(m - before) }

// Add returns the moment after a duration.
func (m Moment) Add(d time.Duration) Moment { return m + Moment(d) }

// MomentOf returns the moment of a time of this process.
func MomentOf(t time.Time) Moment {
	ago := time.Since(t)
	return Now().Add(-ago)
}
