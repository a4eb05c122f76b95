package advise

// Two programs on one card.

import (
	"slices"

	"gpumem/policy"
)

// second has the settings with which two programs share the card.
type second struct {
	Bytes  uint64 `json:"bytes"`         // for the second one's pool, its own context taken off
	Policy string `json:"policy"`        // of this program
	Run    string `json:"run,omitempty"` // as in Candidate
	// First and Other are what to set in this program and in the second, in the same
	// framework: for the environment, and in the program.
	First     []string `json:"first"`
	FirstCall []string `json:"first_call,omitempty"`
	Other     []string `json:"other"`
	OtherCall []string `json:"other_call,omitempty"`
}

// second sets how another program gets the rest, if there is any, with this one limited
// to what it needs.
func (a *adviser) second(rep *Report) {
	total := rep.DeviceBytes
	room := func(c *Candidate) uint64 { return c.Left - min(c.Left, rep.ContextBytes) }
	// 2 MiB less, for JAX rounds its limit up to a multiple of that.
	percent := func(c *Candidate) int {
		return int(float64(room(c)-min(room(c), 2*mib)) / float64(total) * 100)
	}
	// One that always has a limit, or the cheapest that leaves enough.
	capped := func(c *Candidate) bool { return c.Range != nil && c.plain == nil }
	enough := func(c *Candidate) bool { return c.Fits && percent(c) > 0 }
	at := slices.IndexFunc(rep.Candidates, func(c *Candidate) bool { return capped(c) && enough(c) })
	if at < 0 {
		at = slices.IndexFunc(rep.Candidates, enough)
	}
	if at < 0 {
		return
	}
	first := rep.Candidates[at]
	part := min(percent(first), mostPercent)
	if a.ofFree { // when the second one starts, its room is what is free
		part = mostPercent
	}
	text := percentText(part)
	s := &second{Bytes: room(first), Policy: first.Policy, First: first.Set, FirstCall: first.Call, Run: first.Run, Other: []string{}}
	switch a.source.Name {
	case jax:
		s.Other = []string{a.fractionOf() + "=" + text}
	case tensorFlow:
		s.OtherCall = []string{a.tensorFlowLimit(max(1, total/100*uint64(part)/mib))}
	case pyTorch:
		t := a.torch(features{pages: true, pools: true})
		another := t
		another.recorded = nil // those are of this program
		other := another.limit("0" + text)
		s.Other, s.OtherCall = append(s.Other, other.set...), other.call
		held := int(float64(first.HeldPeak)/float64(total)*100) + 1 // rounded up
		if !first.Ours && first.at == nil && first.plain.policy.Kind == policy.Caching && held < 100 {
			w := t.limit("0"+percentText(held), first.plain.settings...)
			s.First, s.FirstCall = append([]string{}, w.set...), w.call
		}
	}
	rep.Second = s
}
