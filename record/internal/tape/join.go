package tape

// Several processes that share GPUs, as one recording.
//
// Each process has its own recording. On a GPU they have only memory in common, and each has
// its own allocator. So a joined pool is one GPU, with the events of all of them in the order
// of their times, and its parts say which events are whose: a part has a range of streams.

import (
	"context"
	"errors"
	"math"
	"slices"
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

var (
	errUntimed = errors.New("a recording without times cannot be joined with others")
	errStreams = errors.New("the recordings have more streams than can be numbered")
)

// Join makes one recording of several processes, with a pool for each GPU, in the order in
// which the members name them. Addresses are left out, for each process has its own, and
// segments with them. The settings are those of the member that holds most, which a note says
// where others have other ones. The error is that of reading the events, or of a recording
// without times.
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
	streams  uint32 // given out
	reserved uint64 // by all members
	partly   bool   // of some member it is not known what its pool held
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
	own      *Pool    // the member's; empty of a context alone
	trims    []uint64 // to come, like the next three
	privates []Private
	reserved []Reserved
	waits    []Wait
	waiting  map[uint32]int // in the pool's waits, by the member's slot, those without their Free
	held     uint64         // reserved by the member
	start    uint64         // the time of the member's time 0
	begin    uint64         // the time of its context
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
	j.settings(members)
	j.begin()
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
	}
	for _, g := range m.GPUs {
		pool := j.pools[g.Joint]
		if pool == nil {
			pool = &jointPool{PoolBuilder: j.b.Pool(g.Joint), joint: &joint{}}
			pool.p.joint = pool.joint
			j.pools[g.Joint] = pool
		}
		r := &run{jointPool: pool, member: m, part: len(pool.parts), own: &Pool{}, waiting: map[uint32]int{}}
		part := Part{Name: m.Name, Stream: pool.streams, Streams: 1}
		if own := m.pool(g.Pool); own != nil {
			part.Streams = own.Streams
			if err := r.open(ctx, own); err != nil {
				return err
			}
			if len(own.segments) > 0 {
				j.b.Note("%s: its blocks that are older than the recording are allocated anew, not where they lay", m.Name)
			}
		}
		if pool.streams += part.Streams; pool.streams < part.Streams {
			return errStreams
		}
		pool.parts = append(pool.parts, part)
		j.runs = append(j.runs, r)
	}
	return nil
}

// open begins to read the events of the member's pool.
func (r *run) open(ctx context.Context, own *Pool) error {
	t := r.member.Trace
	r.own, r.walk, r.slots = own, own.Walk(), make([]uint32, own.Slots)
	r.sites, r.start = make([]uint32, t.Sites()), t.Origin()
	r.trims, r.privates, r.reserved, r.waits = own.trims, own.privates, own.reserved, own.waits
	r.partly = r.partly || own.reserved == nil
	return r.advance(ctx)
}

// settings takes the settings of the member that holds most.
func (j *joiner) settings(members []Member) {
	var most *Member
	differ := false
	for i := range members {
		m := &members[i]
		if m.Trace == nil {
			continue
		}
		differ = differ || most != nil && m.Trace.Settings != most.Trace.Settings
		if most == nil || m.Trace.PeakLive > most.Trace.PeakLive {
			most = m
		}
	}
	if most != nil {
		j.b.trace.Settings = most.Trace.Settings
	}
	if differ {
		j.b.Note("the processes have different settings of their allocators; those of %s, which holds most, are taken for all", most.Name)
	}
}

// begin sets when the contexts are made: with the first of all where that is not known.
func (j *joiner) begin() {
	first := uint64(math.MaxUint64)
	isKnown := func(r *run) bool { return r.next != nil || r.member.Begins != 0 }
	for _, r := range j.runs {
		if isKnown(r) {
			r.begin = r.begins()
			first = min(first, r.begin)
		}
	}
	for _, r := range j.runs {
		if !isKnown(r) {
			r.begin = first
		}
	}
}

