// The answer at a glance: one sentence.

package policy

import (
	"fmt"
	"strings"

	"gpumem/size"
)

// Summary is the answer in one or two sentences: what is taken, and when.
func (a Answer) Summary() string {
	if len(a.Errors) > 0 {
		e := a.Errors[0]
		return fmt.Sprintf("%s refuses %s: %s.", a.title(), e.Name, e.Then)
	}
	p, d := a.Policy, a.Device
	taken, limit := size.Format(a.First), size.Format(p.LimitBytes(d))
	share := "of the " + size.Format(d.Total)
	var s string
	switch {
	case p.Kind == Platform || p.Kind == Address:
		return "Takes each allocation from the driver and gives it back when it is freed: no limit, nothing kept, slow."
	case p.Kind == VMM:
		return fmt.Sprintf("Maps memory as it is needed, up to %s %s, and keeps what it mapped.", limit, share)
	case p.Kind == Async && a.First > 0 && p.AsyncKeep || p.Kind == Async && p.Preallocate:
		s = fmt.Sprintf("Takes %s %s at once, from the driver's own pool, which keeps that much and may grow over it.", taken, share)
	case p.Kind == Async && a.First > 0:
		s = fmt.Sprintf("Takes %s %s once, from the driver's own pool, which may give it back at the next synchronisation.", taken, share)
	case p.Kind == Async && p.AsyncKeep:
		s = fmt.Sprintf("Takes memory as it is needed, from the driver's own pool, which keeps up to %s and may grow over it.", limit)
	case p.Kind == Async:
		s = "Takes memory as it is needed, from the driver's own pool, which gives back what is unused at each synchronisation."
	case a.First == 0:
		s = "Can take nothing: the limit is 0."
	case p.Preallocate:
		s = fmt.Sprintf("Takes %s %s at the first operation, and keeps it.", taken, share)
	default:
		s = fmt.Sprintf("Takes memory as it is needed, up to %s %s, and keeps what it took.", limit, share)
	}
	if p.Managed {
		s += " It is unified memory: what the GPU has no room for lies in the host's."
	}
	if a.Gets < a.First {
		if a.Gets == 0 {
			s += fmt.Sprintf(" Only %s are free: it gets nothing.", size.Format(d.Free))
		} else {
			s += fmt.Sprintf(" Only %s are free: it backs off to %s.", size.Format(d.Free), size.Format(a.Gets))
		}
	}
	return s
}

// title is the framework's name as people write it.
func (a Answer) title() string {
	for _, f := range frameworks {
		if f.name == a.Framework {
			return f.title
		}
	}
	return a.Framework
}

// Command is the one line to write instead: env with what is to be removed and
// set, in front of the program. Empty where nothing need be changed.
func (a Answer) Command(program string) string {
	if len(a.Set) == 0 {
		return ""
	}
	words := []string{"env"}
	for _, w := range a.Set {
		if name, ok := strings.CutPrefix(w, "-"); ok {
			words = append(words, "-u", shellQuote(name))
			continue
		}
		name, value, _ := strings.Cut(w, "=")
		words = append(words, name+"="+shellQuote(value))
	}
	return strings.Join(append(words, program), " ")
}

// shellQuote is a word that a shell reads as s.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:,=%+@", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
