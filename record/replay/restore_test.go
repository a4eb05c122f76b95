package replay_test

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// snapshot is a recording of PyTorch: the segments at its first event, those that it took from
// its device later, and what happens, a word each: "seed20" is a block of 20 MiB that is there
// before, "20" a request, "free0" the free of the first block, "end1" the end of private pool 1,
// "empty" that the program empties its cache.
type snapshot struct {
	settings       string
	began, granted []tape.Segment
	events         string
}

// segment is one with a block in all of it.
func segment(addr, bytes uint64) tape.Segment {
	return tape.Segment{Addr: addr, Bytes: bytes, Blocks: []tape.SegmentBlock{{Addr: addr, Bytes: bytes}}}
}

func (s snapshot) recording(t *testing.T) *trace.Trace {
	t.Helper()
	read := func(_ *input.Reader, b *tape.Builder) (err error) {
		b.Settings(s.settings)
		pool := b.Pool("")
		pool.Segments(append([]tape.Segment{}, s.began...))
		pool.Granted(s.granted)
		var slots []uint32
		for word := range strings.FieldsSeq(s.events) {
			what := strings.TrimRight(word, "0123456789")
			n, _ := strconv.ParseUint(word[len(what):], 10, 32)
			slot := uint32(0)
			switch what {
			case "seed":
				slot, err = pool.Seed(tape.Event{Bytes: n * mib})
				slots = append(slots, slot)
			case "":
				slot, err = pool.Alloc(tape.Event{Bytes: n * mib}, 0)
				slots = append(slots, slot)
			case "free":
				err = pool.Free(tape.Event{Slot: slots[n]})
			case "end":
				pool.Private(uint32(n), true)
			case "empty":
				pool.Trim()
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	tr, err := trace.Formats{{Name: "torch", Looks: func([]byte) bool { return true }, Read: read}}.Read(t.Context(), strings.NewReader("x"), "x", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// replayed returns where the blocks lie in a replay, and what the pool holds after each event.
func (s snapshot) replayed(t *testing.T, device, policy string) (addrs, held []uint64) {
	t.Helper()
	cfg := config(t, device, policy)
	cfg.Hooks = []func(*replay.Pass) replay.Hook{func(p *replay.Pass) replay.Hook {
		return replay.Hook{Event: func(e *trace.Event, b alloc.Block) error {
			if e.Op == trace.Alloc {
				addrs = append(addrs, b.Addr)
			}
			held = append(held, p.Held)
			return nil
		}}
	}}
	run(t, s.recording(t), cfg)
	return addrs, held
}

const (
	low  = 0x70_0000_0000
	high = 0x7f_0000_0000
)

// A pool of the recorded settings takes its memory where the recorded one did.
func TestSegmentsLieWhereTheyWereRecorded(t *testing.T) {
	for _, test := range []struct {
		name, policy string
		s            snapshot
		want         []uint64
	}{
		{"in the order of the requests", "pytorch", snapshot{
			granted: []tape.Segment{segment(high, 20*mib), segment(low, 20*mib)}, events: "20 20"}, []uint64{high, low}},
		{"of the same size", "pytorch", snapshot{
			granted: []tape.Segment{segment(high, 20*mib), segment(low, 32*mib)}, events: "32 20"}, []uint64{low, high}},
		{"none that is taken, as one that the program gave back is not here", "pytorch", snapshot{
			granted: []tape.Segment{segment(low, 20*mib), segment(low, 20*mib)}, events: "20 20"}, []uint64{low, 0}},
		{"one that was given back", "pytorch", snapshot{
			granted: []tape.Segment{segment(low, 20*mib), segment(low, 20*mib)}, events: "20 free0 empty 20"}, []uint64{low, low}},
		{"none that another overlaps", "pytorch", snapshot{
			granted: []tape.Segment{segment(low, 20*mib), segment(low+mib, 32*mib)}, events: "20 32"}, []uint64{low, 0}},
		{"none that overlaps another", "pytorch", snapshot{
			granted: []tape.Segment{segment(low+mib, 20*mib), segment(low, 32*mib)}, events: "20 32"}, []uint64{low + mib, 0}},
		{"under the recorded settings", "pytorch:max_split_size_mb=64", snapshot{settings: "max_split_size_mb:64",
			granted: []tape.Segment{segment(low, 20*mib)}, events: "20"}, []uint64{low}},
		{"not under others", "pytorch:max_split_size_mb=64", snapshot{
			granted: []tape.Segment{segment(low, 20*mib)}, events: "20"}, []uint64{0}},
		{"not under another backend", "pytorch", snapshot{settings: "backend:cudaMallocAsync",
			granted: []tape.Segment{segment(low, 20*mib)}, events: "20"}, []uint64{0}},
		{"not under another framework's", "jax", snapshot{
			granted: []tape.Segment{segment(low, 20*mib)}, events: "20"}, []uint64{0}},
		{"from the first event on", "pytorch", snapshot{
			began: []tape.Segment{segment(low, 20*mib)}, events: "seed20 20"}, []uint64{low, 0}},
		{"not at addresses of a damaged recording", "pytorch", snapshot{
			granted: []tape.Segment{segment(1<<62, 20*mib)}, events: "20"}, []uint64{0}},
		{"nor at the end of all addresses", "pytorch", snapshot{
			granted: []tape.Segment{segment(math.MaxUint64-mib, 20*mib)}, events: "20"}, []uint64{0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, _ := test.s.replayed(t, "sim:1GiB", test.policy)
			recorded := append(slices.Clone(test.s.began), test.s.granted...)
			for i, addr := range got {
				if known := slices.ContainsFunc(recorded, func(s tape.Segment) bool { return addr-s.Addr < s.Bytes }); !known {
					got[i] = 0 // elsewhere
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%#x, want %#x", got, test.want)
			}
		})
	}
}

// A pool that cannot begin as the recorded one begins empty: nothing is left of what was tried.
func TestPoolThatCannotBeginAsRecordedIsEmpty(t *testing.T) {
	two := []tape.Segment{segment(low, 40*mib), segment(high, 40*mib)}
	wide := []tape.Segment{{Addr: low, Bytes: 40 * mib, Blocks: []tape.SegmentBlock{{Addr: low, Requested: 50 * mib}}}}
	for _, test := range []struct {
		name, device string
		began        []tape.Segment
		want         uint64
	}{
		{"a device that is large enough", "sim:80MiB", two, 80 * mib},
		{"a device that is too small", "sim:64MiB", two, 10 * mib},
		{"a block that does not fit its segment", "sim:80MiB", wide, 10 * mib},
	} {
		if _, held := (snapshot{began: test.began, events: "seed10 30"}).replayed(t, test.device, "pytorch"); held[0] != test.want {
			t.Errorf("%s: %d MiB are held, want %d", test.name, held[0]/mib, test.want/mib)
		}
	}
}

// A private pool that was there at the first event gives its memory back when it has ended. There
// is none where the pool could not begin as the recorded one.
func TestPrivatePoolFromBeforeEnds(t *testing.T) {
	private := segment(low, 20*mib)
	private.Private = 1
	for _, test := range []struct {
		name   string
		other  tape.Segment
		events string
		want   uint64
	}{
		{"restored", segment(high, 20*mib), "seed20 seed20 10 free0 end1 empty 0", 30 * mib},
		{"not restored", tape.Segment{Addr: high, Bytes: 20 * mib, Blocks: []tape.SegmentBlock{{Addr: high, Requested: 50 * mib}}},
			"seed20 seed50 10 free0 end1 empty 0", 60 * mib},
	} {
		_, held := snapshot{began: []tape.Segment{private, test.other}, events: test.events}.replayed(t, "sim:128MiB", "pytorch")
		if got := held[len(held)-1]; got != test.want || held[2] != got+20*mib {
			t.Errorf("%s: %d are held, at the end %d MiB, want %d", test.name, held, got/mib, test.want/mib)
		}
	}
}
