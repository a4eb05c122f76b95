package tape

// Several processes that share GPUs, as one recording.
//
// Each process has its own recording. On a GPU they have only memory in common, and each has
// its own allocator. So a joined pool is one GPU, with the events of all of them in the order
// of their times, and its parts say which events are whose: a part has a range of streams.

import (
	"context"
	"errors"
	"strings"

	"gpumem/internal/input"
)

// Member is one process of a joined recording.
type Member struct {
	Name  string // such as "process 1234"
	Trace *Trace // nil if it has no events
	// Begins and Ends are when the process began to hold memory of a GPU, and when it ended, by
	// the clock of the recordings, which is the same in all members; 0 if that is not known, or
	// if it did not end before the others.
	Begins, Ends uint64
	GPUs         []MemberGPU // that it uses
}

// MemberGPU is a GPU of a member.
type MemberGPU struct {
	Pool  string // of the member's trace; others are left out
	Joint string // the pool of the joined recording
}

// Part is one process of a joined pool: it has the streams from Stream on, as many as Streams.
type Part struct {
	Name            string
	Stream, Streams uint32
}

// Act is what a process of a joined pool does beside its events.
type Act struct {
	Event uint64 // how many events of the pool come before
	Part  int    // in Pool.Parts
	What  Doing
	Pool  uint32 // of Serves and Releases
}

// Doing is the kind of an Act.
type Doing uint8

const (
	// Begins: the process takes the memory of its context.
	Begins Doing = iota
	// Trims is as in [Pool.Trims], Serves and Releases are as in [Pool.Privates].
	Trims
	Serves
	Releases
	// Ends: the process has ended, and all its blocks are free.
	Ends
)

// joint is what a joined pool has beside its events.
type joint struct {
	parts []Part
	acts  []Act
}

// Parts returns the processes of a joined pool; nil of any other. [Trace.Save] does not keep
// them.
func Parts(p *Pool) []Part {
	if j, ok := p.joint.(*joint); ok {
		return j.parts
	}
	return nil
}

// Acts returns what the processes of a joined pool do beside its events, in their order.
func Acts(p *Pool) []Act {
	if j, ok := p.joint.(*joint); ok {
		return j.acts
	}
	return nil
}

// errUntimed is the error of a member without times.
var errUntimed = errors.New("a recording without times cannot be joined with others")

// Join makes one recording of several processes, with a pool for each GPU, in the order in
// which the members name them. Addresses are left out, for each process has its own. The
// error is that of reading the events, or of a recording without times.
func Join(ctx context.Context, source string, members []Member, opt Options) (*Trace, error) {
	own := opt.input()
	own.Held = 1 << 50 // the members were read within their limits
	in, err := input.New(ctx, strings.NewReader(""), source, own)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	j := joiner{b: newBuilder(in, formatOf(members), opt), pools: map[string]*jointPool{}}
	if err = j.join(ctx, members); err == nil {
		err = j.b.finish()
	}
	if err != nil {
		_ = j.b.trace.Close() // the error of joining is the one to report
		return nil, err
	}
	return j.b.trace, nil
}

// formatOf returns the format that all members have, or else our own.
func formatOf(members []Member) string {
	format := ""
	for _, m := range members {
		switch {
		case m.Trace == nil:
		case format == "" || format == m.Trace.Format:
			format = m.Trace.Format
		default:
			return Binary.Name
		}
	}
	if format == "" {
		return Binary.Name
	}
	return format
}

type joiner struct {
	b     *Builder
	pools map[string]*jointPool
	runs  []*run
}

// jointPool is a GPU.
type jointPool struct {
	*PoolBuilder
	*joint
	streams uint32 // given out
}

// run is the events of one member on one GPU.
type run struct {
	*jointPool
	member   *Member
	part     int // in the pool's parts
	walk     *Walk
	sites    []uint32 // of the joined recording, by the member's number, as far as they were met
	next     *Event   // nil at the end
	done     uint64   // events so far, of the member's own pool
	slots    []uint32
	trims    []uint64 // to come
	privates []Private
	start    uint64 // the time of the member's time 0
	latest   uint64 // the time of the last event
	began    bool
	ended    bool
}

// join plays all members.
func (j *joiner) join(ctx context.Context, members []Member) error {
	for i := range members {
		if err := j.add(ctx, &members[i]); err != nil {
			return err
		}
	}
	for {
		r, at := j.earliest()
		if r == nil {
			return nil
		}
		j.b.At(at)
		if err := r.step(ctx); err != nil {
			return err
		}
	}
}

