package doctor

// From what the table finds to a verdict, and what is sure where nothing is found.

import (
	"cmp"
	"fmt"
	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
	"slices"
)

// noRefusal is what is certain of a log that does not speak of refused memory.
const noRefusal = "no line of the log says that memory was refused"

// weigh makes a verdict of what the arguments find.
func weigh(e *account.Facts) *Diagnosis {
	var sure, maybe []account.Finding
	for _, f := range account.Table.Walk(e) {
		if !slices.ContainsFunc(f.Facts, func(q statement.Evidence) bool { return q.Line > 0 }) && !e.Binary() {
			continue // nothing is claimed without a line
		}
		list := &maybe
		if f.Sure {
			list = &sure
		}
		if i := slices.IndexFunc(*list, func(g account.Finding) bool { return g.Cause == f.Cause }); i < 0 {
			*list = append(*list, f)
		}
	}
	d := &Diagnosis{Verdict: VerdictUnknown}
	all := sure
	switch {
	case len(sure) > 0:
		d.Verdict = VerdictCause
		if v := sure[0].Verdict; v != "" || sure[0].Alone {
			d.Verdict = cmp.Or(Verdict(v), VerdictCause)
			all = sure[:1]
		}
		// What only fits is kept where it competes for the same failure.
		for _, m := range maybe {
			if d.Verdict == VerdictCause && !sure[0].Alone && !slices.ContainsFunc(all, func(f account.Finding) bool { return f.Cause == m.Cause }) && shareLine(m.Facts, sure[0].Facts) {
				all = append(all, m)
			}
		}
		d.Decide = sure[0].Decide
	case len(maybe) > 0:
		all = maybe
		for _, m := range maybe {
			d.Decide = cmp.Or(d.Decide, m.Decide)
			for _, n := range m.Missing {
				if !e.Known(n) && !slices.Contains(d.Missing, account.Table.Needs[n]) {
					d.Missing = append(d.Missing, account.Table.Needs[n])
				}
			}
		}
		d.Verdict = VerdictEither
		if len(maybe) == 1 || len(d.Missing) > 0 {
			d.Verdict = VerdictNeeds
			if len(d.Missing) == 0 && d.Decide == "" {
				d.Missing = []string{account.Table.Needs["processes"]}
			}
			break
		}
		// Decide tells them apart; so would a state file, if it had these.
		for _, n := range e.Apart(maybe) {
			d.Missing = append(d.Missing, account.Table.Needs[n])
		}
	default:
		d.Certain = e.Certainty()
		for _, n := range e.Unknowns() {
			d.Missing = append(d.Missing, account.Table.Needs[n])
		}
		if len(d.Certain) == 0 && !e.Said {
			d.Certain = []string{noRefusal}
			if e.End != "" {
				d.Certain = append(d.Certain, "it ends with: "+statement.Clip(e.End))
			}
		} else if len(d.Certain) == 0 {
			d.Certain = []string{"the log speaks of memory that was refused, and not of how much or whose"}
		}
		if len(d.Missing) == 0 {
			d.Missing = []string{"the whole log: all that the program printed, on stderr as well"}
		}
		if e.Said {
			d.Decide = e.Next()
		}
	}
	if st := e.About("unread"); st != nil && e.Fatal() {
		d.Certain = append(d.Certain, fmt.Sprintf("the setting of line %d could not be read: it is as if it were not there", st.Line))
	}
	for _, f := range all {
		for _, c := range f.Certain {
			if !slices.Contains(d.Certain, c) {
				d.Certain = append(d.Certain, c)
			}
		}
		c := remedyFor(f)
		d.Causes = append(d.Causes, Cause{
			ID: CauseID(f.Cause), Title: titles[CauseID(f.Cause)], Rule: f.Name, Evidence: account.SortEvidence(f.Facts),
			Settings: c.Settings, Steps: c.Steps, Check: c.Check, Doc: "docs/causes.md#" + f.Cause,
		})
	}
	return d
}

// shareLine reports whether two findings are about one failure.
func shareLine(a, b []statement.Evidence) bool {
	return slices.ContainsFunc(a, func(x statement.Evidence) bool {
		return x.Line > 0 && slices.ContainsFunc(b, func(y statement.Evidence) bool { return x.Line == y.Line })
	})
}
