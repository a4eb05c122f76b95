package doctor

// From what fits to a verdict, and what is sure where nothing fits.

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/cause"
	"gpumem/doctor/internal/statement"
)

// noRefusal is what is certain of a log that does not speak of refused memory.
const noRefusal = "no line of the log says that memory was refused"

// noLog is certain where the question is about the machine alone.
const noLog = "no log was read"

// weigh makes a verdict of what fits.
func weigh(e *account.Case) *Diagnosis {
	var sure, maybe []cause.Explanation
	held, refuted := newClaims(e), []int{} // refuted are the lines of what was sure, and is not borne out
	for _, x := range cause.Explain(e) {
		if !slices.ContainsFunc(x.Evidence, func(q Evidence) bool { return q.Line > 0 }) && !e.Binary() {
			continue // nothing is claimed without a line
		}
		x, shows := held.keep(x)
		if !shows {
			if x.Sure && len(sure) == 0 {
				refuted = append(refuted, x.Evidence[0].Line)
			}
			continue
		}
		list := &maybe
		if x.Sure && len(refuted) == 0 {
			list = &sure
		}
		if !slices.ContainsFunc(*list, func(y cause.Explanation) bool { return y.Cause == x.Cause }) {
			*list = append(*list, x)
		}
	}
	d := &Diagnosis{Verdict: VerdictUnknown}
	var all []cause.Explanation
	switch {
	case len(sure) > 0:
		all = d.assert(sure, maybe)
	case len(maybe) > 0:
		all = maybe
		d.ask(e, maybe)
	default:
		d.abstain(e)
		d.Certain = held.certain(d.Certain)
	}
	for _, line := range refuted {
		d.Certain = appendNew(d.Certain, fmt.Sprintf("the numbers at line %d do not agree: nothing is claimed by them", line))
	}
	if d.Verdict == VerdictUnknown && len(d.Certain) == 0 {
		d.Certain = []string{"the log speaks of memory that was refused, and its numbers do not agree"}
	}
	if st := e.About("unread"); st != nil && e.Fatal() {
		d.Certain = append(d.Certain, fmt.Sprintf("the setting of line %d could not be read: it is as if it were not there", st.Line))
	}
	for _, x := range all {
		d.Certain = appendNew(d.Certain, x.Certain...)
		d.Causes = append(d.Causes, Cause{
			ID: CauseID(x.Cause), Title: titles[CauseID(x.Cause)], Rule: x.Argument, Evidence: account.SortEvidence(x.Evidence),
			Settings: x.Remedy.Settings, Steps: x.Remedy.Steps, Check: x.Remedy.Check, Doc: "docs/causes.md#" + x.Cause,
		})
	}
	return d
}

// assert makes the answer where something is sure. What only fits is kept where it competes for
// the same failure.
func (d *Diagnosis) assert(sure, maybe []cause.Explanation) []cause.Explanation {
	top := sure[0]
	d.Verdict, d.Decide = cmp.Or(Verdict(top.Verdict), VerdictCause), top.Decide.String()
	if top.Verdict != "" || top.Alone {
		return sure[:1]
	}
	for _, m := range maybe {
		if !slices.ContainsFunc(sure, func(x cause.Explanation) bool { return x.Cause == m.Cause }) && shareLine(m.Evidence, top.Evidence) {
			sure = append(sure, m)
		}
	}
	return sure
}

// ask makes the answer where several causes fit, or one needs a fact to be sure.
func (d *Diagnosis) ask(e *account.Case, maybe []cause.Explanation) {
	for _, m := range maybe {
		d.Decide = cmp.Or(d.Decide, m.Decide.String())
		for _, n := range m.Needs {
			if !cause.Known(e, n) {
				d.Missing = appendNew(d.Missing, string(n))
			}
		}
	}
	if len(maybe) > 1 && len(d.Missing) == 0 {
		d.Verdict = VerdictEither
		for _, n := range cause.Apart(e, maybe) { // decide tells them apart; so would a state file, if it had these
			d.Missing = append(d.Missing, string(n))
		}
		return
	}
	d.Verdict = VerdictNeeds
	if len(d.Missing) == 0 && d.Decide == "" {
		d.Missing = []string{string(cause.NeedProcesses)}
	}
}

// abstain makes the answer where nothing fits.
func (d *Diagnosis) abstain(e *account.Case) {
	d.Certain = e.Certainty()
	d.Missing, d.Decide = cause.Unknown(e)
	last := e.LastError
	switch {
	case len(d.Certain) > 0:
		return
	case e.Said:
		d.Certain = []string{"the log speaks of memory that was refused, and not of how much or whose"}
	case last == nil && e.End == "":
		d.Certain = []string{noLog}
	default:
		d.Certain = []string{noRefusal}
	}
	switch {
	case last != nil:
		d.Certain = append(d.Certain, fmt.Sprintf("the last failure in it is line %d: %s", last.Line, statement.Clip(last.Quote())))
	case e.End != "":
		d.Certain = append(d.Certain, "it ends with: "+statement.Clip(e.End))
	}
	d.Certain = append(d.Certain, cause.Advised(e)...)
}

// appendNew appends what the list does not have.
func appendNew(list []string, more ...string) []string {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// shareLine reports whether two explanations are about one failure.
func shareLine(a, b []Evidence) bool {
	return slices.ContainsFunc(a, func(x Evidence) bool {
		return x.Line > 0 && slices.ContainsFunc(b, func(y Evidence) bool { return x.Line == y.Line })
	})
}