// Has reports whether the member's recording has a pool of a name.
func (m *Member) Has(pool string) bool { return m.pool(pool) != nil }

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

// earliest returns the run whose next step is the first, and its time; nil at the end. The
// processes that have the last events keep what they have, as in a recording of one.
func (j *joiner) earliest() (first *run, at uint64) {
	if !slices.ContainsFunc(j.runs, func(r *run) bool { return !r.began || r.next != nil }) {
		return nil, 0
	}
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
		return r.begin, true
	case r.next != nil:
		return r.start + r.next.Time, true
	case !r.ended && r.member.Ends != 0:
		return r.member.Ends, true // if that is before its last event, nothing else comes before it
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
		r.beside()
		return nil
	case r.next != nil:
		return r.event(ctx)
	}
	return r.end()
}

// end ends the process.
func (r *run) end() error {
	r.ended = true
	if r.walk != nil {
		for _, e := range r.walk.Live() {
			if err := r.free(e.Slot, Event{Stream: r.stream()}); err != nil {
				return err
			}
		}
	}
	r.act(Ends, 0)
	r.reserve(0)
	return nil
}

func (r *run) act(what Doing, pool uint32) {
	r.acts = append(r.acts, Act{r.p.Events, r.part, what, pool})
}

// stream returns the first of the member's streams.
func (r *run) stream() uint32 { return r.parts[r.part].Stream }

// beside does what the member did after its events so far and before the next one. The times
// of that are not known, so it comes at once: what a program has freed it releases then, and
// may wait for long. A private pool that ended goes back with a trim.
func (r *run) beside() {
	var serve []uint32
	for ; len(r.privates) > 0 && r.privates[0].Event <= r.done; r.privates = r.privates[1:] {
		if x := r.privates[0]; x.Ended {
			r.act(Releases, x.Pool)
		} else {
			serve = append(serve, x.Pool)
		}
	}
	for ; len(r.trims) > 0 && r.trims[0] <= r.done; r.trims = r.trims[1:] {
		r.act(Trims, 0)
	}
	for _, pool := range serve {
		r.act(Serves, pool)
	}
	for ; len(r.waits) > 0 && r.waits[0].From <= r.done; r.waits = r.waits[1:] {
		slot := r.waits[0].Slot
		r.waiting[slot] = len(r.p.waits)
		r.p.waits = append(r.p.waits, Wait{Slot: r.slots[slot], From: r.p.Events})
	}
}

// reserve notes what the member's pool holds from the next event on.
func (r *run) reserve(bytes uint64) {
	r.jointPool.reserved += bytes - r.held
	if r.held = bytes; !r.partly {
		r.Reserved(r.jointPool.reserved)
	}
}

// event plays the member's next event.
func (r *run) event(ctx context.Context) error {
	for ; len(r.reserved) > 0 && r.reserved[0].Event <= r.done+1; r.reserved = r.reserved[1:] {
		r.reserve(r.reserved[0].Bytes)
	}
	e := *r.next
	e.Stream, e.Site = r.stream()+e.Stream, r.site(e.Site)
	if err := r.play(e); err != nil {
		return err
	}
	r.done++
	r.beside()
	return r.advance(ctx)
}

// play adds an event, whose slot is the member's.
func (r *run) play(e Event) (err error) {
	if e.Op == Free {
		return r.free(e.Slot, e)
	}
	r.slots[e.Slot], err = r.Alloc(e, 0)
	if k, ok := r.own.Keeper(r.done + 1); ok {
		if r.p.keepers == nil {
			r.p.keepers = map[uint64]Keeper{}
		}
		r.p.keepers[r.p.Events] = k
	}
	return err
}

// free adds the Free of a slot of the member's.
func (r *run) free(slot uint32, e Event) error {
	e.Slot = r.slots[slot]
	err := r.Free(e)
	if i, ok := r.waiting[slot]; ok {
		r.p.waits[i].To = r.p.Events
		delete(r.waiting, slot)
	}
	return err
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
