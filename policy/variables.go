// Every variable that has to do with GPU memory, and those of the same
// frameworks that look like one. The documentation is made of this table.

package policy

// About is what a variable is about.
type About uint8

// What variables are about.
const (
	AboutMemory  About = iota // GPU memory
	AboutDevices              // which GPUs are seen
	AboutHost                 // host memory for transfers
	AboutOther                // neither: here so that it is not taken for a typo, or since it can raise
)

// A Variable is one that a framework reads.
type Variable struct {
	Name    string
	Readers []string // names of the frameworks that read it, as in [Framework]
	About   About
	Since   string // first release that reads it, where that is not the oldest known
	Values  string // what it takes
	Default string // what holds without it
	Effect  string // what it does
	Not     string // what it does not do, though it may seem to
	Source  string // where that is known from
}
