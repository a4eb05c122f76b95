package page

// The page of a module.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"gpumem/device/card"
	"gpumem/internal/report"
	"gpumem/size"
	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/measure"
	"gpumem/xla/remat"
)

// ErrNoModule is the error of an assignment alone: it has no program to draw.
var ErrNoModule = errors.New("the buffer assignment alone has no program to draw: name the module, too")

// Largest is how many values [measure.Files] is asked for where a page follows.
const Largest = mostGroups

// WriteModule writes the page of a module that was measured, with all values that live at
// the peak. What less memory costs is planned for at most about as long as limit; what is not
// ready then is left out, and the page says so. With 0 nothing is planned. progress is called
// with the fraction that is done, unless it is nil. The errors are [ErrNoModule], ctx's, that of a
// module that cannot be planned for, and w's.
func WriteModule(ctx context.Context, w io.Writer, s *measure.Answer, limit time.Duration, progress func(float64)) error {
	if s.Module == nil {
		return ErrNoModule
	}

	v, err := moduleView(s)
	if err != nil {
		return err
	}

	c := &contents{
		Title: s.Name + ": memory", Headline: moduleHeadline(s), Notes: s.Notes, Views: []*view{v},
	}

	if s.Exact {
		c.Own = s
		if n := s.Alive - len(s.Largest); n > 0 {
			c.OwnRest = fmt.Sprintf("and %s more", report.Counted(uint64(n), "value"))
		}
	}

	if err := c.plan(ctx, s.Module, limit, progress); err != nil {
		return err
	}

	c.Facts = moduleFacts(s, v, c.Frontier)
	return c.write(w)
}

// plan makes the frontier and the advice, beside each other.
func (c *contents) plan(ctx context.Context, m *hlo.Module, limit time.Duration, progress func(float64)) error {
	command := "gpumem remat MODULE --algorithm gap"
	if limit <= 0 {
		c.FrontierNotes = []string{"Plans were not asked for: " + command + " --frontier makes them."}
		return nil
	}

	r := remat.Request{Algorithm: "gap", Rates: cost.Default}
	var all, half *remat.Answer
	var noFrontier, noAdvice error
	var work sync.WaitGroup
	work.Go(func() {
		frontier := r
		frontier.Frontier, frontier.FrontierTime, frontier.Progress = remat.FrontierStep, limit, progress
		late, cancel := context.WithTimeout(ctx, 2*limit)
		defer cancel()
		all, noFrontier = remat.Run(late, m, frontier)
	})

	work.Go(func() {
		advice := r
		advice.Limit, advice.LimitFrom, advice.Advice = remat.Percent(50), "half of what the module takes now", true
		late, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		half, noAdvice = remat.Run(late, m, advice)
	})

	work.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}

	for _, err := range []error{noFrontier, noAdvice} {
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}

	seconds := report.Seconds(limit.Seconds())
	switch {
	case noFrontier != nil || len(all.Frontier) == 0 && all.FrontierLeft > 0:
		c.FrontierNotes = []string{fmt.Sprintf("No plan was ready in %s: %s --frontier takes as long as it needs.", seconds, command)}
	default:
		c.Frontier = newFrontier(all, nil)
		c.FrontierNotes = []string{fmt.Sprintf("Plans by this project's planner for limits %d %% of the peak apart, counted as XLA's recompute pass does: "+
			"temporaries alone. Those that others beat in both memory and time are left out.", remat.FrontierStep)}
		if all.FrontierLeft > 0 {
			c.FrontierNotes = append(c.FrontierNotes, fmt.Sprintf("%s of %d were left out, as planning had %s: %s --frontier makes all of them.",
				report.Counted(uint64(all.FrontierLeft), "limit"), 100/remat.FrontierStep, seconds, command))
		}
	}

	switch {
	case noAdvice != nil:
		c.AdviceNote = fmt.Sprintf("Advice on jax.checkpoint was not ready in %s: %s --limit 50%% has it.", seconds, command)
	case half != nil:
		if c.Advice = half.Text; len(c.Advice) > 0 {
			c.AdviceNote = fmt.Sprintf("By hand, for a limit of half of that count, %s:", size.Format(half.Limit))
		}
	}
	return nil
}

// moduleHeadline returns one sentence about what a module takes.
func moduleHeadline(s *measure.Answer) string {
	by := "by a model of XLA's assignment"
	if s.Exact {
		by = "by XLA's own assignment"
	}
	return fmt.Sprintf("%s takes %s, %s of it temporaries, %s", oneLine(s.Name), glued(s.Total), glued(s.Temporaries), by)
}

// moduleFacts are the figures that the command prints, and what is lost.
func moduleFacts(s *measure.Answer, v *view, f *frontier) []factRow {
	aliased := ""
	if s.Aliased > 0 {
		aliased = size.Format(s.Aliased) + " of them lie in arguments"
	}

	rows := []factRow{
		{"arguments", size.Format(s.Arguments), ""},
		{"results", size.Format(s.Results), aliased},
		{"temporaries", size.Format(s.Temporaries), "in one block"},
		{"total", size.Format(s.Total), fmt.Sprintf("for %s in %s",
			report.Counted(uint64(s.Instructions), "instruction"), report.Counted(uint64(s.Computations), "computation"))},
	}

	rows = append(rows, cardFact(s.Total))
	if s.Constants > 0 {
		rows = append(rows, factRow{"constants", size.Format(s.Constants), "beside that, with the code"})
	}

	rows = append(rows, factRow{"live at most", size.Format(s.Peak), "at " + oneLine(s.PeakAt) + ", " + report.Counted(v.Alive[v.PeakColumn], "value")})
	if v.Padding > 0 {
		rows = append(rows, factRow{"padding", size.Format(v.Padding), "of these values: memory beyond their elements, by alignment and layout"})
	}
	if h := v.Heap; h.Bytes > h.Most {
		rows = append(rows, factRow{"lost in the heap", size.Format(h.Bytes - h.Most), fmt.Sprintf("of its %s; at most %s live in it at once", size.Format(h.Bytes), size.Format(h.Most))})
	}

	rows = append(rows, factRow{"pass's count", size.Format(s.PassPeak), "of temporaries, by XLA's recompute pass, at " + oneLine(s.TempPeakAt)})
	if f != nil {
		rows = append(rows, factRow{"lower bound", size.Format(f.Bound), "of that count: no plan goes below, in any order"})
	}
	if n := uint64(s.Regions); n > 0 {
		rows = append(rows, factRow{"jax.checkpoint", report.Count(n), "marked " + report.Plural(n, "region")})
	}
	return rows
}

// cardFact names the smallest card for a total.
func cardFact(total uint64) factRow {
	c, ok := card.Smallest(total)
	if !ok {
		return factRow{"smallest card", "none", "no card that is sold has as much"}
	}
	return factRow{"smallest card", c.Title(), "programs see " + size.Format(c.Least()) + " of it; the driver takes some for a program, and JAX uses 75 % unless it is set otherwise"}
}
