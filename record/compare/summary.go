package compare

// The answer in sentences.

import (
	"fmt"
	"slices"

	"gpumem/internal/report"
	"gpumem/record/leaks"
	"gpumem/size"
)

// summary returns what differs, in a few sentences: the peaks of the pool in which they
// are furthest apart, its largest row, and what leaks.
func summary(rep *Report) []string {
	if len(rep.Pools) == 0 {
		return []string{"Nothing to compare: no memory is allocated in either recording."}
	}
	if rep.SameFile {
		return []string{fmt.Sprintf("No difference: both are one file, %s.", rep.Before.Source)}
	}
	most := rep.Pools[0]
	for _, p := range rep.Pools {
		if abs(p.PeakDifference) > abs(most.PeakDifference) {
			most = p
		}
	}
	out := []string{rep.peaks(most)}
	if s := largest(most); s != "" {
		out = append(out, s)
	}
	return append(out, leakSentences(rep)...)
}

// peaks returns how far the peaks of a pool are apart.
func (rep *Report) peaks(p *poolReport) string {
	in := ""
	if len(rep.Pools) > 1 {
		in = " in pool " + p.Name
	}
	switch {
	case p.After == nil:
		return fmt.Sprintf("Pool %s is gone; its peak was %s.", p.Name, size.Format(p.Before.Peak))
	case p.Before == nil:
		return fmt.Sprintf("Pool %s is new, with a peak of %s.", p.Name, size.Format(p.After.Peak))
	case p.PeakDifference == 0:
		all := len(rep.Pools) > 1
		if slices.ContainsFunc(p.AtPeak.Rows, func(r *row) bool { return r.Difference != 0 }) {
			return fmt.Sprintf("The peaks are equal%s, %s, but other memory is live there.", in, size.Format(p.After.Peak))
		}
		if all {
			return "The peaks do not differ in any pool."
		}
		return fmt.Sprintf("The peaks do not differ: %s, of the same places.", size.Format(p.After.Peak))
	}
	verb := "grew"
	if p.PeakDifference < 0 {
		verb = "fell"
	}
	part := ""
	if p.Before.Peak > 0 {
		part = " (" + percent(p.PeakDifference, p.Before.Peak) + ")"
	}
	return fmt.Sprintf("The peak%s %s by %s%s, from %s to %s.", in, verb, size.Format(abs(p.PeakDifference)), part, size.Format(p.Before.Peak), size.Format(p.After.Peak))
}

// largest returns the sentence about the largest difference of a pool in the direction of
// its peaks; "" if there is none.
func largest(p *poolReport) string {
	if p.Before == nil || p.After == nil {
		return ""
	}
	k := slices.IndexFunc(p.AtPeak.Rows, func(r *row) bool {
		return r.Difference != 0 && (r.Difference > 0) == (p.PeakDifference >= 0)
	})
	if k < 0 {
		return ""
	}
	r := p.AtPeak.Rows[k]
	only := ""
	switch r.How {
	case OnlyBefore:
		only = ", which is gone"
	case OnlyAfter:
		only = ", which is new"
	}
	what := "part of it"
	if p.PeakDifference == 0 {
		what = "difference"
	}
	return fmt.Sprintf("The largest %s is %s in %s%s.", what, signedBytes(r.Difference), report.OneLine(r.Where), only)
}

// leakSentences returns what leaks, one sentence for each recording; none if neither
// recording shows a leak, and none about one of an instant.
func leakSentences(rep *Report) []string {
	both := []*leaks.Report{rep.Leaks.Before, rep.Leaks.After}
	if !slices.ContainsFunc(both, func(r *leaks.Report) bool { return r.Verdict == leaks.Leak }) {
		return nil
	}
	var out []string
	for i, r := range both {
		name := []string{"Before", "After"}[i]
		switch r.Verdict {
		case leaks.Leak:
			p := r.Leaks[0]
			rate, more := "", ""
			if p.BytesPerStep != nil {
				rate = fmt.Sprintf(", %s in each step", size.Format(*p.BytesPerStep))
			}
			if n := len(r.Leaks) - 1; n > 0 {
				more = fmt.Sprintf(", and in %s more", report.Counted(uint64(n), "place"))
			}
			out = append(out, fmt.Sprintf("%s: a leak in %s%s, %s at the end%s.", name, report.OneLine(p.Site), rate, size.Format(p.Bytes), more))
		case leaks.Growth:
			out = append(out, name+": it grows to the end.")
		case leaks.TooShort:
			out = append(out, name+": too short to show a leak.")
		default:
			out = append(out, name+": no leak.")
		}
	}
	return out
}

// signedBytes returns a difference of bytes: "+1.50 GiB", "-512 B", "0".
func signedBytes(n int64) string { return signed(n, size.Format) }

// signedCount returns a difference of numbers: "+1,234", "0".
func signedCount(n int64) string { return signed(n, report.Count) }

func signed(n int64, format func(uint64) string) string {
	switch {
	case n > 0:
		return "+" + format(uint64(n))
	case n < 0:
		return "-" + format(abs(n))
	}
	return "0"
}

// percent returns a difference as a part of what it is from: "+12.5 %", and "21 times as much"
// where a percentage says little.
func percent(n int64, of uint64) string {
	if of > 0 && n > 0 && uint64(n)/of >= 10 {
		return report.Count(uint64(n)/of+1) + " times as much"
	}
	return fmt.Sprintf("%+.3g %%", 100*float64(n)/float64(of))
}