// add adds the pools of a member.
func (j *joiner) add(ctx context.Context, m *Member) error {
	if t := m.Trace; t != nil {
		if !t.Timed {
			return errUntimed
		}
		for _, note := range t.Notes {
			j.b.Note("%s: %s", m.Name, note)
		}
		j.b.trace.Settings = t.Settings
	}
	for _, g := range m.GPUs {
		pool := j.pools[g.Joint]
		if pool == nil {
			pool = &jointPool{PoolBuilder: j.b.Pool(g.Joint), joint: &joint{}}
			pool.p.joint = pool.joint
			j.pools[g.Joint] = pool
		}
		r := &run{jointPool: pool, member: m, part: len(pool.parts)}
		part := Part{Name: m.Name, Stream: pool.streams, Streams: 1}
		if own := m.pool(g.Pool); own != nil {
			part.Streams = own.Streams
			r.walk, r.slots = own.Walk(), make([]uint32, own.Slots)
			r.sites, r.start = make([]uint32, m.Trace.Sites()), m.Trace.Origin()
			r.trims, r.privates = own.trims, own.privates
			if err := r.advance(ctx); err != nil {
				return err
			}
		}
		pool.streams += part.Streams
		pool.parts = append(pool.parts, part)
		j.runs = append(j.runs, r)
	}
	return nil
}

// pool returns the member's pool of a name; nil if there is none.
func (m *Member) pool(name string) *Pool {
	if m.Trace == nil {
		return nil
	}
	for _, p := range m.Trace.Pools {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// earliest returns the run whose next step is the first, and its time; nil at the end.
func (j *joiner) earliest() (first *run, at uint64) {
	for _, r := range j.runs {
		if t, ok := r.time(); ok && (first == nil || t < at) {
			first, at = r, t
		}
	}
	return first, at
}

// time returns when the next step is; false if there is none.
func (r *run) time() (uint64, bool) {
	switch {
	case !r.began:
		return r.begins(), true
	case r.next != nil:
		return r.start + r.next.Time, true
	case !r.ended && r.member.Ends != 0:
		return max(r.member.Ends, r.latest), true
	}
	return 0, false
}

// begins returns when the member's context was made, and not after its first event.
func (r *run) begins() uint64 {
	if r.next == nil {
		return r.member.Begins
	}
	first := r.start + r.next.Time
	if r.member.Begins == 0 {
		return first
	}
	return min(r.member.Begins, first)
}

// step does what is next.
func (r *run) step(ctx context.Context) error {
	switch {
	case !r.began:
		r.began = true
		r.act(Begins, 0)
		return nil
	case r.next != nil:
		return r.event(ctx)
	}
	r.ended = true
	if r.walk != nil {
		for _, e := range r.walk.Live() {
			if err := r.Free(Event{Slot: r.slots[e.Slot], Stream: r.stream()}); err != nil {
				return err
			}
		}
	}
	r.act(Ends, 0)
	return nil
}

func (r *run) act(what Doing, pool uint32) {
	r.acts = append(r.acts, Act{r.p.Events, r.part, what, pool})
}

// stream returns the first of the member's streams.
func (r *run) stream() uint32 { return r.parts[r.part].Stream }

// event plays the member's next event.
func (r *run) event(ctx context.Context) error {
	for len(r.trims) > 0 && r.trims[0] <= r.done {
		r.act(Trims, 0)
		r.trims = r.trims[1:]
	}
	for len(r.privates) > 0 && r.privates[0].Event <= r.done {
		what := Serves
		if r.privates[0].Ended {
			what = Releases
		}
		r.act(what, r.privates[0].Pool)
		r.privates = r.privates[1:]
	}
	e := *r.next
	r.latest = r.start + e.Time
	e.Stream, e.Site = r.stream()+e.Stream, r.site(e.Site)
	var err error
	if e.Op == Free {
		e.Slot = r.slots[e.Slot]
		err = r.Free(e)
	} else {
		r.slots[r.next.Slot], err = r.Alloc(e, 0)
	}
	if err != nil {
		return err
	}
	r.done++
	return r.advance(ctx)
}

// advance reads the member's next event.
func (r *run) advance(ctx context.Context) (err error) {
	r.next, err = r.walk.Next(ctx)
	return err
}

// site returns the joined recording's number of a member's site.
func (r *run) site(n uint32) uint32 {
	if n == 0 || n >= uint32(len(r.sites)) {
		return 0
	}
	if r.sites[n] == 0 {
		of := &r.member.Trace.sites
		var frames []uint32
		for _, f := range of.sites[n-1] {
			frames = append(frames, r.b.frame(of.frames[f]))
		}
		r.sites[n] = r.b.Stack(frames)
	}
	return r.sites[n]
}
