//go:build linux

package main

import "time"

// Limits inside of a check, which end before the check's own: what hangs is then reported with its name.

// margin is what a check keeps of its limit: its process starts after the limit's begin, a killed program's
// output is waited for (exec), and then it reports.
const margin = 3 * time.Second

// readyIn is how long a program may take from its start until it is ready: imports and compilation, with
// others beside it.
const readyIn = 45 * time.Second

// left returns what is left of the check's limit, less margin.
func (c *call) left() time.Duration { return max(time.Until(c.until)-margin, time.Millisecond) }

// atMost returns limit, or what is left of the check's if that is less.
func (c *call) atMost(limit time.Duration) time.Duration { return min(limit, c.left()) }

// ready waits until a program is ready, which it says with v. Programs that start together have the same
// time to get there, and so one that hangs takes none of the others'.
func (c *call) ready(t *talker, v any) error {
	return t.answer("ready", v, c.atMost(max(readyIn-time.Since(t.begun), time.Second)))
}
