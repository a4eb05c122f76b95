package doctor

// Diagnosis, the result.

import (
	"encoding/json"
	"gpumem/doctor/internal/cause"
	"gpumem/doctor/internal/statement"

	"gpumem/record/dump"
)

// Verdict is what kind of answer a diagnosis is.
type Verdict string

// The verdicts. Only VerdictCause, VerdictNonfatal and VerdictNotMemory assert
// something of the failure itself.
const (
	VerdictCause     Verdict = "cause"      // the evidence shows one cause, Causes[0]
	VerdictEither    Verdict = "either"     // several fit; Decide tells them apart
	VerdictNeeds     Verdict = "needs"      // a fact in Missing is wanted; Causes are candidates
	VerdictNonfatal  Verdict = "nonfatal"   // a warning, not the failure
	VerdictNotMemory Verdict = "not_memory" // words or numbers rule memory out
	VerdictAccount   Verdict = "account"    // no failure; Account says where the memory is
	VerdictUnknown   Verdict = "unknown"    // nothing in reach decides; Certain is what is sure
)

// Diagnosis is why a program failed, as far as its log and the machine's
// state tell.
type Diagnosis struct {
	Verdict Verdict `json:"verdict"`
	// Causes are the likely ones, the most likely first; each quotes at least
	// one line of the log. Empty for VerdictUnknown.
	Causes []Cause `json:"causes"`
	// Missing are facts that would decide, each beginning with its name in a
	// state file, such as "devices.processes: who holds memory on the GPU".
	Missing []string `json:"missing"`
	// Decide is one command that would tell, or empty.
	Decide string `json:"decide"`
	// Certain is what is sure in any case, a sentence each.
	Certain []string `json:"certain"`
	// Account is where the memory is, if the log or the state says: always with VerdictAccount,
	// and beside another verdict if it has two rows at least.
	Account *Account `json:"account,omitempty"`
	// Settings are those in the environment of the state's process, a sentence each; first those that
	// do not do what they seem to.
	Settings []string `json:"settings,omitempty"`

	// Dump is the pool's report in the log, and nil without one.
	Dump *dump.Dump `json:"-"`
	// DumpSource is the file that Dump is from, if that was taken beside the log.
	DumpSource string `json:"-"`
	// Program is what the compiler said of the program's buffers, and nil
	// where it said nothing.
	Program *dump.Program `json:"-"`

	windows bool // the program ran there, and not in WSL
}

// Cause is one reason why memory ran out, or why it only seems so.
type Cause struct {
	ID       CauseID    `json:"id"`
	Title    string     `json:"title"`
	Rule     string     `json:"rule"` // the argument that found it, in a few words
	Evidence []Evidence `json:"evidence"`
	Settings []Advice   `json:"settings"`
	Steps    []string   `json:"steps"`
	// Check is the command that shows whether the settings took effect; it may
	// be empty.
	Check string `json:"check,omitempty"`
	Doc   string `json:"doc"` // its page: docs/causes.md#ID
}

// Evidence is a line that shows something.
type Evidence = statement.Evidence

// Advice is one setting to make. An empty Value means to unset it.
type Advice = cause.Advice

// MarshalJSON writes empty lists as [], which scripts can walk.
func (d Diagnosis) MarshalJSON() ([]byte, error) {
	type plain Diagnosis
	p := plain(d)
	p.Causes = append([]Cause{}, d.Causes...)
	for i, c := range p.Causes {
		p.Causes[i].Evidence = append([]Evidence{}, c.Evidence...)
		p.Causes[i].Settings = append([]Advice{}, c.Settings...)
		p.Causes[i].Steps = append([]string{}, c.Steps...)
	}
	p.Missing = append([]string{}, d.Missing...)
	p.Certain = append([]string{}, d.Certain...)
	return json.Marshal(p)
}
