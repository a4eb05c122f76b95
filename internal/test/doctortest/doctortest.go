// Package doctortest makes logs of programs that ran out of GPU memory, or that
// only look so, together with what a diagnosis of each must say.
//
// No log is copied. Each is printed from the known shape of its messages at
// sizes that are computed, so that a rule fitted to one file fails here: the
// same words occur with numbers that show different causes.
package doctortest

import "fmt"

// Verdicts of a diagnosis.
const (
	VerdictCause     = "cause"      // one cause is shown by the evidence
	VerdictEither    = "either"     // several fit, and an experiment or a look at the machine decides
	VerdictNeeds     = "needs"      // one fact of a state file decides, and it was not given
	VerdictNonfatal  = "nonfatal"   // a warning, not the failure
	VerdictNotMemory = "not_memory" // the numbers or the words rule memory out
	VerdictUnknown   = "unknown"    // nothing in reach decides
)

// Facts that Missing can name: the fields of a state file.
const (
	FactProcesses        = "processes"
	FactTotal            = "total_bytes"
	FactFrameworks       = "frameworks"
	FactFraction         = "per_process_memory_fraction"
	FactBackendRecreated = "backend_recreated"
)

// A Case is one log and what a diagnosis of it must say.
type Case struct {
	Name    string // unique; the name of the base case, then "/" and the variant
	Log     string // the text
	State   string // JSON of the machine's state; "" none
	Verdict string // one of the Verdict constants
	// Causes are ids of causes. When Verdict is cause, nonfatal or not_memory it
	// is one. When it is either, both must be named. When it is needs, they are
	// the candidates: none may be asserted, and nothing in the text orders them.
	// It is empty when Verdict is unknown.
	Causes  []string
	Missing []string // facts that must be named when Verdict is needs, else empty
	// NoMemorySetting says that no memory setting may be proposed. It is false
	// for bad_setting, whose cure is to mend the wrong variable.
	NoMemorySetting bool
	Why             string // one sentence: the arithmetic that decides
	// Quotes are the pieces of the log, each within one line, that decide. A
	// diagnosis that names a cause must quote a line with one of them.
	Quotes []string
}

// Cases gives every base case and its variants, always the same and in the same order.
func Cases() []Case {
	base := Base()
	cases := make([]Case, 0, 8*len(base))
	for i, c := range base {
		cases = append(cases, c, Colour(c), CRLF(c), Prefixed(c, prefixes[i%len(prefixes)]),
			Truncated(c, true), Truncated(c, false), Interleaved(c))
		if lineCount(c.Log) <= oneLineLimit {
			cases = append(cases, OneLine(c))
		}
	}
	return cases
}

// Base gives the cases as the programs print them, without the variants.
func Base() []Case {
	var cases []Case
	for _, group := range []func() []Case{
		libraryCases, processCases, poolCases, shapeCases, dumpCases, programCases, hostCases,
		torchCases, torchOldCases, vllmCases, otherCases, limiterCases,
		leakCases, warningCases, settingCases, notMemoryCases, unknownCases,
	} {
		cases = append(cases, group()...)
	}
	return cases
}

// cause gives a case in which the text alone shows the cause id.
func cause(id, name, log, why string, quotes ...string) Case {
	return Case{Name: id + "/" + name, Log: log, Verdict: VerdictCause, Causes: []string{id}, Why: why, Quotes: quotes}
}

// mend gives a case in which the text shows a cause that no memory setting cures.
func mend(id, name, log, why string, quotes ...string) Case {
	c := cause(id, name, log, why, quotes...)
	c.NoMemorySetting = true
	return c
}

// verdict gives a case of another verdict than cause.
func verdict(v, name, log, why string, causes []string, quotes ...string) Case {
	return Case{Name: v + "/" + name, Log: log, Verdict: v, Causes: causes, Why: why, Quotes: quotes,
		NoMemorySetting: v == VerdictNonfatal || v == VerdictNotMemory}
}

// withState gives c with the state that settles it, and c without, which needs
// the missing fact. others are causes that fit as well while it is missing.
func withState(c Case, s state, missing string, others ...string) []Case {
	bare := c
	bare.Name += "-no-state"
	bare.Verdict = VerdictNeeds
	bare.Causes = append(append([]string{}, c.Causes...), others...)
	bare.Missing = []string{missing}
	bare.Why = fmt.Sprintf("without the state %s is not known, and it is what decides", missing)
	c.State = s.json()
	return []Case{c, bare}
}
