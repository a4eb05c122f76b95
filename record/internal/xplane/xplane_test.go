package xplane

// Profiles of XLA's profiler: made here, compared with a slow
// model, and one that TensorFlow wrote.

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// xpEvent is an event of a profile that is being made. Sizes below 0 are left
// out.
type xpEvent struct {
	line                       int   // the thread
	at                         int64 // picoseconds
	free                       bool
	pool                       string // a number is index_on_host
	addr                       uint64
	requested, allocated, held int64
	op, shape                  string
}

// xpProfile makes profiles in the ways that there are.
type xpProfile struct {
	timestamp int64 // of each line, in nanoseconds
	refs      bool  // texts are names of stats
	late      bool  // the names come before the lines, and times after the events
	program   int   // bytes of a program among the names
}

var xpStats = []string{"", "allocator_name", "index_on_host", "bytes_allocated", "requested_bytes", "allocation_bytes", "addr", "tf_op", "shape", "fragmentation", "data_type", "bytes_reserved"}

// write makes a profile: a plane of a device, that of the host, another one.
func (x xpProfile) write(events []xpEvent) []byte {
	texts := map[string]uint64{}
	var names []string // of stats beyond xpStats
	text := func(m tracetest.PB, s string) tracetest.PB {
		if !x.refs {
			return m.Text(5, s)
		}
		if texts[s] == 0 {
			names = append(names, s)
			texts[s] = uint64(len(xpStats) + len(names) - 1)
		}
		return m.Num(7, texts[s])
	}
	lines := map[int]tracetest.PB{}
	other := tracetest.PB{}.Num(1, 3).Num(2, 1).Bytes(4, tracetest.PB{}.Num(1, 2).Num(4, 1)).Bytes(4, tracetest.PB{}.Num(1, 9)).Bytes(4, tracetest.PB{}.Num(1, 9)).Bytes(4, text(tracetest.PB{}.Num(1, 9), "other")).Bytes(4, tracetest.PB{}.Num(1, 10))
	for _, e := range events {
		m := tracetest.PB{}.Num(1, 1)
		if e.free {
			m = tracetest.PB{}.Num(1, 2)
		}
		if at := e.at - x.timestamp*1000; at != 0 {
			m = m.Num(2, uint64(at))
		}
		if strings.Trim(e.pool, "0123456789") == "" {
			var n uint64
			fmt.Sscan(e.pool, &n)
			m = m.Bytes(4, tracetest.PB{}.Num(1, 2).Num(4, n))
		} else {
			m = m.Bytes(4, text(tracetest.PB{}.Num(1, 1), e.pool))
		}
		m = m.Bytes(4, tracetest.PB{}.Num(1, 9).Fixed(2, 0x3f50000000000000)).Bytes(4, tracetest.PB{}.Num(1, 11).Num(4, 0))
		for i, n := range []int64{e.held, e.requested, e.allocated} {
			if n >= 0 {
				m = m.Bytes(4, tracetest.PB{}.Num(1, uint64(3+i)).Num(protowire.Number(3+i%2), uint64(n))) // both kinds of numbers
			}
		}
		m = m.Bytes(4, tracetest.PB{}.Num(1, 6).Num(4, e.addr))
		if e.op != "" {
			m = m.Bytes(4, text(tracetest.PB{}.Num(1, 7), e.op))
		}
		if e.shape != "" {
			m = m.Bytes(4, text(tracetest.PB{}.Num(1, 8), e.shape))
			m = m.Bytes(4, tracetest.PB{}.Num(1, 10).Num(4, 1))
		}
		lines[e.line] = lines[e.line].Bytes(4, other).Bytes(4, m)
	}
	host := tracetest.PB{}.Text(2, "/host:CPU")
	var body tracetest.PB
	for _, n := range slices.Sorted(maps.Keys(lines)) {
		line := tracetest.PB{}.Num(1, uint64(n)).Text(2, fmt.Sprint("thread ", n))
		if x.late {
			line = append(append(line, lines[n]...), tracetest.PB{}.Num(3, uint64(x.timestamp))...)
		} else {
			line = append(line.Num(3, uint64(x.timestamp)), lines[n]...)
		}
		body = body.Bytes(3, line)
	}
	entry := func(id uint64, name string) tracetest.PB {
		return tracetest.PB{}.Num(1, id).Bytes(2, tracetest.PB{}.Num(1, id).Text(2, name))
	}
	var meta tracetest.PB
	meta = meta.Bytes(4, entry(1, "MemoryAllocation")).Bytes(4, entry(2, "MemoryDeallocation"))
	meta = meta.Bytes(4, tracetest.PB{}.Num(1, 3).Bytes(2, tracetest.PB{}.Text(2, "ThreadpoolListener").Text(3, strings.Repeat("H", x.program))))
	for i, name := range append(slices.Clone(xpStats), names...) {
		if i > 0 {
			meta = meta.Bytes(5, entry(uint64(i), name))
		}
	}
	if x.late {
		host = append(append(host, meta...), body...)
	} else {
		host = append(append(host, body...), meta...)
	}
	// On a device the same numbers mean other things.
	device := tracetest.PB{}.Num(1, 2).Text(2, "/device:GPU:0").Bytes(3, lines[0]).Bytes(4, entry(1, "MemoryAllocation"))
	return tracetest.PB{}.Bytes(1, device).Bytes(1, host).Bytes(1, tracetest.PB{}.Text(2, "Task Environment")).Text(4, "hostname")
}

