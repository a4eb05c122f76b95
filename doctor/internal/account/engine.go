package account

// Engines with a check or a plan of their own: vLLM and SGLang, whose cache takes what weights
// leave of a share; llama.cpp and Ollama, which count how many layers fit.

import (
	"cmp"
	"fmt"
	"strconv"
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

// MayBeOwn reports whether so little was in use at the start that it may be the engine's own context,
// or that of a program that leaves, or whether no GPU of this size has room.
func (g *Engine) MayBeOwn() bool {
	little := g.Lacking < part(g.Total, othersMove) && g.Used < part(g.Total, restLarge)
	return little || g.Want > g.Total
}

// LoadedFree reports whether much of the GPU was free when the weights were loaded.
func (g *Engine) LoadedFree() bool {
	all := g.LoadFree + g.LoadUsed
	wall := g.Static > 0 && uint64(g.Static*float64(all)) < g.LoadUsed+statement.Gib
	room := g.LoadFree > part(all, loadedFree) || wall && g.LoadFree > part(all, loadedLittle)
	return all > 0 && room
}

// ShareRaises reports whether a GPU of these bytes has what the engine lacks beyond its share.
func (g *Engine) ShareRaises(gpu uint64) bool {
	known := g.Share > 0 && gpu > 0 && g.More > 0
	return known && uint64(g.Share*float64(gpu))+g.More < gpu-part(gpu, shareLeaves)
}

// LacksMore reports whether the engine itself tells what it lacks beyond its share of a GPU of these
// bytes, by what it wants or by what is below none.
func (g *Engine) LacksMore(gpu uint64) bool {
	return g.Share > 0 && gpu > 0 && g.More > 0 && (g.Want > 0 || g.What == "none")
}

// StaticSmall reports whether the engine's share is told, and a small one.
func (g *Engine) StaticSmall() bool { return g.Static > 0 && g.Static < .5 }

// CountsOthers reports whether the engine counts as its own what was in use before it.
func (g *Engine) CountsOthers() bool {
	own := g.Weights.Bytes
	if own > 0 {
		own += contextUsual
	}
	return g.BeforeOf > 0 && g.Before.Bytes >= part(g.BeforeOf, beforeMuch)+own
}

// HeavyWeights reports whether the weights alone leave the cache of a GPU of these bytes too little. A
// GPU of unknown size has what was in use and free when they were loaded.
func (g *Engine) HeavyWeights(gpu uint64) bool {
	if g.LoadUsed > 0 {
		gpu = cmp.Or(gpu, g.LoadUsed+g.LoadFree)
	}
	return gpu > 0 && max(g.Weights.Bytes, g.LoadUsed) > part(gpu, weightsHeavy)
}

// StartOccupied reports whether much of the GPU was taken before an engine made its first part.
func (s *Stages) StartOccupied() bool {
	return s.Start > 0 && s.Total.Bytes > 0 && s.Start < part(s.Total.Bytes, startFree)
}

// OneFills reports whether one part took most of the GPU, and little was left for the others.
func (s *Stages) OneFills() bool {
	return s.LargestTook > part(s.Total.Bytes, partMost) && s.Left.Bytes < part(s.Total.Bytes, partLeft)
}

// ModelFills reports whether the largest part is as large as weights are.
func (s *Stages) ModelFills() bool { return s.LargestTook > part(s.Total.Bytes, weightsHeavy) }

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
	if g.What == "pool" {
		g.Asked, g.Fits = e.tokens(r.St.Line)
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
	if g.What == "none" { // its own sum is below none by so much, and a cache comes on top
		g.More = statement.SizeOf(r.St.Topic("engine").Value)
	}
	if f := e.pick("vllm usage", nil); f != nil {
		g.Before, g.BeforeOf = Sized{f.InUse, f.Quoted("")}, f.Total
	}
	return g
}

// tokens are how many an engine wanted of its cache and how many it had, which SGLang tells below a refusal; 0 where it
// does not tell both.
func (e *Case) tokens(refused int) (want, free uint64) {
	told := false
	for _, st := range e.Statements() {
		t := st.Topic("tokens")
		if t == nil || st.Line < refused || st.Line > refused+4 {
			continue
		}
		n, _ := strconv.ParseUint(t.Value, 10, 64) // digits
		if t.Name == "want" {
			want = n
		} else {
			free, told = n, true
		}
	}
	if !told {
		return 0, 0
	}
	return want, free
}

// HadRoom reports whether the engine's cache had room for what it was asked for, by the engine's own count.
func (g *Engine) HadRoom() bool { return g.What == "pool" && g.Asked > 0 && g.Fits >= g.Asked }

// CacheText is what a request needs of the cache and what there is, in words; empty if it is unknown.
func (g *Engine) CacheText() string {
	switch {
	case g.What == "pool" && g.Asked > 0:
		return fmt.Sprintf("the engine's own cache is full: %d tokens were wanted, and it had %d", g.Asked, g.Fits)
	case g.Fits > 0 && g.Want > 0 && g.HasFree:
		return fmt.Sprintf("one request of %d tokens needs %s of cache, and the cache has %s: %d tokens fit",
			g.Asked, Human(g.Want), Human(g.Free), g.Fits)
	case g.Fits > 0:
		return fmt.Sprintf("one request may have %d tokens, and %d fit into the cache", g.Asked, g.Fits)
	case g.What == "below":
		return fmt.Sprintf("the engine counts %d tokens less than none for its cache: what is beside it takes more than the engine's share",
			g.Asked)
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
	StartFree uint64 // at the start
	FreeFrom  statement.Evidence
	Parts     uint64 // loaded before
	GPU       Sized
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
	own := *r // whose request is told again here
	r = &own
	for _, a := range r.St.Amounts { // the plan may stand before it
		if a.Role == statement.RoleWant {
			r.Want = a.N
		}
	}
	p := &Plan{Refusal: r, GPU: e.Total(), Compute: r.St.HasAny("gallocr", "compute", "reserve"),
		Runner: e.StatementWith("runner", "terminated")}
	for _, st := range e.Statements() {
		near := st.Line >= r.St.Line && st.Line <= r.St.Line+4
		p.Cache = p.Cache || near && (strings.Contains(st.Text, "buffer for kv cache") || strings.Contains(st.Text, "buffer for rs cache"))
		p.Compute = p.Compute || near && strings.Contains(st.Text, "failed to allocate compute")
	}
	p.StartFree, p.Parts, p.FreeFrom = e.loading(r)
	if found := e.pick("found", nil); found != nil {
		if p.GPU.Bytes == 0 {
			p.GPU = Sized{found.Total, found.Quoted("the GPU has " + Human(found.Total))}
		}
		if p.StartFree == 0 {
			p.StartFree, p.FreeFrom = found.Free, found.Quoted("")
		}
	}
	if st := e.gpuMemory(r); p.StartFree == 0 && st != nil {
		p.StartFree, p.FreeFrom = st.Amount(statement.RoleFree).N, st.Quoted("")
	}
	p.FreeFrom.Reading = Human(p.StartFree) + " was free at the start"
	if m := e.pick("estimate", nil); m != nil {
		p.Planned, p.Available = FromLists(m.Value, m.Version, r.Device)
		p.Planned, p.From = cmp.Or(p.Planned, m.Want), m.Quoted("")
		if m.Limit > 0 && p.Planned > p.Available {
			p.Planned = m.Limit
		}
		if p.SaidToFit() {
			p.StartFree = p.Available
		}
	}
	return p
}

// gpuMemory is the last line before a refusal in which Ollama's own engine says what is available, and nil.
func (e *Case) gpuMemory(r *Refusal) *statement.Statement {
	return e.StatementBefore(r.St.Line, func(st *statement.Statement) bool {
		return strings.Contains(st.Text, `msg="gpu memory"`) && st.Amount(statement.RoleFree) != nil
	})
}

// LoadedText is what is loaded and what was refused, in words.
func (p *Plan) LoadedText() string {
	if p.Parts == 0 {
		return Human(p.Want) + " was refused"
	}
	return Human(p.Parts) + " is loaded, and " + Human(p.Want) + " more was refused"
}

// Together is what is loaded and what was refused, as parts of a sum.
func (p *Plan) Together() string {
	if p.Parts == 0 {
		return Human(p.Want)
	}
	return Say("%v and %v more", p.Parts, p.Want)
}

// BufferTooBig reports whether the buffer alone is more than the GPU has.
func (p *Plan) BufferTooBig() bool { return p.GPU.Bytes > 0 && p.Want > p.GPU.Bytes }

// unplanned reports whether the parts of the model are more than what was free at the start, and no
// estimate was made of them.
func (p *Plan) unplanned() bool {
	return p.StartFree > 0 && p.GPU.Bytes > 0 && p.Planned == 0 && p.Parts+p.Want > p.StartFree
}

// TooBig reports whether the parts of the model are more than the GPU, or than what was free of a
// GPU that was free.
func (p *Plan) TooBig() bool {
	free := p.StartFree >= part(p.GPU.Bytes, startFree)
	return p.BufferTooBig() || p.unplanned() && (free || p.Parts+p.Want > p.GPU.Bytes)
}

// Occupied reports whether most of the GPU was taken before the model came.
func (p *Plan) Occupied() bool {
	return p.unplanned() && p.StartFree < part(p.GPU.Bytes, startTaken) && !p.TooBig()
}

// SaidToFit reports whether the estimate was no more than what was free.
func (p *Plan) SaidToFit() bool { return p.Planned > 0 && p.Planned <= p.Available }

// RunnerStarted reports whether a runner was started, and its buffer for the computation, of a
// usual size, was refused.
func (p *Plan) RunnerStarted() bool { return p.Compute && p.Runner != nil && p.Want < largeBuffer }

// OneBuffer reports whether the weights were to go into one large buffer of a GPU whose size
// is unknown, or too small.
func (p *Plan) OneBuffer() bool {
	return p.Want > 2*largeBuffer && p.GPU.Bytes < p.Want && !p.Compute
}

// Large reports whether few cards have room for the buffer.
func (p *Plan) Large() bool { return p.Want >= largeBuffer && !p.Compute }

// ofGPU reports whether a refusal was of the GPU and no warning.
func ofGPU(r *Refusal) bool { return !r.Mild && r.Layer != statement.LayerHost }
