// The answer at a glance: one sentence.

package explain

import (
	"fmt"
	"strings"

	"gpumem/internal/report"
	"gpumem/policy"
	"gpumem/size"
)

// Release returns the framework and its release, such as "jax 0.4.30".
func (a Answer) Release() string { return strings.TrimSuffix(a.Framework+" "+a.Version, " ") }

// AtOnce reports whether memory is taken before the program needs it.
func (a Answer) AtOnce() bool {
	return a.Gets > 0 && (a.Preallocate || a.Policy.Kind == policy.Async)
}

// Summary returns the answer in one or two sentences: what is taken, and when.
func (a Answer) Summary() string {
	if len(a.Errors) > 0 {
		e := a.Errors[0]
		if e.CPU {
			return fmt.Sprintf("%s: %s.", e.Text, e.Then)
		}
		return fmt.Sprintf("%s is refused: %s.", e.Name, e.Then)
	}
	if a.hidden {
		return "Sees no GPU, and takes nothing."
	}
	p, d := a.Policy, a.Device
	taken, limit := part(a.First, d.Total), part(p.LimitBytes(d), d.Total)
	var s, kept string
	switch {
	case p.Kind == policy.Platform || p.Kind == policy.Address:
		return "Takes each allocation from the driver and releases it when it is freed: no limit, nothing kept, slow."
	case p.Kind == policy.VMM:
		return fmt.Sprintf("Maps memory as it is needed, up to %s, and keeps what it mapped.", limit)
	case p.Kind == policy.Async:
		return a.asyncSummary()
	case p.Kind == policy.Caching:
		s = "Takes memory as it is needed, up to " + limit + ", and keeps what it took for its own use."
	case a.First == 0:
		s = "Can take nothing: the limit is 0."
	case p.Preallocate && a.First > d.Total && !p.Managed:
		s = fmt.Sprintf("Asks for %s at the first operation, which is more than the GPU has.", size.Format(a.First))
	case p.Preallocate && a.Gets < a.First:
		s, kept = fmt.Sprintf("Asks for %s at the first operation.", taken), ", and keeps that"
	case p.Grows():
		s = fmt.Sprintf("Takes %s at the first operation, grows up to %s where that is free, and keeps what it took.", taken, limit)
	case p.Preallocate:
		s = fmt.Sprintf("Takes %s at the first operation, and keeps it.", taken)
	default:
		s = fmt.Sprintf("Takes memory as it is needed, up to %s, and keeps what it took.", limit)
	}
	if p.Managed {
		s += " It is unified memory: what the GPU has no room for lies in the host's."
	}
	if a.Gets < a.First {
		if p.GrantLimit > 0 && a.Gets > 0 && a.First <= d.Free {
			s += fmt.Sprintf(" One grant may be %s at most: it backs off to %s%s.", size.Format(p.GrantLimit), size.Format(a.Gets), kept)
		} else if a.Gets == 0 {
			s += fmt.Sprintf(" Only %s are free: it gets nothing.", size.Format(d.Free))
		} else {
			s += fmt.Sprintf(" Only %s are free: it backs off to %s%s.", size.Format(d.Free), size.Format(a.Gets), kept)
		}
		if p.Grows() {
			s += fmt.Sprintf(" It grows up to %s where that is free.", limit)
		}
	}
	return s
}

// asyncSummary is the Summary of the driver's pool. It gets all that it asks for at the
// start or nothing, and goes on in either case.
func (a Answer) asyncSummary() string {
	keep, first := a.Policy.AsyncBytes(a.Device)
	total, free := a.Device.Total, a.Device.Free
	keeps := "keeps up to " + part(keep, total) + " and may grow over it"
	switch {
	case a.Gets > 0 && keep == 0:
		return fmt.Sprintf("Takes %s once, from the driver's own pool, which may release it at the next synchronisation.", part(first, total))
	case a.Gets > 0:
		if keep == first {
			keeps = "keeps that much and may grow over it"
		}
		return fmt.Sprintf("Takes %s at once, from the driver's own pool, which %s.", part(first, total), keeps)
	case keep == 0:
		keeps = "releases what is unused at each synchronisation"
	}
	s := "Takes memory as it is needed, from the driver's own pool, which " + keeps + "."
	if first > 0 {
		s += fmt.Sprintf(" At the start it asks for %s, gets nothing, as only %s are free, and goes on.", part(first, total), size.Format(free))
	}
	return s
}

// part returns n bytes of a device's total, for people.
func part(n, total uint64) string {
	switch {
	case n == total:
		return "all of the " + size.Format(total)
	case n > total:
		return size.Format(n) + " (the GPU has " + size.Format(total) + ")"
	}
	return size.Format(n) + " of the " + size.Format(total)
}

// Command returns the one line to write instead: env with what is to be removed and
// set, in front of the program. Empty where nothing need be changed.
func (a Answer) Command(program string) string {
	if len(a.Set) == 0 {
		return ""
	}
	words := []string{"env"}
	for _, w := range a.Set {
		if name, ok := strings.CutPrefix(w, "-"); ok {
			words = append(words, "-u", report.ShellQuote(name))
			continue
		}
		name, value, _ := strings.Cut(w, "=")
		words = append(words, name+"="+report.ShellQuote(value))
	}
	return strings.Join(append(words, program), " ")
}