// model is what a profile should become, pool by pool, by the rules in words and
// in no hurry.
func (x xpProfile) model(all []xpEvent) string {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b xpEvent) int { return cmp.Compare(a.line, b.line) }) // the file
	slices.SortStableFunc(all, func(a, b xpEvent) int { return cmp.Compare(a.at, b.at) })
	pools := map[string][]xpEvent{}
	for _, e := range all {
		pools[e.pool] = append(pools[e.pool], e)
	}
	size := func(e xpEvent) int64 {
		if e.requested > 0 || e.requested == 0 && !e.free {
			return e.requested
		}
		return e.allocated
	}
	site := func(e xpEvent) string {
		s := e.op
		if e.shape != "" {
			s = strings.TrimSpace(s + " (float32" + e.shape + ")")
		}
		return s
	}
	var out strings.Builder
	for _, name := range slices.SortedFunc(maps.Keys(pools), func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }) {
		evs := pools[name]
		type seed struct {
			addr        uint64
			size, block int64
		}
		var seeds []seed
		var known int64
		for i, e := range evs {
			if slices.ContainsFunc(evs[:i], func(o xpEvent) bool { return o.addr == e.addr }) || !e.free {
				continue
			}
			s := seed{e.addr, max(0, size(e)), max(0, e.allocated)}
			if size(e) < 0 && i > 0 && evs[i-1].held > e.held && e.held >= 0 {
				s.size = evs[i-1].held - e.held
			}
			s.block = max(s.block, s.size)
			known += s.block
			seeds = append(seeds, s)
		}
		var lines []string
		block := map[uint64]int{}
		allocs := 0
		alloc := func(n int64, site string) int {
			lines = append(lines, fmt.Sprintf("a %d %d %s\n", allocs, n, site))
			allocs++
			return allocs - 1
		}
		before := max(0, evs[0].held) + max(0, evs[0].allocated)
		if !evs[0].free {
			before = max(0, max(0, evs[0].held)-max(0, evs[0].allocated))
		}
		if before > known {
			alloc(before-known, "held since before the recording")
		}
		slices.SortFunc(seeds, func(a, b seed) int { return cmp.Compare(a.addr, b.addr) })
		for _, s := range seeds {
			block[s.addr] = alloc(s.size, "")
		}
		lines = append([]string{fmt.Sprintf("%s: %d seeds\n", name, allocs)}, lines...)
		for _, e := range evs {
			old, live := block[e.addr]
			delete(block, e.addr)
			switch {
			case live && e.free:
				lines = append(lines, fmt.Sprintf("f %d %s\n", old, site(e)))
			case live:
				lines = append(lines, fmt.Sprintf("f %d \n", old))
			}
			if !e.free {
				block[e.addr] = alloc(max(0, size(e)), site(e))
			}
		}
		out.WriteString(strings.Join(lines, ""))
	}
	return out.String()
}

