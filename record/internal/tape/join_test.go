package tape

// Recordings of several processes as one: the order of events and of what the processes do
// beside them, and what is kept of each recording.

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clock is when the recordings of these tests begin, more or less.
const clock = 1_790_000_000_000_000_000

// membered is what a test does in the recording of a process.
type membered struct {
	t *testing.T
	b *Builder
	*PoolBuilder
}

func (m *membered) alloc(at, bytes uint64, stream uint32) (slot uint32) {
	m.t.Helper()
	m.b.At(clock + at)
	slot, err := m.Alloc(Event{Bytes: bytes, Stream: stream}, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	return slot
}

func (m *membered) free(at uint64, slot uint32) {
	m.t.Helper()
	m.b.At(clock + at)
	if err := m.Free(Event{Slot: slot}); err != nil {
		m.t.Fatal(err)
	}
}

// member returns a process with a recording; begins and ends are 0 or after clock.
func member(t *testing.T, name string, begins, ends uint64, record func(m *membered)) Member {
	t.Helper()
	out := Member{Name: name, GPUs: []MemberGPU{{"GPU_0", "cuda:0"}}}
	if begins != 0 {
		out.Begins = clock + begins
	}
	if ends != 0 {
		out.Ends = clock + ends
	}
	if record == nil {
		return out // a context alone
	}
	b := testBuilder("text", Options{})
	record(&membered{t, b, b.Pool("GPU_0")})
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.trace.Close() })
	out.Trace = b.trace
	return out
}

