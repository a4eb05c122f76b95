// The result of a reading: what a release of a framework makes of an
// environment, with notes for the user.

package policy

import "fmt"

// A Reading is what a release of a framework makes of an environment.
type Reading struct {
	// Policy is what is built.
	Policy Policy
	// Pools returns all the pools that the framework makes for a device, the main
	// one first; nil if the policy is all there is.
	Pools func(Device) []Pool
	// NoRemat reports that XLA's rematerialization pass is switched off.
	NoRemat bool
	// Hidden reports that the program sees no GPU, so that nothing is built.
	Hidden bool
	Notes
}

// Notes are what a reader finds out about the variables of an environment.
type Notes struct {
	Env      Environment
	Settings []Setting
	Warnings []Warning
}

// Effect notes what a variable does.
func (n *Notes) Effect(name, format string, args ...any) {
	n.Settings = append(n.Settings, Setting{name, n.Env.Get(name), fmt.Sprintf(format, args...)})
}

// Warn notes what a variable does not do, and what to set instead; see [Warning].
func (n *Notes) Warn(name, fix, format string, args ...any) {
	n.Warnings = append(n.Warnings, Warning{name, fmt.Sprintf(format, args...), fix})
}

// A Pool is one of those that a framework makes for a device.
type Pool struct {
	Name  string  `json:"name"`  // as the framework's logs have it
	Space string  `json:"space"` // device, collective (memory that GPUs exchange), or host (pinned)
	Limit *uint64 `json:"limit_bytes"`
	First uint64  `json:"taken_first_bytes"` // with the first request, or as Text says
	Text  string  `json:"text"`              // how it grows, one sentence
}
