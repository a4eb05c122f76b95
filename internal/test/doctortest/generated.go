// Generated messages: classes of failures, each with messages that are computed
// from drawn numbers. See balance.go for how the numbers make the label.
package doctortest

import "slices"

// A Sample is one generated message and what its numbers decide.
type Sample struct {
	Class  string // framework/what
	Log    string
	State  string   // JSON of the machine's state; "" none
	Causes []string // each is right as the first one; empty if none can be named
	// Open is set where the numbers leave more than one cause: a verdict that is
	// sure of one is wrong, even if it is among Causes.
	Open bool
	// Asks is set where a verdict that asks for a fact is right, too, if it has
	// one of Causes first; and where memory is not to blame, "unknown".
	Asks bool
	Why  string
}

// Innocent reports whether memory is not to blame, so that no memory setting
// may be proposed.
func (s Sample) Innocent() bool {
	return !s.Open && len(s.Causes) > 0 && !slices.ContainsFunc(s.Causes, func(id string) bool { return !Innocent(id) })
}

// Innocent reports whether a cause has nothing to do with the amount of memory.
func Innocent(id string) bool {
	return slices.Contains([]string{idNotMemory, idMismatch, "nonfatal_warning", "bad_setting", "device_busy", "vmm_unsupported"}, id)
}

// A class makes the messages of one name.
type class struct {
	name string
	make func(draw) Sample
}

// classes are all of them, by framework.
func classes() []class {
	return slices.Concat(torchClasses(), xlaClasses(), libraryClasses(), engineClasses(), hostClasses(), plainClasses())
}

// Samples returns n messages of each class, always the same ones.
func Samples(n int) []Sample {
	var out []Sample
	for _, c := range classes() {
		for i := range n {
			s := c.make(newDraw(c.name, i))
			s.Class = c.name
			out = append(out, s)
		}
	}
	return out
}