// join joins members that have the GPU in common.
func join(t *testing.T, members ...Member) *Trace {
	t.Helper()
	tr, err := Join(t.Context(), "all", members, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// showJoined lists the events of the first pool by their times, and what the processes do between them.
func showJoined(t *testing.T, tr *Trace) string {
	t.Helper()
	var out strings.Builder
	p := tr.Pools[0]
	parts, acts := Parts(p), Acts(p)
	words := []string{Begins: "begins", Trims: "trims", Serves: "serves", Releases: "releases", Ends: "ends"}
	list := events(t, p, 3)
	for i := range len(list) + 1 {
		for len(acts) > 0 && acts[0].Event == uint64(i) {
			a := acts[0]
			line := fmt.Sprint("   ", parts[a.Part].Name, " ", words[a.What])
			if a.Pool != 0 {
				line += fmt.Sprint(" ", a.Pool)
			}
			out.WriteString(line + "\n")
			acts = acts[1:]
		}
		if i < len(list) {
			e := list[i]
			at := slices.IndexFunc(parts, func(p Part) bool { return e.Stream-p.Stream < p.Streams })
			fmt.Fprintf(&out, "%d %s %s slot %d stream %d\n", e.Time, parts[at].Name, e.Op, e.Slot, e.Stream-parts[at].Stream)
		}
	}
	return out.String()
}

func TestJoinOrdersEventsAndWhatIsBesideThem(t *testing.T) {
	for _, tc := range []struct {
		name    string
		members func(t *testing.T) []Member
		want    string
	}{
		{"by time, each with its own slots and streams", func(t *testing.T) []Member {
			return []Member{
				member(t, "a", 0, 0, func(m *membered) { m.free(30, m.alloc(10, 1, 1)) }),
				member(t, "b", 0, 0, func(m *membered) { m.free(40, m.alloc(20, 1, 0)) }),
			}
		}, `
   a begins
0 a alloc slot 0 stream 1
   b begins
10 b alloc slot 1 stream 0
20 a free slot 0 stream 0
30 b free slot 1 stream 0
`},
		{"a context before the first event", func(t *testing.T) []Member {
			return []Member{
				member(t, "a", 0, 0, func(m *membered) { m.alloc(10, 1, 0); m.alloc(30, 1, 0) }),
				member(t, "b", 20, 0, func(m *membered) { m.alloc(40, 1, 0) }),
			}
		}, `
   a begins
0 a alloc slot 0 stream 0
   b begins
20 a alloc slot 1 stream 0
30 b alloc slot 2 stream 0
`},
		{"a context that is said to come after the first event", func(t *testing.T) []Member {
			return []Member{member(t, "a", 20, 0, func(m *membered) { m.alloc(10, 1, 0); m.alloc(30, 1, 0) })}
		}, `
   a begins
0 a alloc slot 0 stream 0
20 a alloc slot 1 stream 0
`},
		{"contexts alone, one of an unknown time", func(t *testing.T) []Member {
			return []Member{
				member(t, "a", 0, 0, nil),
				member(t, "b", 0, 0, func(m *membered) { m.alloc(10, 1, 0) }),
				member(t, "c", 20, 30, nil),
				member(t, "d", 5, 0, nil),
			}
		}, `
   a begins
   d begins
   b begins
5 b alloc slot 0 stream 0
   c begins
`},
		{"an end with a live block, and one before the last event", func(t *testing.T) []Member {
			return []Member{
				member(t, "a", 0, 15, func(m *membered) { m.alloc(10, 1, 0); m.alloc(20, 1, 0); m.free(30, 1) }),
				member(t, "b", 0, 0, func(m *membered) { m.alloc(31, 1, 0) }),
			}
		}, `
   a begins
0 a alloc slot 0 stream 0
10 a alloc slot 1 stream 0
20 a free slot 1 stream 0
20 a free slot 0 stream 0
   a ends
   b begins
21 b alloc slot 0 stream 0
`},
		{"a trim, which comes at once, also behind the last event", func(t *testing.T) []Member {
			return []Member{
				member(t, "a", 0, 0, func(m *membered) {
					slot := m.alloc(10, 1, 0)
					m.Trim()
					m.free(30, slot)
					m.Trim()
				}),
				member(t, "b", 0, 0, func(m *membered) { m.alloc(20, 1, 0); m.alloc(40, 1, 0) }),
			}
		}, `
   a begins
0 a alloc slot 0 stream 0
   a trims
   b begins
10 b alloc slot 1 stream 0
20 a free slot 0 stream 0
   a trims
30 b alloc slot 0 stream 0
`},
		{"private pools, whose end comes before the trim between the same events", func(t *testing.T) []Member {
			return []Member{member(t, "a", 0, 0, func(m *membered) {
				m.Private(7, false)
				slot := m.alloc(10, 1, 0)
				m.Private(0, false)
				m.Trim()
				m.Private(7, true)
				m.free(30, slot)
				m.Private(8, true)
			})}
		}, `
   a begins
   a serves 7
0 a alloc slot 0 stream 0
   a releases 7
   a trims
   a serves
20 a free slot 0 stream 0
   a releases 8
`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := join(t, tc.members(t)...)
			if d := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), showJoined(t, tr)); d != "" {
				t.Error(d)
			}
			if err := checkTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestJoinKeepsWhatTheRecordingsHave: the numbers of events and slots are those of the joined pool.
func TestJoinKeepsWhatTheRecordingsHave(t *testing.T) {
	list := Keeper{"list `hist`", "train.py:8"}
	a := member(t, "a", 0, 50, func(m *membered) {
		m.b.Note("a note")
		m.b.Settings("expandable_segments:True")
		m.Reserved(0)
		m.Reserved(20)
		x := m.alloc(10, 1, 0)
		y := m.alloc(15, 3, 0)
		m.Waits([]Wait{{Slot: x, From: 1, To: 3}, {Slot: y, From: 2}})
		m.Reserved(40)
		m.free(30, x)
		m.Keepers(map[uint64]Keeper{2: list})
	})
	b := member(t, "b", 0, 0, func(m *membered) {
		m.Reserved(5)
		m.alloc(12, 1, 0)
		m.alloc(60, 1, 0)
	})
	tr := join(t, b, a)
	p := tr.Pools[0]
	// 1 alloc a, 2 alloc b, 3 alloc a, 4 free a, 5 free a at its end, 6 alloc b
	if want := []Wait{{0, 1, 4}, {2, 3, 5}}; !slices.Equal(p.Waits(), want) {
		t.Errorf("waits %v, want %v", p.Waits(), want)
	}
	if want := []Reserved{{0, 0}, {1, 20}, {2, 25}, {4, 45}, {6, 5}}; !slices.Equal(p.Reserved(), want) {
		t.Errorf("reserved %v, want %v", p.Reserved(), want)
	}
	if k, ok := p.Keeper(3); !ok || k != list || len(p.keepers) != 1 {
		t.Errorf("keepers %v", p.keepers)
	}
	if tr.Settings != "expandable_segments:True" || !slices.Contains(tr.Notes, "a: a note") {
		t.Errorf("settings %q, notes %q", tr.Settings, tr.Notes)
	}
	if want := "the processes have different settings of their allocators; those of a, which holds most, are taken for all"; !slices.Contains(tr.Notes, want) {
		t.Errorf("notes %q", tr.Notes)
	}
	if err := checkTrace(tr); err != nil {
		t.Error(err)
	}
}

// TestJoinLeavesOutWhatIsNotKnownOfAll: what the GPU's pools hold together is not known if that of one is not, and settings that
// all have need no note.
func TestJoinLeavesOutWhatIsNotKnownOfAll(t *testing.T) {
	same := "backend:native"
	tr := join(t,
		member(t, "a", 0, 0, func(m *membered) { m.b.Settings(same); m.Reserved(20); m.alloc(10, 1, 0) }),
		member(t, "b", 0, 0, func(m *membered) { m.b.Settings(same); m.alloc(10, 1, 0) }),
		member(t, "c", 5, 0, nil))
	if got := tr.Pools[0].Reserved(); got != nil {
		t.Errorf("reserved %v", got)
	}
	if tr.Settings != same || len(tr.Notes) > 0 {
		t.Errorf("settings %q, notes %q", tr.Settings, tr.Notes)
	}
}

// TestJoinSaysThatOldBlocksAreAllocatedAnew: where they lay is an address of their process.
func TestJoinSaysThatOldBlocksAreAllocatedAnew(t *testing.T) {
	tr := join(t,
		member(t, "a", 0, 0, func(m *membered) {
			if _, err := m.Seed(Event{Bytes: 1}); err != nil {
				t.Fatal(err)
			}
			m.alloc(10, 1, 0)
			m.Segments([]Segment{{Addr: 1 << 20, Bytes: 1 << 20, Blocks: []SegmentBlock{{Addr: 1 << 20, Requested: 1}}}})
		}),
		member(t, "b", 0, 0, func(m *membered) { m.alloc(20, 1, 0) }))
	if want := []string{"a: its blocks that are older than the recording are allocated anew, not where they lay"}; !slices.Equal(tr.Notes, want) {
		t.Errorf("notes %q, want %q", tr.Notes, want)
	}
}

// TestSegmentsAreApart: blocks of one segment may touch and not overlap, nor do segments.
func TestSegmentsAreApart(t *testing.T) {
	for _, tc := range []struct {
		name string
		list []Segment
		want bool
	}{
		{"blocks that touch", []Segment{{Addr: 100, Bytes: 50, Blocks: []SegmentBlock{{Addr: 100, Bytes: 20}, {Addr: 120, Bytes: 30}}}, {Addr: 150, Bytes: 10}}, true},
		{"blocks that overlap", []Segment{{Addr: 100, Bytes: 50, Blocks: []SegmentBlock{{Addr: 100, Bytes: 21}, {Addr: 120, Bytes: 30}}}}, false},
		{"segments that overlap", []Segment{{Addr: 100, Bytes: 50}, {Addr: 149, Bytes: 10}}, false},
	} {
		if got, _ := areApart(tc.list); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
