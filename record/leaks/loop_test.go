package leaks

// This file is for made-up runs: a loop of steps with what real ones have
// beside a leak, and the sites that leak in it, known.

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// A leaker is a site that keeps a block.
type leaker struct {
	site, bytes int
	every       int     // in every so many steps
	lose        float64 // this part of what is kept is freed some steps later
}

// A loop is a run to make.
type loop struct {
	seed     uint64
	steps    int
	sites    int  // that allocate and free in each step
	same     int  // so many more, of the size of the first leaker, at a site of their own
	noise    bool // steps differ in length and order
	load     int  // blocks kept before the first step
	warm     int  // the first so many steps keep a block of each site
	cache    int  // entries of a cache: one a step until it is full
	learns   int  // shapes of which each step has one, and a cache keeps each
	random   int  // entries of a cache that is full at once and replaces one at random in each step
	ring     int  // entries of a ring: one a step
	overlap  bool // what a step allocates at its first site lives until the next one's end
	cut      bool // the run ends in the middle of a step
	ends     bool // the run frees everything at its end
	text     bool // no sites
	leaks    []leaker
	oneStep  int // layers of a single step that keeps three blocks for each and frees one
	backward bool
}

// run is a program while it is made up.
type run struct {
	events []trace.Event
	free   []uint32
	slots  uint32
	bytes  map[uint32]int // live blocks
	text   bool
	seeds  int                 // of the first events
	name   func(uint32) string // the stack of a site; nil: one of two frames
}

func (r *run) alloc(site, bytes int) uint32 {
	slot := r.slots
	if n := len(r.free); n > 0 {
		slot, r.free = r.free[n-1], r.free[:n-1]
	} else {
		r.slots++
	}
	if r.text {
		site = 0
	}
	r.events = append(r.events, trace.Event{Bytes: uint64(bytes), Slot: slot, Site: uint32(site)})
	r.bytes[slot] = bytes
	return slot
}

func (r *run) release(slots ...uint32) {
	for _, s := range slots {
		r.events = append(r.events, trace.Event{Slot: s, Op: trace.Free})
		r.free = append(r.free, s)
		delete(r.bytes, s)
	}
}

// Sites of a loop's parts; the sites that allocate and free count from 1.
const (
	siteSame = 500 + iota
	siteLoad
	siteCache
	siteLearns
	siteRandom
	siteRing
	siteOverlap
	sites
)

// sizeOf is what a site asks for, the same in every step.
func sizeOf(site int) int { return 1000*site + 24 }

// play makes the events.
func (l loop) play() *run {
	rng := rand.New(rand.NewPCG(l.seed, 1))
	r := &run{bytes: map[uint32]int{}, text: l.text}
	for range l.load {
		r.alloc(siteLoad, 4<<20)
	}
	chance := func(p float64) bool { return l.noise && rng.Float64() < p }
	var random, ring, overlap []uint32
	known := map[int]bool{}
	type late struct {
		step int
		slot uint32
	}
	var later []late
	for step := range l.steps {
		last := l.cut && step == l.steps-1
		var live []uint32
		var acts []func()
		for site := 1; site <= l.sites; site++ {
			acts = append(acts, func() { live = append(live, r.alloc(site, sizeOf(site))) })
			if chance(.1) { // a step that does something twice
				acts = append(acts, acts[len(acts)-1])
			}
			if step < l.warm {
				r.alloc(site, sizeOf(site))
			}
		}
		for range l.same {
			acts = append(acts, func() { live = append(live, r.alloc(siteSame, l.leaks[0].bytes)) })
		}
		for _, k := range l.leaks {
			if step%k.every == 0 {
				acts = append(acts, func() {
					slot := r.alloc(k.site, k.bytes)
					if rng.Float64() < k.lose {
						later = append(later, late{step + 1 + rng.IntN(5), slot})
					}
				})
			}
		}
		if l.noise {
			for range len(acts) / 4 {
				i := rng.IntN(len(acts))
				j := min(len(acts)-1, i+rng.IntN(4))
				acts[i], acts[j] = acts[j], acts[i]
			}
			if chance(.2) && len(acts) > 4 {
				acts = acts[:len(acts)-1-rng.IntN(len(acts)/8+1)]
			}
		}
		for i, act := range acts {
			if last && i > len(acts)/2 {
				break
			}
			act()
			if n := len(live); n > 0 && i%3 == 2 { // some live only for a moment
				r.release(live[n-1])
				live = live[:n-1]
			}
		}
		if step < l.cache {
			r.alloc(siteCache, 3<<20)
		}
		if l.learns > 0 {
			if shape := rng.IntN(l.learns); !known[shape] {
				known[shape] = true
				r.alloc(siteLearns, 2<<20)
			}
		}
		if l.random > 0 {
			for len(random) < l.random {
				random = append(random, r.alloc(siteRandom, 2<<20))
			}
			i := rng.IntN(len(random))
			r.release(random[i])
			random[i] = r.alloc(siteRandom, 2<<20)
		}
		if l.ring > 0 {
			ring = append(ring, r.alloc(siteRing, 2<<20))
			if len(ring) > l.ring {
				r.release(ring[0])
				ring = ring[1:]
			}
		}
		if last {
			break
		}
		for len(later) > 0 && later[0].step <= step {
			r.release(later[0].slot)
			later = later[1:]
		}
		r.release(overlap...)
		overlap = nil
		if l.overlap {
			overlap = append(overlap, r.alloc(siteOverlap, 5<<20))
		}
		for len(live) > 0 { // the backward pass frees in turn
			r.release(live[len(live)-1])
			live = live[:len(live)-1]
		}
	}
	if l.oneStep > 0 {
		var live []uint32
		for range l.oneStep {
			for site := 1; site <= 3; site++ {
				live = append(live, r.alloc(site, sizeOf(site)))
			}
			r.release(r.alloc(4, sizeOf(4)))
		}
		for l.backward && len(live) > 0 {
			r.alloc(5+len(live)%3, sizeOf(5)) // gradients, kept
			n := len(live)
			r.release(live[n-1])
			live = live[:n-1]
		}
	}
	if l.ends {
		for slot := range r.bytes {
			r.release(slot)
		}
	}
	return r
}

