package remat

// A request and its answer: the data of a plan, and what people read of it.

import (
	"fmt"
	"regexp"
	"time"

	"gpumem/internal/report"
	"gpumem/size"
	"gpumem/xla/internal/advice"
	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/memory"
)

// Algorithms are the names that Request.Algorithm takes.
var Algorithms = []string{"off", "xla", "gap"}

// A Request is what to plan for a module.
type Request struct {
	// Algorithm is one of [Algorithms]. off changes nothing, xla is XLA's pass, and gap is
	// our planner, which returns the best of several plans.
	Algorithm string
	// Limit returns the limit in bytes for what the module takes now: the peak of its
	// temporaries, or with Packed their heap. See [Bytes] and [Percent]. If it is nil, only
	// the frontier is planned. LimitFrom is where the limit comes from, as text for people.
	Limit     func(now uint64) uint64
	LimitFrom string
	// Packed applies the limit to the heap that temporaries are packed into. Only gap
	// plans for it.
	Packed bool
	// Advice finds the largest holders of memory at the peak and what jax.checkpoint would do,
	// with gap, if the module takes more than its limit.
	Advice bool
	// BestHeap searches for a better packing of the plan's heap than XLA's, for a second.
	BestHeap bool
	// Marks are regions to recompute before anything is planned, as jax.checkpoint does.
	// Save says which of their values are saved; nil: none.
	Marks []*regexp.Regexp
	Save  mark.Policy
	// Fuse fuses chains of elementwise operations first.
	Fuse bool
	// Collectives lets gap recompute collectives and random bits. See gap.Options.
	Collectives bool
	// HostSpeed is the speed of the link to the host's memory in each direction, in bytes
	// per second; 0: no value moves there.
	HostSpeed float64
	Rates     cost.Rates
	// Search is how long gap searches for a better plan for the limit. Plans of the
	// frontier are made without search.
	Search time.Duration
	// Frontier is the distance between the limits of the frontier, in percent of the peak;
	// 0: no frontier. With FrontierTime it takes at most that long: limits are further apart
	// where plans take long, and a plan that is not ready in time is left out.
	Frontier     int
	FrontierTime time.Duration
	// Progress is called with the fraction of the frontier that is done, unless it is nil.
	// After Run's context is done it may be called once more.
	Progress func(done float64)
}

// FrontierStep is the usual Request.Frontier.
const FrontierStep = 5

// Memory returns how the memory of plans is counted.
func (r *Request) Memory() memory.Options { return memory.Options{HostFree: r.HostSpeed > 0} }

// Bytes returns a Request.Limit of n bytes.
func Bytes(n uint64) func(uint64) uint64 { return func(uint64) uint64 { return n } }

// Percent returns a Request.Limit of p percent of what the module takes now.
func Percent(p float64) func(uint64) uint64 {
	return func(now uint64) uint64 { return uint64(float64(now) * p / 100) }
}

// An Answer is a plan with its figures. Scripts rely on its JSON. Memory is in bytes.
type Answer struct {
	Algorithm    string `json:"algorithm"`
	Instructions int    `json:"instructions"` // of the module as given
	Peaks
	Costs
	Bounds
	Seconds float64 `json:"seconds"` // that planning took
	// Legal reports that the plan passed xla/internal/legal: always. Plans that do not are dropped.
	Legal         bool           `json:"legal"`
	Marked        []mark.Marking `json:"marked,omitempty"`
	advice.Advice                // with Request.Advice

	Request *Request `json:"-"`
	// Given is the module that plans begin with, fused but not marked. Module is the
	// planned one; without Request.Limit it is Given with its marks.
	Given, Module *hlo.Module `json:"-"`
	// By is what made the plan: off, xla, gap, or host for moves to the host; "rescheduled"
	// if another order of instructions helped, "searched" if a search did.
	By       string        `json:"-"`
	Regions  []mark.Region `json:"-"` // that jax.checkpoint marked before
	Warnings []string      `json:"-"`
	// Frontier are plans for less and less memory, without those that others beat in both
	// memory and time; with Request.Frontier. The answer's own plan is one of them unless
	// another beats it. FrontierLeft is how many limits were left out for lack of
	// Request.FrontierTime.
	Frontier     []*Answer `json:"-"`
	FrontierLeft int       `json:"-"`
}

// Peaks are what the module takes before and after.
type Peaks struct {
	Unfused uint64 `json:"temp_peak_unfused,omitempty"` // peak before Request.Fuse made
	Fused   int    `json:"fused,omitempty"`             // as many fusions as this
	Limit   uint64 `json:"limit_bytes"`
	Before  uint64 `json:"temp_peak_before"`
	After   uint64 `json:"temp_peak_after"`
	// The heap that temporaries are packed into, where results may take the place of
	// operands. With Request.Packed the limit is for it.
	HeapBefore uint64 `json:"heap_before_bytes,omitempty"`
	HeapAfter  uint64 `json:"heap_after_bytes,omitempty"`
	HeapBest   uint64 `json:"heap_after_best_bytes,omitempty"` // by a better packing than XLA's; with Request.BestHeap
	Met        bool   `json:"met"`
}

