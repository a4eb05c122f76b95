package shim

import "time"

// Waiting reports whether a refused request waits for a release of another thread.
func (c *Charges) Waiting() bool { return c.under.waiting.Load() }

// Attempts is how often a request that is refused is tried while memory is being released.
const Attempts = attempts

// NewDrainer returns an agent that does nothing by itself.
func NewDrainer(g Gate) *Agent { return &Agent{AgentConfig: AgentConfig{Gate: g}} }

// Drain waits for the work of a pool.
func (a *Agent) Drain(p *Pool) error { return a.drain(p, time.Now().Add(drainWithin)) }

// SetPassesIn sets how long a request waits for what may pass, and returns what sets it back. No agent runs.
func SetPassesIn(d time.Duration) (back func()) {
	before := passesIn
	passesIn = d
	return func() { passesIn = before }
}
