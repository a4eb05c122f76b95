// When readings of a GPU can be believed.

package account

import "time"

const (
	// Apart is the time between two readings that must agree, and settling is the
	// most that this may take.
	Apart    = 50 * time.Millisecond
	settling = 2 * time.Second
)

// Recently is how long it may take until memory of an ended program is free, or
// a new program has allocated what it needs. Tests shorten it.
var Recently = time.Second

// IsRecent reports whether a time is within the last second. A clock that was set does not
// make that last longer.
func IsRecent(t time.Time) bool { return time.Since(t).Abs() < Recently }

// Settle watches whether what can be shared moves.
type Settle struct {
	begun, last time.Time
	shareable   uint64
}

// Done reports whether the present reading can be believed.
func (s *Settle) Done(now time.Time, recent bool, shareable uint64) bool {
	if !recent {
		*s = Settle{}
		return true
	}
	if s.begun.IsZero() {
		*s = Settle{now, now, shareable}
		return false
	}
	if shareable != s.shareable {
		s.last, s.shareable = now, shareable
	}
	return now.Sub(s.last) >= Apart || s.Over(now)
}

// Over reports whether it has moved for so long that it is believed anyway. The clock
// starts with the first call.
func (s *Settle) Over(now time.Time) bool {
	if s.begun.IsZero() {
		s.begun, s.last = now, now
	}
	return now.Sub(s.begun) >= settling
}
