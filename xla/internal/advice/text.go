package advice

// The advice in words, for the command and the page.

import (
	"fmt"
	"strings"

	"gpumem/internal/report"
	"gpumem/size"
)

// A Section is advice on one thing.
type Section struct {
	Title string
	Lines []Line
}

// A Line is a sentence, or a line of code, or memory with what it is.
type Line struct {
	Text  string
	Code  bool
	Bytes uint64 // of memory; 0 for a sentence or code
}

// sections returns what jax.checkpoint would do, as text for people. limit is in bytes, and so is
// now, which is what the module takes.
func (a *Advice) sections(limit, now uint64) (list []Section) {
	for _, l := range a.Loops {
		s := Section{Title: "By hand, a loop over layers"}
		s.say("%s %s runs %d times and stacks up %s for the backward pass, most of it of", l.Name, l.At, l.Trips, size.Format(l.Bytes))
		for _, h := range l.Stacked[:min(len(l.Stacked), 3)] {
			s.Lines = append(s.Lines, Line{Text: h.Part, Bytes: h.Bytes})
		}
		s.say("jax.checkpoint around its body leaves about %s of temporaries in all (%s), at %s:",
			size.Format(l.After), report.Part(l.After, now), report.MoreCompute(l.Extra))
		s.Lines = append(s.Lines, Line{Text: "jax.lax.scan(jax.checkpoint(body, prevent_cse=False), ...)", Code: true})
		if l.Products > 0 {
			s.say("With policy=jax.checkpoint_policies.offload_dot_with_no_batch_dims(\"device\", \"pinned_host\") the products do not run again: "+
				"%s of them wait in the host's memory.", size.Format(l.Products))
		}
		list = append(list, s)
	}

	if len(a.ByHand) == 0 {
		return list
	}

	s := Section{Title: "By hand, with jax.checkpoint alone"}
	if a.ByHand[0].Estimate {
		s.say("Estimates, mostly too high, as the module is not compiled: compiled.as_text() gives better ones.")
	}

	for n, k := range a.ByHand {
		which := "each"
		if k.Marked < k.Layers {
			which = fmt.Sprintf("the first %d", k.Marked)
		}
		missed := ""
		if k.Peak > limit {
			missed = "; misses the limit"
		}
		s.say("around %s of the %d %s*, policy %s: about %s (%s), at %s%s",
			which, k.Layers, k.Layer, k.Policy, size.Format(k.Peak), report.Part(k.Peak, k.Before), report.MoreCompute(k.Extra), missed)
		if n == 0 {
			layer := strings.TrimRight(k.Layer, "_./")
			s.say("  Flax: nn.remat(%s, policy=jax.checkpoint_policies.%s); "+
				"else jax.checkpoint(f, policy=...) around what applies one layer", layer, k.Policy)
		}
	}

	return append(list, s)
}

func (s *Section) say(format string, args ...any) {
	s.Lines = append(s.Lines, Line{Text: fmt.Sprintf(format, args...)})
}