// randomEvents is a run over some pools and threads, of which a profile has
// perhaps not everything.
func randomEvents(t *rapid.T) []xpEvent {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"GPU_0_bfc", "GPU_10_bfc", "gpu_host_bfc", "0", "12"}), 1, 3, rapid.ID[string]).Draw(t, "pools")
	sizes := rapid.SampledFrom([]string{"all", "none of frees", "none"}).Draw(t, "sizes")
	lossy := rapid.Bool().Draw(t, "lossy")
	type pool struct {
		held int64
		live map[uint64]int64
	}
	pools := map[string]*pool{}
	for _, name := range names {
		p := &pool{live: map[uint64]int64{}}
		for range rapid.IntRange(0, 4).Draw(t, "older") {
			n := rapid.Int64Range(1, 1000).Draw(t, "older bytes")
			p.live[uint64(len(p.live)+1)<<8] = n
			p.held += n
		}
		pools[name] = p
	}
	var out []xpEvent
	at := int64(5_000_000_000)
	for range rapid.IntRange(1, 40).Draw(t, "events") {
		p := pools[rapid.SampledFrom(names).Draw(t, "pool")]
		e := xpEvent{line: rapid.IntRange(0, 3).Draw(t, "line"), at: at, requested: -1, allocated: -1, held: -1}
		for name, q := range pools {
			if q == p {
				e.pool = name
			}
		}
		at += rapid.Int64Range(0, 1500).Draw(t, "picoseconds")
		e.addr = uint64(rapid.IntRange(1, 8).Draw(t, "address")) << 8
		n, live := p.live[e.addr]
		if e.free = live; live {
			delete(p.live, e.addr)
			p.held -= n
		} else {
			n = rapid.Int64Range(0, 1<<20).Draw(t, "bytes")
			p.live[e.addr] = n
			p.held += n
			e.op = rapid.SampledFrom([]string{"", "matmul", "relu", "a/b:c"}).Draw(t, "op")
			e.shape = rapid.SampledFrom([]string{"", "[4,5]"}).Draw(t, "shape")
		}
		if sizes == "all" || sizes == "none of frees" && !e.free {
			e.requested, e.allocated = n, n
		}
		if !lossy || rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
			if e.held = p.held; lossy && rapid.IntRange(0, 9).Draw(t, "no state") == 0 {
				e.held = -1
			}
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		out = []xpEvent{{at: at, pool: "0", addr: 1, requested: 1, allocated: 1, held: 1}}
	}
	return out
}

func TestXPlaneModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := xpProfile{
			timestamp: rapid.SampledFrom([]int64{0, 1234, 5_000_001}).Draw(t, "timestamp"),
			refs:      rapid.Bool().Draw(t, "refs"),
			late:      rapid.Bool().Draw(t, "late"),
			program:   rapid.SampledFrom([]int{0, 10, 3 * input.MaxLine}).Draw(t, "program"),
		}
		events := randomEvents(t)
		data := x.write(events)
		tr, err := formats.Read(context.Background(), bytes.NewReader(data), "in", tape.Options{SpoolLimit: rapid.SampledFrom([]int{0, -1}).Draw(t, "spool")})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := tracetest.CheckTrace(tr); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, p := range tr.Pools {
			list, err := tracetest.ShowBlocks(tr, p)
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString(list)
		}
		if d := gocmp.Diff(x.model(events), got.String()); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
	})
}

// readXP reads a profile of these events.
func readXP(t testing.TB, events ...xpEvent) *tape.Trace {
	t.Helper()
	tr := mustRead(t, xpProfile{timestamp: 1}.write(events), tape.Options{})
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	return tr
}

