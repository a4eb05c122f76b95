package account

// Engines with a check or a plan of their own: vLLM and SGLang, whose cache takes what weights
// leave of a share; llama.cpp and Ollama, which count how many layers fit.

import (
	"cmp"
	"fmt"
	"strings"

	"gpumem/doctor/internal/statement"
)

// Engine is the last check of an engine that failed.
type Engine struct {
	*Refusal
	AtStart  bool   // before it took any memory
	Used     uint64 // of the GPU when it started
	Lacking  uint64
	Share    float64 // gpu_memory_utilization, 0 if unknown
	Static   float64 // mem_fraction_static
	Weights  Sized   // loaded
	Loaded   *statement.Statement
	LoadFree uint64 // of the GPU when they were loaded
	LoadUsed uint64
	Before   Sized // in use before it loaded anything, by its own count
	BeforeOf uint64
	More     uint64 // needed beyond its share
	What     string // too small, by its own words: cache, tokens, ...; empty if unknown
	Asked    uint64 // tokens of one request, layers, ...
	Fits     uint64 // tokens that fit, by its own count
	Stages   *Stages
}

// Stages are what TensorRT-LLM tells of the parts that it had made when one was refused, in bytes.
type Stages struct {
	Component   string // refused
	Total, Left Sized  // of the GPU, and free before the refused part
	Start       uint64 // free before the first part
	Largest     string // part
	LargestTook uint64
}

// CacheShort reports whether it is the cache that has too little.
func (g *Engine) CacheShort() bool {
	switch g.What {
	case "warmup", "requests", "prefill", "layout", "executor":
		return false
	}
	return !g.AtStart
}

// engine is the account of an engine's check, nil if none failed.
func (e *Case) engine() *Engine {
	isEngine := func(r *Refusal) bool { return r.Layer == statement.LayerEngine && !r.Mild }
	r := e.Last(func(r *Refusal) bool {
		return isEngine(r) && r.HasFree && r.Total > 0 && (r.Want > 0 || Less(r.Total, r.Free) > ContextMost)
	})
	if r != nil {
		return &Engine{Refusal: r, AtStart: true, Used: Less(r.Total, r.Free), Lacking: Less(r.Want, r.Free)}
	}
	r = e.Last(func(r *Refusal) bool { return isEngine(r) && r.St.Library == "" })
	if r == nil || e.Uses("llama.cpp") && r.St.Topic("engine") == nil {
		return nil
	}
	g := &Engine{Refusal: r, Share: e.Number("gpu_memory_utilization"), Static: e.Number("mem_fraction_static")}
	if t := r.St.Topic("engine"); t != nil {
		g.What = t.Name
		_, _ = fmt.Sscan(t.Value, &g.Asked, &g.Fits) // some have one number, or none
	}
	if g.What == "executor" {
		g.Stages = e.stages(r.St)
	}
	for _, st := range e.Statements() {
		if st.Words["weights"] && st.HasAny("took", "loaded", "loading") && len(st.Amounts) > 0 && !st.Refused {
			g.Weights = Sized{st.Amounts[0].N, st.Quoted("")}
		}
		f, u := st.Amount(statement.RoleFree), st.Amount(statement.RoleUse)
		if f != nil && u != nil && g.Loaded == nil && st.HasAny("weight", "weights", "load") {
			g.Loaded, g.LoadFree, g.LoadUsed = st, f.N, u.N
		}
	}
	g.More = Less(r.Want, r.Free)
	if r.Want == 0 && g.Weights.Bytes > 0 {
		g.More = Less(g.Weights.Bytes+statement.Gib, uint64(g.Share*float64(e.Total().Bytes)))
	}
	if f := e.pick("vllm usage", nil); f != nil {
		g.Before, g.BeforeOf = Sized{f.InUse, f.Quoted("")}, f.Total
	}
	return g
}

// WeightsFill reports whether the weights alone take so much of the GPU, of so many bytes if that is
// known, that no share of it leaves room for a cache.
func (g *Engine) WeightsFill(total uint64) bool {
	if g.LoadUsed > 0 {
		total = cmp.Or(total, g.LoadUsed+g.LoadFree)
	}
	return total > 0 && max(g.Weights.Bytes, g.LoadUsed) > total*7/10
}

