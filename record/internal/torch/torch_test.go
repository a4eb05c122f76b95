package torch

// PyTorch snapshots: one small file per layout, and trees made
// here for all that can be odd about a recording.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
	"gpumem/size"
)

// snapshots are the files that testdata/make_snapshots.py writes.
var snapshots = []string{"torch2023.pickle", "torch2025.pickle", "torch2026.pickle"}

func readSnapshot(t *testing.T, name string, opt tape.Options) *tape.Trace {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "trace", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	tr := mustRead(t, data, opt)
	if tr.Format != "torch" {
		t.Errorf("format %q", tr.Format)
	}
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	return tr
}

const (
	noteState = "the snapshot has no allocations or frees, only the state when it was taken: record with torch.cuda.memory._record_memory_history before the run"
	noteSeed1 = "1 block older than the recording (%s) is allocated at its start, in the order of the addresses"
	noteSeeds = "%d blocks older than the recording (%s) are allocated at its start, in the order of the addresses"
)

func TestTorch2023(t *testing.T) {
	tr := readSnapshot(t, "torch2023.pickle", tape.Options{})
	// Addresses come from the segment: the big block, the one that is freed, the
	// one that waits for a stream, the small block.
	const want = `cuda:0: 4 seeds, 1 streams, peak 20300004, end 12000004 in 3
a 0 8000000 site=1
a 1 8300000
a 2 4000000 site=1
a 3 4 site=1
f 1
`
	if d := cmp.Diff(want, tracetest.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	notes := []string{
		fmt.Sprintf(noteSeeds, 4, size.Format(20300004)),
		"1 free of blocks allocated before the recording began; seeded from their size",
	}
	if d := cmp.Diff(notes, tr.Notes); d != "" {
		t.Error(d)
	}
	if got := tr.Site(1); got != "forward (model.py:12)\n<module> (train.py:40)" {
		t.Errorf("site 1: %q", got)
	}
}

func TestTorch2025(t *testing.T) {
	tr := readSnapshot(t, "torch2025.pickle", tape.Options{})
	const want = `cuda:0: 2 seeds, 2 streams, peak 8589941192, end 1055176 in 4
a 0 4000 site=1
a 1 3000
f 1 site=1 at=10000
a 1 2500 site=2 at=20000
a 2 2000000 site=3 at=40000
a 3 100 stream=1 site=2 at=50000
f 2 site=1 at=70000
a 2 8589934592 refused site=2 at=80000
a 2 1048576 site=1 at=100000
a 4 4294967296 refused site=2 at=120000
`
	if d := cmp.Diff(want, tracetest.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	notes := []string{
		fmt.Sprintf(noteSeeds, 2, size.Format(7000)),
		"1 free of blocks allocated before the recording began; seeded from their size",
		"the recorded run was refused 2 requests: the first 8 GiB (event 8; the device had 1 MiB free), the largest 8 GiB",
		"1 block asked to be freed and never completed by the end; left live",
	}
	if d := cmp.Diff(notes, tr.Notes); d != "" {
		t.Error(d)
	}
	sites := []string{
		"",
		"step (adamw.py:220)\n<module> (train.py:40)",
		"forward (model.py:12)\n<module> (train.py:40)",
		"at::_ops::mm::call(at::Tensor const&, at::Tensor const&)\n" +
			"torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)\n__clone3 (clone3.S:81)",
	}
	if int(tr.Sites()) != len(sites) || tr.Site(99) != "" {
		t.Errorf("%d sites, want %d; site 99 is %q", tr.Sites(), len(sites), tr.Site(99))
	}
	for i, want := range sites {
		if got := tr.Site(uint32(i)); got != want {
			t.Errorf("site %d is %q, want %q", i, got, want)
		}
	}
}

func TestTorch2026(t *testing.T) {
	tr := readSnapshot(t, "torch2026.pickle", tape.Options{KeepPaths: true})
	const want = `cuda:0: 0 seeds, 1 streams, peak 1600, end 1000 in 1
a 0 1000 site=1
a 1 600 site=1 at=200000
f 1 site=2 at=400000
cuda:2: 1 seeds, 1 streams, peak 7000, end 2000 in 1
a 0 2000 site=2
a 1 5000 site=3 at=100000
f 1 site=2 at=150000
`
	if d := cmp.Diff(want, tracetest.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"cuda:2: " + fmt.Sprintf(noteSeed1, size.Format(2000))}, tr.Notes); d != "" {
		t.Error(d)
	}
	// By their times, 1000 and 5000 are live together with the seed of 2000; the
	// 600 come after the 5000 are gone.
	if tr.PeakLive != 8000 {
		t.Errorf("peak over both devices: %d", tr.PeakLive)
	}
	if got := tr.Site(1); got != "forward (/home/someone/project/model.py:12)\n<module> (/home/someone/project/train.py:40)" {
		t.Errorf("site 1: %q", got)
	}
}

// The trees below are made of these. kv is keys and values by turns.
func d(kv ...any) *dict {
	out := &dict{}
	for i := 0; i < len(kv); i += 2 {
		v := kv[i+1]
		if n, ok := v.(int); ok {
			v = int64(n)
		}
		out.items = append(out.items, item{kv[i], v})
	}
	return out
}

func l(items ...any) *list { return &list{items: items} }

// ev is an event: action, address, size.
func ev(action string, addr, size int) *dict {
	return d("action", action, "addr", addr, "size", size, "stream", 0)
}

func free(addr, size int) []any {
	return []any{ev("free_requested", addr, size), ev("free_completed", addr, size)}
}

// blk is an active block: address, size.
func blk(addr, size int) *dict {
	return d("address", addr, "size", size, "requested_size", size, "state", "active_allocated")
}

func seg(device int, blocks ...any) *dict {
	return d("device", device, "address", 0, "stream", 0, "blocks", l(blocks...))
}

// played makes a trace of a tree.
func played(tree any) (*tape.Trace, error) {
	return readTrees(context.Background(), tree, tape.Options{})
}

func TestTorchOddities(t *testing.T) {
	for _, c := range []struct {
		name     string
		segments *list
		traces   *list
		want     string
		notes    []string
	}{
		{
			"whole life", l(seg(0, blk(100, 10))), l(l(append(append([]any{ev("alloc", 100, 9)}, free(100, 9)...), ev("alloc", 100, 10))...)),
			"cuda:0: 0 seeds, 1 streams, peak 10, end 10 in 1\na 0 9\nf 0\na 0 10\n", nil,
		},
		{
			"state only", l(seg(1, blk(200, 2), blk(100, 1))), l(),
			"cuda:1: 2 seeds, 1 streams, peak 3, end 3 in 2\na 0 1\na 1 2\n", []string{noteState, fmt.Sprintf(noteSeeds, 2, size.Format(3))},
		},
		{
			"a free never seen, then the address again", l(), l(l(append(free(100, 5), ev("alloc", 100, 6), ev("free_completed", 100, 6))...)),
			"cuda:0: 1 seeds, 1 streams, peak 6, end 0 in 0\na 0 5\nf 0\na 0 6\nf 0\n",
			[]string{fmt.Sprintf(noteSeed1, size.Format(5)), "1 free of blocks allocated before the recording began; seeded from their size"},
		},
		{
			"the second free of two is dropped", l(), l(l(append(append(free(100, 5), free(100, 5)...), ev("alloc", 1, 1), ev("free_completed", 1, 1), ev("free_completed", 1, 1))...)),
			"cuda:0: 1 seeds, 1 streams, peak 5, end 0 in 0\na 0 5\nf 0\na 0 1\nf 0\n",
			[]string{fmt.Sprintf(noteSeed1, size.Format(5)), "1 free of blocks allocated before the recording began; seeded from their size", "2 frees of blocks that are not live; dropped"},
		},
		{
			"an address allocated twice", l(seg(0, blk(100, 6))), l(l(ev("alloc", 100, 5), ev("alloc", 100, 6))),
			"cuda:0: 0 seeds, 1 streams, peak 6, end 6 in 1\na 0 5\nf 0\na 0 6\n",
			[]string{"1 allocation at the address of a live block; the older block is freed there"},
		},
		{
			"recording ended before the snapshot", l(seg(0, blk(300, 7), blk(200, 5))),
			l(l(append([]any{ev("alloc", 100, 1), ev("alloc", 200, 4), ev("alloc", 300, 4)}, append(free(200, 4), free(300, 4)...)...)...)),
			"cuda:0: 0 seeds, 1 streams, peak 13, end 13 in 3\na 0 1\na 1 4\na 2 4\nf 1\nf 2\na 2 5\na 1 7\n",
			[]string{
				"2 blocks active in the segments but not after the last event; allocated at the end",
				"1 block live after the last event but not active in the segments; left live",
			},
		},
		{
			"a free that never completes", l(seg(0, blk(100, 5))), l(l(ev("alloc", 100, 5), ev("free_requested", 100, 5))),
			"cuda:0: 0 seeds, 1 streams, peak 5, end 5 in 1\na 0 5\n",
			[]string{"1 block asked to be freed and never completed by the end; left live"},
		},
		{
			"actions that do not matter, and unknown ones", l(), l(l(ev("segment_alloc", 0, 1), ev("segment_map", 0, 1), ev("snapshot", 0, 1),
				ev("alloc", 1, 1), ev("teleport\n", 0, 0), d("action", 7), ev("segment_unmap", 0, 1), ev("segment_free", 0, 1))),
			"cuda:0: 0 seeds, 1 streams, peak 1, end 1 in 1\na 0 1\n",
			[]string{
				"1 block live after the last event but not active in the segments; left live",
				"2 events with an action that this version does not know (the first: \"teleport\\n\"); skipped",
			},
		},
		{
			"two active blocks at one address", l(seg(0, blk(100, 5), blk(100, 6))), nil,
			"cuda:0: 1 seeds, 1 streams, peak 5, end 5 in 1\na 0 5\n",
			[]string{noteState, fmt.Sprintf(noteSeed1, size.Format(5)), "1 block of the segments at the address of another; the first counts"},
		},
		{
			"out of memory without numbers of the device", l(), l(l(ev("alloc", 1, 1), d("action", "oom", "size", 99), ev("free_completed", 1, 1))),
			"cuda:0: 0 seeds, 1 streams, peak 100, end 0 in 0\na 0 1\na 1 99 refused\nf 0\n",
			[]string{"the recorded run was refused 1 request: 99 B (event 2)"},
		},
		{
			"streams are numbered as they come", l(d("device", 0, "address", 50, "stream", 777, "blocks", l(d("size", 5, "state", "active_pending_free")))),
			l(l(d("action", "alloc", "addr", 1, "size", 1, "stream", 888), d("action", "free_completed", "addr", 1, "size", 1, "stream", 888))),
			"cuda:0: 1 seeds, 3 streams, peak 6, end 5 in 1\na 0 5 stream=2\na 1 1 stream=1\nf 1 stream=1\n",
			[]string{fmt.Sprintf(noteSeed1, size.Format(5))},
		},
		{
			"a device with segments and no blocks", l(seg(3, d("size", 5, "state", "inactive"))), l(l(ev("alloc", 1, 1), ev("free_completed", 1, 1))),
			"cuda:0: 0 seeds, 1 streams, peak 1, end 0 in 0\na 0 1\nf 0\ncuda:3: 0 seeds, 1 streams, peak 0, end 0 in 0\n",
			[]string{"cuda:3: " + noteState},
		},
		{
			"request from the history, or the block's size", l(seg(0,
				d("size", 10, "state", "active_allocated", "history", l(d("real_size", 7), d("real_size", 8))),
				d("size", 10, "state", "active_awaiting_free", "history", l()),
				d("size", 10, "state", "inactive"),
				d("size", 10, "requested_size", 3, "state", "active_allocated", "history", l(d("real_size", 7))))), nil,
			"cuda:0: 3 seeds, 1 streams, peak 20, end 20 in 3\na 0 7\na 1 10\na 2 3\n",
			[]string{noteState, fmt.Sprintf(noteSeeds, 3, size.Format(20))},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := d("segments", c.segments)
			if c.traces != nil {
				top = d("segments", c.segments, "device_traces", c.traces)
			}
			tr, err := played(top)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, tracetest.ShowPools(t, tr)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(c.notes, tr.Notes); d != "" {
				t.Error(d)
			}
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTorchBareSegments: what torch.cuda.memory_snapshot returns.
func TestTorchBareSegments(t *testing.T) {
	tr, err := played(l(seg(0, blk(1, 5))))
	if err != nil || tr.Events != 1 {
		t.Errorf("%v, %v", tr, err)
	}
}

func TestTorchErrors(t *testing.T) {
	same := l(ev("alloc", 1, 1))
	shared := seg(0, blk(1, 1))
	many := make([]any, maxDevices+1)
	for i := range many {
		many[i] = l(ev("alloc", 1, 1))
	}
	segs := func(items ...any) any { return d("segments", l(items...)) }
	traces := func(items ...any) any { return d("device_traces", l(items...)) }
	const not = ", so this is not a PyTorch memory snapshot"
	for _, c := range []struct {
		name string
		tree any
		want string
	}{
		{"another pickle", d("a", 1), `the pickle: has neither "segments" nor "device_traces", so it is not a PyTorch memory snapshot`},
		{"a number", int64(5), "segments: is not a list" + not},
		{"an empty list", l(), "the recording has no events"},
		{"nothing", d("segments", nil), "the recording has no events"},
		{"segments is a dict", d("segments", d()), "segments: is not a list" + not},
		{"traces is a string", d("device_traces", "x"), "device_traces: is not a list" + not},
		{"a trace is a number", traces(l(), int64(5)), "device_traces[1]: is not a list of events"},
		{"an event is a list", traces(l(ev("alloc", 1, 1), l())), "device_traces[0][1]: is not an event"},
		{"no address", traces(l(d("action", "alloc", "size", 1))), `device_traces[0][0]: the alloc has no address "addr" that is a 64-bit number`},
		{"no size", traces(l(d("action", "free_completed", "addr", 1))), `device_traces[0][0]: the free_completed has no "size" that is a number of bytes below 2^64`},
		{"negative size", traces(l(ev("alloc", 1, -1))), `device_traces[0][0]: the alloc has no "size" that is a number of bytes below 2^64`},
		{"the same trace twice", traces(same, same), "device_traces[1]: is the same list as an earlier one; the snapshot is damaged"},
		{"too many devices", traces(many...), "device_traces[256]: the snapshot has more than 256 devices; it is damaged"},
		{"a segment is a number", segs(int64(5)), "segments[0]: is not a segment"},
		{"the same segment twice", segs(shared, shared), "segments[1]: is the same as an earlier one; the snapshot is damaged"},
		{"the same blocks twice", segs(d("address", 1, "blocks", same), d("address", 2, "blocks", same)), "segments[1]: has the same blocks as an earlier one; the snapshot is damaged"},
		{"negative device", segs(seg(-1)), "segments[0]: the device number -1 is negative"},
		{"no address of a segment", segs(d("blocks", l())), `segments[0]: has no "address" that is a 64-bit number`},
		{"no blocks", segs(d("address", 1)), `segments[0]: has no list of "blocks"`},
		{"a block is a number", segs(seg(0, int64(5))), "segments[0]: blocks[0] is not a block"},
		{"a block without a size", segs(seg(0, blk(1, 1), d())), `segments[0]: blocks[1] has no "size" that is a number of bytes below 2^64`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := played(c.tree)
			tracetest.WantInputError(t, err, "in: "+c.want)
		})
	}
}