func TestXPlaneNotes(t *testing.T) {
	on := func(pool string, at int64, addr uint64, n, held int64) xpEvent {
		return xpEvent{pool: pool, at: at, addr: addr, requested: n - 1, allocated: n, held: held}
	}
	off := func(e xpEvent) xpEvent { e.free = true; return e }
	bare := func(e xpEvent) xpEvent { e.requested, e.allocated = -1, -1; return e }
	const (
		rest    = "%s is live when the recording begins and is not freed in it; allocated at its start as one block"
		seeds   = "2 blocks older than the recording (%s), known from their frees, are allocated at its start, in the order of the addresses"
		stepped = "2 frees of these blocks without a size; taken from the step of bytes_allocated"
	)
	for _, c := range []struct {
		name   string
		events []xpEvent
		want   []string
	}{
		{"all is known", []xpEvent{on("p", 1, 1, 10, 10), off(on("p", 2, 1, 10, 0))}, nil},
		{"all is older", []xpEvent{on("p", 1, 9, 10, 100)}, []string{fmt.Sprintf(rest, "90 B")}},
		{"some are freed", []xpEvent{on("p", 1, 9, 10, 100), off(on("p", 2, 1, 20, 80)), off(on("p", 3, 2, 30, 50))}, []string{fmt.Sprintf(rest, "40 B"), fmt.Sprintf(seeds, "48 B")}},
		{"frees have no size", []xpEvent{on("p", 1, 9, 10, 100), bare(off(on("p", 2, 1, 0, 80))), bare(off(on("p", 3, 2, 0, 50)))}, []string{fmt.Sprintf(rest, "40 B"), fmt.Sprintf(seeds, "50 B"), stepped}},
		{"nothing has a size", []xpEvent{bare(on("p", 1, 9, 0, 100)), bare(off(on("p", 2, 9, 0, 90)))}, []string{fmt.Sprintf(rest, "100 B"), "1 block without a size; counted as 0 bytes"}},
		{"an event is missing", []xpEvent{on("p", 1, 1, 10, 10), on("p", 2, 2, 10, 30), on("p", 3, 3, 10, 40)}, []string{"1 of 2 steps of bytes_allocated is not the size of the block: the profile has not all events"}},
		{"a free is missing", []xpEvent{on("p", 1, 1, 10, 10), on("p", 2, 1, 10, 10)}, []string{"1 of 1 step of bytes_allocated is not the size of the block: the profile has not all events", "1 allocation at the address of a live block; the older block is freed there"}},
		{"an allocation is missing", []xpEvent{on("p", 1, 1, 10, 10), off(on("p", 2, 1, 10, 0)), off(on("p", 3, 1, 10, 0))}, []string{"1 of 2 steps of bytes_allocated is not the size of the block: the profile has not all events", "1 free of blocks that are not live; dropped"}},
		{"two pools", []xpEvent{on("q", 1, 1, 10, 15), on("p", 2, 1, 10, 16)}, []string{"p: " + fmt.Sprintf(rest, "6 B"), "q: " + fmt.Sprintf(rest, "5 B")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := gocmp.Diff(c.want, readXP(t, c.events...).Notes); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
	// The stat of the address goes by another number than its name.
	data := bytes.ReplaceAll(xpProfile{}.write([]xpEvent{on("p", 1, 1, 10, 10), on("p", 2, 2, 10, 20)}), []byte{2<<3 | 2, 4, 'a', 'd', 'd', 'r'}, []byte{2<<3 | 2, 4, 'b', 'd', 'd', 'r'})
	_, err := readString(string(data))
	tracetest.WantInputError(t, err, "in: the profile has no MemoryAllocation or MemoryDeallocation events; record one of a GPU or TPU, with a host_tracer_level of 2 or more, of a part of the run that allocates")
}

func TestXPlaneDamaged(t *testing.T) {
	host := func(m tracetest.PB) tracetest.PB {
		return tracetest.PB{}.Bytes(1, append(tracetest.PB{}.Text(2, "/host:CPU"), m...))
	}
	many := make([]xpEvent, maxPools+1)
	for i := range many {
		many[i] = xpEvent{at: int64(i), pool: fmt.Sprint(i), addr: 1, requested: 1, allocated: 1, held: 1}
	}
	const again = "; copy the file again"
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"no host", tracetest.PB{}.Bytes(1, tracetest.PB{}.Text(2, "/device:GPU:0")), "in: the profile has no MemoryAllocation or MemoryDeallocation events; record one of a GPU or TPU, with a host_tracer_level of 2 or more, of a part of the run that allocates"},
		{"plane is a number", tracetest.PB{}.Num(1, 1), "in: damaged: field 1 is of the kind 0 instead of 2; it does not begin as a file of this format does, so let the format be recognised"},
		{"line is a number", host(tracetest.PB{}.Num(3, 1)), "in: byte 13: damaged: field 3 is of the kind 0 instead of 2" + again},
		{"event is a number", host(tracetest.PB{}.Bytes(3, tracetest.PB{}.Num(4, 1))), "in: byte 15: damaged: field 4 is of the kind 0 instead of 2" + again},
		{"event breaks off", host(tracetest.PB{}.Bytes(3, tracetest.PB{}.Bytes(4, tracetest.PB{0x22, 5}))), "in: byte 15: damaged: an event that does not end where it should" + again},
		{"stat breaks off", host(tracetest.PB{}.Bytes(3, tracetest.PB{}.Bytes(4, tracetest.PB{}.Bytes(4, nil).Bytes(4, nil).Bytes(4, nil).Bytes(4, tracetest.PB{8})))), "in: byte 15: damaged: an event with a stat that does not end where it should" + again},
		{"time is text", host(tracetest.PB{}.Bytes(3, tracetest.PB{}.Text(3, ""))), "in: byte 15: damaged: field 3 is of the kind 2 instead of 0" + again},
		{"too many pools", xpProfile{}.write(many), "in: the profile has more than 256 allocators; it is damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := formats.Read(context.Background(), bytes.NewReader(c.data), "in", tape.Options{Format: "xplane"})
			tracetest.WantInputError(t, err, c.want)
		})
	}
}

