package doctor

// From a log to a verdict: the log is read once, the facts go to the rules, and
// what the rules find is weighed.
//
// A walk. The log of a JAX program ends with
//
//	1  E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR
//	2  E cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.
//
// Read yields a CuDNNHandle and a DeviceFree. They become evidence. The rule
// "another JAX on the GPU" sees a library without room (205 MiB is less than
// the 520 MiB that cuDNN takes) and asks who else is on the GPU. Nothing tells:
// the rule says that its cause fits and that devices.processes would decide.
// So do "the pool leaves a library too little" and "others leave a library too
// little". No rule is sure, so that the verdict is needs, the three causes are
// candidates, and the missing fact is named once. With a state file that lists a
// second JAX process the first rule is sure, the others do not apply, and the
// verdict is cause.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"gpumem/dump"
	"gpumem/machine"
)

// Diagnose says why the program of this log failed. The state is what is known
// of the machine; nil: nothing. The log is read once, to its end, and may be of
// any size, in UTF-8 or, with a byte order mark, in UTF-16. It may also be a binary dump of a pool (TF_BFC_MEMORY_DUMP). The
// error is that of reading it.
func Diagnose(log io.Reader, state *machine.Snapshot) (*Diagnosis, error) {
	e := newEvidence(state)
	if err := e.read(log); err != nil {
		return nil, err
	}
	d := e.weigh()
	d.Dump, d.Program = e.dump, e.program
	return d, nil
}

// read reads the log for facts, for a pool's dump and for a program's buffers,
// all at once.
func (e *evidence) read(log io.Reader) error {
	type result[T any] struct {
		value *T
		err   error
	}
	dumpIn, dumpOut := io.Pipe()
	programIn, programOut := io.Pipe()
	dumps, programs := make(chan result[dump.Dump], 1), make(chan result[dump.Program], 1)
	go func() {
		d, err := dump.Read(dumpIn)
		dumps <- result[dump.Dump]{d, err}
		dumpIn.CloseWithError(err) // so that nobody writes to a reader that left
	}()
	go func() {
		p, err := dump.ReadProgram(programIn)
		programs <- result[dump.Program]{p, err}
		programIn.CloseWithError(err)
	}()
	err := Read(io.TeeReader(decoded(log), io.MultiWriter(quiet{dumpOut}, quiet{programOut})), e.add)
	dumpOut.CloseWithError(err) // nil is the end
	programOut.CloseWithError(err)
	d, p := <-dumps, <-programs
	if err != nil {
		return err
	}
	if d.err == nil {
		e.dump = d.value
	} else if !errors.Is(d.err, dump.ErrNone) {
		return d.err
	}
	if p.err == nil {
		e.program = p.value
	} else if !errors.Is(p.err, dump.ErrNoProgram) {
		return p.err
	}
	return nil
}

// quiet is a writer whose reader may leave early.
type quiet struct{ w io.Writer }

func (q quiet) Write(p []byte) (int, error) {
	_, _ = q.w.Write(p)
	return len(p), nil
}

// weigh asks all rules and makes a verdict of what they find.
func (e *evidence) weigh() *Diagnosis {
	type found struct {
		*rule
		*finding
	}
	var sure, maybe []found
	for i := range book {
		r := &book[i]
		f := r.test(e)
		if f == nil || !slices.ContainsFunc(f.evidence, func(q Evidence) bool { return q.Line > 0 }) && !e.binary() {
			continue // nothing is claimed without a line
		}
		list := &maybe
		if f.sure {
			list = &sure
		}
		if !slices.ContainsFunc(*list, func(g found) bool { return g.cause == r.cause }) {
			*list = append(*list, found{r, f})
		}
	}
	d := &Diagnosis{Verdict: VerdictUnknown}
	all := sure
	switch {
	case len(sure) > 0:
		d.Verdict = VerdictCause
		if v := sure[0].verdict; v != "" || sure[0].alone {
			d.Verdict = cmp.Or(v, VerdictCause)
			all = sure[:1]
		}
		// What only fits is kept where it competes for the same failure.
		for _, m := range maybe {
			if d.Verdict == VerdictCause && !sure[0].alone && !slices.ContainsFunc(all, func(f found) bool { return f.cause == m.cause }) && shareLine(m.evidence, sure[0].evidence) {
				all = append(all, m)
			}
		}
		d.Decide = sure[0].decide
	case len(maybe) > 0:
		all = maybe
		for _, m := range maybe {
			d.Decide = cmp.Or(d.Decide, m.decide)
			for _, n := range m.missing {
				if !e.known(n) && !slices.Contains(d.Missing, string(n)) {
					d.Missing = append(d.Missing, string(n))
				}
			}
		}
		d.Verdict = VerdictEither
		if len(maybe) == 1 || len(d.Missing) > 0 {
			d.Verdict = VerdictNeeds
			break
		}
		// Decide tells them apart; so would a state file, if it had these.
		for _, n := range e.apart() {
			d.Missing = append(d.Missing, string(n))
		}
	default:
		d.Certain = e.certainty()
		for _, n := range e.unknowns() {
			d.Missing = append(d.Missing, string(n))
		}
		if len(d.Certain) == 0 {
			d.Certain = []string{"no line of the log says that memory was refused"}
		}
	}
	if e.fails(failures...) {
		if f := e.pick(Setting, func(f *Fact) bool { return f.Nonfatal }); f != nil {
			d.Certain = append(d.Certain, fmt.Sprintf("the setting of line %d could not be read: it is as if it were not there", f.Line))
		}
	}
	for _, f := range all {
		for _, c := range f.certain {
			if !slices.Contains(d.Certain, c) {
				d.Certain = append(d.Certain, c)
			}
		}
		d.Causes = append(d.Causes, Cause{
			ID: f.cause, Title: titles[f.cause], Rule: f.name, Evidence: sortEvidence(f.evidence),
			Settings: f.cure.settings, Steps: f.cure.steps, Check: f.cure.check, Source: f.source, Doc: "docs/causes.md#" + string(f.cause),
		})
	}
	return d
}

// apart are the facts of a state that tell apart causes with the same text.
func (e *evidence) apart() (list []missing) {
	if !e.known(needProcesses) {
		list = append(list, needProcesses)
	}
	if h := e.handle(); h != nil && !h.torch && !h.cupy && !e.known(needFrameworks) {
		list = append(list, needFrameworks)
	}
	return list
}

// known says whether a fact that would decide is known already.
func (e *evidence) known(m missing) bool {
	switch m {
	case needTotal:
		return e.total().bytes > 0
	case needProcesses:
		_, told := e.others()
		return told
	case needFrameworks:
		return e.frameworksTold()
	}
	return false
}

// binary says whether the log was a binary dump, which has no lines.
func (e *evidence) binary() bool { return e.dump != nil && e.dump.Line == 0 }

// shareLine says whether two findings are about one failure.
func shareLine(a, b []Evidence) bool {
	return slices.ContainsFunc(a, func(x Evidence) bool {
		return x.Line > 0 && slices.ContainsFunc(b, func(y Evidence) bool { return x.Line == y.Line })
	})
}
