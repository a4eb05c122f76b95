package account

import (
	"cmp"
	"fmt"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
	"slices"
	"strings"
)

// The pool of XLA or TensorFlow, by its report, and what the compiler said of the buffers.

// Pool is the reported state of XLA's or TensorFlow's pool, in bytes.
type Pool struct {
	Refused                     *Refusal // nil if none is reported
	Want                        uint64
	Limit, Size, InUse, Largest Sized
}

// pool is the state of the pool at the last refusal, and nil if there is nothing of one.
func (e *Case) pool() *Pool {
	p := &Pool{}
	is := func(r *Refusal) bool {
		return !r.Mild && r.Layer == statement.LayerPool && r.Want > 0 && !e.TorchLike(r)
	}
	for _, word := range []string{"rounded", "allocator", ""} {
		if p.Refused == nil {
			p.Refused = e.Last(func(r *Refusal) bool { return is(r) && (word == "" || r.St.Words[word]) })
		}
	}
	if p.Refused != nil {
		p.Want = p.Refused.Want
	}
	set := func(s *Sized, f *statement.Fact, bytes uint64, what string) {
		*s = Sized{bytes, f.Quoted(Human(bytes) + " " + what)}
	}
	for _, f := range e.facts("pool stats") {
		n := statement.SizeOf(f.Value)
		switch f.Name {
		case "Limit", "bytes_limit", "memory_limit_", "pool limit":
			set(&p.Limit, &f, n, "is the pool's limit")
		case "InUse", "bytes_in_use":
			set(&p.InUse, &f, n, "in use")
		case "Sum Total of in-use chunks":
			if p.InUse.Bytes == 0 {
				set(&p.InUse, &f, n, "in use")
			}
		case "Reserved", "pool_bytes", "bytes_reserved", "Total bytes in pool", "Total size in pool", "total_region_allocated_bytes_",
			"pool size":
			if n > 0 {
				set(&p.Size, &f, n, "taken from the GPU")
			}
		case "LargestFreeBlock", "largest_free_block_bytes", "largest free chunk usable by lower end", "largest free chunk usable by upper end":
			if n > 0 {
				set(&p.Largest, &f, n, "is the largest free block")
			}
		}
	}
	if d := e.Dump; d != nil && d.Complete {
		at := statement.Evidence{Line: d.Line, Text: "the pool's report"}
		p.Size, p.InUse, p.Largest = Sized{d.Pool, at}, Sized{d.InUse, at}, Sized{d.LargestFree, at}
		p.Size.From.Reading, p.InUse.From.Reading = Human(d.Pool)+" taken from the GPU", Human(d.InUse)+" in use"
		p.Largest.From.Reading = Human(d.LargestFree) + " is the largest free chunk"
		if p.Limit.Bytes == 0 && d.Limit > 0 {
			p.Limit = Sized{d.Limit, at}
			p.Limit.From.Reading = Human(d.Limit) + " is the pool's limit"
		}
	}
	if p.Refused == nil && p.Limit.Bytes == 0 && p.InUse.Bytes == 0 {
		return nil
	}
	return p
}

// TorchLike reports whether a refusal tells of the device, or of a pool other than XLA's
// and TensorFlow's, in the same message.
func (e *Case) TorchLike(r *Refusal) bool {
	if r.St.Stats && !(r.Total > 0 && r.HasFree) {
		return false
	}
	return r.Total > 0 || r.hasAlloc || r.LimitTold > 0 || r.HasFree || r.St.HasAny("torch", "cupy", "rmm", "tried", "mps",
		"xpu", "hip", "cudnn")
}

// Unified reports whether the pool may be larger than the GPU.
func (e *Case) Unified() bool {
	v := e.Env["TF_FORCE_UNIFIED_MEMORY"]
	fraction, _ := e.Fraction()
	return v == "1" || strings.EqualFold(v, "true") || fraction > 1 // anything else means no to XLA
}

// Grows reports whether the pool grows as needed, as far as known.
func (e *Case) Grows() bool {
	v := e.Env[Prealloc]
	return v == "false" || v == "False" || v == "0" || e.Env[TfGrowth] == "true" // in small letters only, as TensorFlow reads it
}

// Display is the state's word that a display hangs on the GPU.
func (e *Case) Display() []statement.Evidence {
	if d := e.gpu(); d != nil && d.Display {
		reading := "a display is on the GPU"
		if d.InUse() > 0 {
			reading += ", and " + Human(d.InUse()) + " in use before"
		}
		return []statement.Evidence{{Text: "devices.display_active: true", Reading: reading}}
	}
	return nil
}

// assigned is the compiler's total for a program that did not fit, in bytes, and the line.
func (e *Case) assigned() (uint64, *statement.Statement) {
	for _, st := range slices.Backward(e.Statements()) {
		if m := totalAllocation.FindStringSubmatch(st.Text); m != nil {
			return statement.SizeOf(m[1]), st
		}
	}
	return 0, nil
}

var totalAllocation = needle.MustCompile(`\btotal allocation: +([\d.]+ ?\w+)`)

// parts are the program's buffers that a cut report still lists.
func (e *Case) parts() (sum uint64, st *statement.Statement) {
	for _, s := range e.Statements() {
		if m := partAllocation.FindStringSubmatch(s.Text); m != nil {
			sum += statement.SizeOf(m[1])
			st = s
		}
	}
	return sum, st
}

var partAllocation = needle.MustCompile(`(?:parameter|constant|maybe_live_out|preallocated temp) allocation: +([\d.]+ ?\w+)`)

// Compiled is what the compiler said of a program that did not fit.
type Compiled struct {
	Buffers   Sized  // together
	Small     bool   // the program fits any GPU of the last ten years
	Arguments Sized  // and results
	Base      uint64 // the limit that they passed
	Announced Sized  // what the pool may have
	Remat     *Remat
}

// Remat is what XLA's pass that recomputes said. Sizes are in bytes.
type Remat struct {
	St              *statement.Statement
	Limit, From, To uint64
}

// Saved is what the pass saves.
func (m *Remat) Saved() uint64 { return Less(m.From, m.To) }

// compiled gathers it.
func (e *Case) compiled() *Compiled {
	c := &Compiled{}
	total, st := e.assigned()
	if st == nil {
		total, st = e.parts()
	}
	if st != nil {
		c.Buffers = Sized{total, st.Quoted("")}
		all := e.Total().Bytes
		c.Small = total < smallProgram || all > 0 && total < all/8
	}
	if f := e.pick("arguments", nil); f != nil {
		c.Arguments, c.Base = Sized{f.Want, f.Quoted("")}, f.Limit
	}
	if st := e.About("announced"); st != nil {
		c.Announced = Sized{statement.SizeOf(st.Topic("announced").Name), st.Quoted("")}
	}
	if st := e.About("remat"); st != nil {
		c.Remat = &Remat{St: st, Limit: sizeAfter(st.Text, rematLimit), From: sizeAfter(st.Text, rematFrom),
			To: sizeAfter(st.Text, rematTo)}
		c.Remat.To = cmp.Or(c.Remat.To, c.Remat.From)
	}
	return c
}

// Usual is what JAX's pool may take of the GPU, by its setting or by default, in words too.
func (e *Case) Usual(assigned bool) (bytes uint64, part, whose string) {
	f, set := e.Fraction()
	if !assigned && e.Unified() {
		f *= .8 // beside what is there already
	}
	whose = "by default"
	if set {
		whose = "by its setting"
	}
	return uint64(f * float64(e.Total().Bytes)), fmt.Sprint(f), whose
}