// TestXPlaneTensorFlow: three matrix products of TensorFlow with 100 rows, two
// older blocks of 160,000 and 80,000 bytes freed, and five that stay.
func TestXPlaneTensorFlow(t *testing.T) {
	tr := mustRead(t, tracetest.Sample(t, "tensorflow.xplane.pb"), tape.Options{})
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	p := tr.Pools[0]
	if tr.Format != "xplane" || len(tr.Pools) != 1 || p.Name != "bfc_cpu_allocator_for_gpu" || tr.Events-tr.Seeds != 12 || p.Seeds != 3 || p.Slots != 6 {
		t.Fatalf("%+v %+v", tr, p)
	}
	got := map[string]int{}
	var seeds []uint64
	for i, e := range tracetest.Events(t, p, 3) {
		if uint64(i) < p.Seeds {
			seeds = append(seeds, e.Bytes)
		} else if e.Op == tape.Alloc {
			got[fmt.Sprint(e.Bytes, " ", tr.Site(e.Site))]++
		}
	}
	slices.Sort(seeds[1:])
	if d := gocmp.Diff([]uint64{760576, 80000, 160000}, seeds); d != "" { // 760,000 bytes in units of 64
		t.Error(d)
	}
	if d := gocmp.Diff(map[string]int{"40000 _MklMatMul (float32[100,100], output)": 3, "40000 Relu (float32[100,100], output)": 3}, got); d != "" {
		t.Error(d)
	}
}

func TestXPlaneTime(t *testing.T) {
	for _, c := range []struct {
		timestamp, offset int64
		ns                uint64
		ps                uint16
	}{
		{0, 0, 0, 0}, {5, 1999, 6, 999}, {5, -1, 4, 999}, {5, -1000, 4, 0}, {0, -1, 0, 0},
		{1 << 62, 1 << 62, 1<<62 + (1<<62)/1000, 387904 % 1000}, {1<<63 - 1, 1 << 62, 0, 0},
	} {
		ns, ps := xplaneTime(c.timestamp, c.offset)
		if ns != c.ns || ps != c.ps {
			t.Errorf("%d ns, %d ps: %d and %d, want %d and %d", c.timestamp, c.offset, ns, ps, c.ns, c.ps)
		}
	}
}

// FuzzXPlane: any bytes give a consistent trace or an *Error.
func FuzzXPlane(f *testing.F) {
	f.Add(tracetest.Sample(f, "tensorflow.xplane.pb"))
	some := []xpEvent{{at: 1, pool: "GPU_0_bfc", addr: 1, requested: 1, allocated: 256, held: 512, op: "dot", shape: "[1]"}, {at: 2, pool: "1", free: true, addr: 1, requested: -1, allocated: -1, held: 256}}
	f.Add(xpProfile{}.write(some))
	f.Add(xpProfile{refs: true, late: true}.write(some))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, formats, in, "xplane") })
}