// recording is the run as a recording of one pool.
func (r *run) recording(t testing.TB) *trace.Trace {
	t.Helper()
	read := func(_ *input.Reader, b *tape.Builder) error {
		pool := b.Pool("")
		slots := make([]uint32, r.slots) // the recording's by the run's
		sites := map[uint32]uint32{0: 0}
		for i, e := range r.events {
			slot := e.Slot
			if e.Op == trace.Free {
				if err := pool.Free(trace.Event{Slot: slots[slot]}); err != nil {
					return err
				}
				continue
			}
			if _, ok := sites[e.Site]; !ok {
				var frames []uint32
				for frame := range strings.SplitSeq(r.stack(e.Site), "\n") {
					frames = append(frames, b.Frame(frame, "", 0))
				}
				sites[e.Site] = b.Stack(frames)
			}
			e.Site = sites[e.Site]
			var err error
			if i < r.seeds {
				slots[slot], err = pool.Seed(e)
			} else {
				slots[slot], err = pool.Alloc(e, 0)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	format := trace.Format{Name: "run", Looks: func([]byte) bool { return true }, Read: read}
	tr, err := trace.Formats{format}.Read(t.Context(), strings.NewReader("run"), "run", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// stack is the text of a site.
func (r *run) stack(site uint32) string {
	if r.name != nil {
		return r.name(site)
	}
	return fmt.Sprintf("f%d (train.py:%d)\nmain (train.py:9)", site, site)
}

// found is the answer about a run.
func (r *run) found(t testing.TB) *Report {
	t.Helper()
	rep, err := Find(t.Context(), r.recording(t), Config{})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// look is the answer about a loop.
func look(t testing.TB, l loop) *Report {
	t.Helper()
	return l.play().found(t)
}

// nameOf is what a report calls a leaker.
func (l loop) nameOf(k leaker) string {
	if l.text {
		return newNames(nil, 0, false).of(&place{bytes: uint64(k.bytes)}, false)
	}
	return fmt.Sprintf("f%d (train.py:%d)", k.site, k.site)
}

// What grew in the first half of the run and was freed then is neither a leak nor kept, even
// if no later block takes its place.
func TestWhatIsFreedWasNotKept(t *testing.T) {
	r := &run{bytes: map[uint32]int{}}
	var kept []uint32
	for range 300 {
		kept = append(kept, r.alloc(1, mib))
		r.release(r.alloc(2, mib))
	}
	r.release(kept...)
	for range 300 {
		r.release(r.alloc(2, mib))
	}
	if rep := r.found(t); rep.Verdict != None || len(rep.Leaks)+len(rep.Grew) > 0 {
		t.Errorf("%+v", rep)
	}
}