// Costs are what the plan takes for that.
type Costs struct {
	Recomputed int `json:"recomputed"` // instructions added
	// With Request.HostSpeed: the values that wait on the host, how often they are copied
	// back, and the bytes copied in both directions.
	HostValues  int     `json:"host_values,omitempty"`
	HostReloads int     `json:"host_reloads,omitempty"`
	HostBytes   uint64  `json:"host_bytes_copied,omitempty"`
	Extra       float64 `json:"extra_compute_percent"`
	RunSeconds  float64 `json:"-"` // of one run of Answer.Given
}

// Bounds are what is proven of all plans.
type Bounds struct {
	LowerBound uint64 `json:"lower_bound_bytes"` // no plan goes below, in any order
	// LowerPercent is a proven lower bound on the extra compute of plans for this limit that
	// run each instruction at its place in the text, and some again. Plans that move
	// instructions may do better. It is 0 if nothing is proven, or if no such plan exists.
	LowerPercent float64 `json:"lower_bound_percent"`
	OutOfReach   bool    `json:"out_of_reach_in_order"` // it is proven that no such plan exists
}

// Headline returns in one sentence what the plan reaches, for people.
func (a *Answer) Headline() string {
	now, then := a.Before, a.After
	if a.Request.Packed {
		now, then = a.HeapBefore, a.HeapAfter
	}

	name, more := a.Given.Name, report.Counted(uint64(a.Recomputed), "instruction")+" more, at "+report.MoreCompute(a.Extra)
	switch {
	case now <= a.Limit && a.Recomputed == 0:
		return name + " fits its limit as it is: nothing is recomputed."
	case a.Recomputed == 0 && a.Algorithm == "off":
		return name + " takes more than its limit, and nothing is recomputed."
	case len(a.Marked) > 0 && then >= now:
		return name + " takes no less with these marks: " + more + "."
	case then >= now && !a.Met:
		return name + " takes more than its limit, and recomputing does not help."
	case a.Met && a.Recomputed == 0 && a.HostValues > 0:
		values := report.Counted(uint64(a.HostValues), "value")
		return name + " meets its limit with " + values + " on the host for a while; nothing is recomputed."
	case a.Met:
		return name + " meets its limit with " + more + "."
	}
	return name + " does not meet its limit, with " + more + "."
}

// A Figure is one number of an answer, and what it means, for people.
type Figure struct{ What, Value, More string }

// Figures are what the module takes before and after, and what bounds it.
func (a *Answer) Figures() []Figure {
	rows := []Figure{{"limit", size.Format(a.Limit), a.Request.LimitFrom}}
	if a.Unfused > 0 {
		rows = append(rows, Figure{"unfused", size.Format(a.Unfused), "before " + report.Counted(uint64(a.Fused), "fusion") + " were made"})
	}
	rows = append(rows,
		Figure{"now", size.Format(a.Before), "temporaries at their peak, in " + report.Counted(uint64(a.Instructions), "instruction")},
		Figure{"then", size.Format(a.After), report.Part(a.After, a.Before) + " of that"})

	if a.HostValues > 0 {
		rows = append(rows, Figure{"on the host", size.Format(a.HostBytes), fmt.Sprintf("copied to it and back beside what runs meanwhile: %s, %s",
			report.Counted(uint64(a.HostValues), "value"), report.Counted(uint64(a.HostReloads), "reload"))})
	}

	if a.HeapBefore > 0 && a.HeapAfter > 0 {
		more := "the heap that this takes, and " + size.Format(a.HeapBefore) + " before"
		if a.HeapBest > 0 && a.HeapBest < a.HeapAfter/1000*999 {
			more += "; " + size.Format(a.HeapBest) + " if packed better than XLA does"
		}
		if !a.Request.Packed && a.Met && a.HeapAfter > a.Limit {
			more += "; above the limit: --packed plans for it"
		}
		rows = append(rows, Figure{"packed", size.Format(a.HeapAfter), more})
	}
	return append(rows, Figure{"lower bound", size.Format(a.LowerBound), "no plan goes below, in any order"})
}

// Proven is what is proven of the compute of all plans. It has no value if that is nothing.
func (a *Answer) Proven() Figure {
	switch {
	case a.OutOfReach:
		return Figure{"proven", "out of reach", "while each instruction also runs at its place"}
	case a.LowerPercent >= .05:
		return Figure{"proven", fmt.Sprintf("at least %.1f %%", a.LowerPercent),
			"more compute while each instruction also runs at its place; moving some may do better"}
	}
	return Figure{}
}

// Markings are the regions that Request.Marks found.
func (a *Answer) Markings() (rows []Figure) {
	for _, k := range a.Marked {
		rows = append(rows, Figure{"marked", k.Pattern, fmt.Sprintf("in %s: %s, %d kept; %d added for %s", k.Computation,
			report.Counted(uint64(k.Region), "instruction"), k.Saved, k.Recomputed, report.Counted(uint64(k.Late), "late user"))})
	}
	return rows
}

// Least returns LowerPercent as text for people, "-" if nothing is proven. It is the bound
// for the limit, while the plan may be below it.
func (a *Answer) Least() string {
	if a.OutOfReach || a.LowerPercent == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", a.LowerPercent)
}
