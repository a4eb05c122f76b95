package shim

// Waiting reports whether a refused request waits for a release of another thread.
func (c *Charges) Waiting() bool { return c.under.waiting.Load() }

// Attempts is how often a request that is refused is tried while memory is being released.
const Attempts = attempts