// CacheText is what a request needs of the cache and what there is, in words; empty if it is unknown.
func (g *Engine) CacheText() string {
	switch {
	case g.Fits > 0 && g.Want > 0 && g.HasFree:
		return fmt.Sprintf("one request of %d tokens needs %s of cache, and the cache has %s: %d tokens fit",
			g.Asked, Human(g.Want), Human(g.Free), g.Fits)
	case g.Fits > 0:
		return fmt.Sprintf("one request may have %d tokens, and %d fit into the cache", g.Asked, g.Fits)
	case g.What == "below":
		return fmt.Sprintf("the engine counts %d tokens less than none for its cache: what is beside it takes more than the engine's share", g.Asked)
	case g.What == "total":
		return fmt.Sprintf("one request may have %d tokens, and the cache has no room for them", g.Asked)
	case g.What == "pool":
		return "the engine's own cache is full: requests take more tokens than it has"
	}
	return ""
}

// stages are the parts that are told after a refusal.
func (e *Case) stages(after *statement.Statement) *Stages {
	s := &Stages{}
	for _, st := range e.Statements() {
		t := st.Topic("stage")
		if t == nil || st.Line < after.Line {
			continue
		}
		var one, two float64
		_, _ = fmt.Sscan(t.Value, &one, &two)
		before, left := uint64(one*statement.Gib), uint64(two*statement.Gib)
		switch {
		case t.Name == "component":
			s.Component = t.Value
		case t.Name == "total":
			s.Total = Sized{before, st.Quoted("")}
		case t.Name == "free":
			s.Left = Sized{before, st.Quoted("")}
		case Less(before, left) > s.LargestTook:
			s.Largest, s.LargestTook = t.Name, before-left
			fallthrough
		default:
			s.Start = max(s.Start, before)
		}
	}
	return s
}

// Plan is a refusal of a program that plans which layers go to the GPU.
type Plan struct {
	*Refusal
	Free      uint64 // at the start
	FreeFrom  statement.Evidence
	Parts     uint64 // loaded before
	Total     Sized
	Planned   uint64 // thought enough
	Available uint64 // when it was
	From      statement.Evidence
	Compute   bool // the buffer for the computation
	Cache     bool // the cache of keys and values, or recurrent states
	Runner    *statement.Statement
}

// plan is the account of llama.cpp's or Ollama's last refusal, nil if there is none.
func (e *Case) plan() *Plan {
	r := e.Last(func(r *Refusal) bool { return ofGPU(r) && r.Want > 0 && e.estimated(r) })
	if r == nil {
		return nil
	}
	for _, a := range r.St.Amounts { // the plan may stand before it
		if a.Role == statement.RoleWant {
			r.Want = a.N
		}
	}
	p := &Plan{Refusal: r, Total: e.Total(), Compute: r.St.HasAny("gallocr", "compute", "reserve"),
		Runner: e.StatementWith("runner", "terminated")}
	for _, st := range e.Statements() {
		near := st.Line >= r.St.Line && st.Line <= r.St.Line+4
		p.Cache = p.Cache || near && (strings.Contains(st.Text, "buffer for kv cache") || strings.Contains(st.Text, "buffer for rs cache"))
		p.Compute = p.Compute || near && strings.Contains(st.Text, "failed to allocate compute")
	}
	p.Free, p.Parts, p.FreeFrom = e.loading(r)
	if found := e.pick("found", nil); found != nil {
		if p.Total.Bytes == 0 {
			p.Total = Sized{found.Total, found.Quoted("the GPU has " + Human(found.Total))}
		}
		if p.Free == 0 {
			p.Free, p.FreeFrom = found.Free, found.Quoted("")
		}
	}
	p.FreeFrom.Reading = Human(p.Free) + " was free at the start"
	if m := e.pick("estimate", nil); m != nil {
		p.Planned, p.Available = FromLists(m.Value, m.Version, r.Device)
		p.Planned, p.From = cmp.Or(p.Planned, m.Want), m.Quoted("")
		if m.Limit > 0 && p.Planned > p.Available {
			p.Planned = m.Limit
		}
		if p.Planned > 0 && p.Planned <= p.Available {
			p.Free = p.Available
		}
	}
	return p
}

// LoadedText is what is loaded and what was refused, in words.
func (p *Plan) LoadedText() string {
	if p.Parts == 0 {
		return Human(p.Want) + " was refused"
	}
	return Human(p.Parts) + " is loaded, and " + Human(p.Want) + " more was refused"
}

// ofGPU reports whether a refusal was of the GPU and no warning.
func ofGPU(r *Refusal) bool { return !r.Mild && r.Layer != statement.LayerHost }
