//go:build !linux

package ledger

import "time"

var start = time.Now()

// Now returns the moment that it is. No other process has this clock: ledgers are for Linux.
func Now() Moment { return Moment(time.Since(start)) + 1 }
