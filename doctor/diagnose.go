package doctor

import "io"

// Diagnose says why the program of this log failed. The state is what is known
// of the machine; nil: nothing. The log is read once, to its end. The error is
// that of reading it.
func Diagnose(log io.Reader, state *State) (*Diagnosis, error) {
	return &Diagnosis{Verdict: VerdictUnknown}, Read(log, func(Fact) {})
}
