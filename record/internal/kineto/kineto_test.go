package kineto

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"gpumem/internal/input"
	"gpumem/record/internal/spool"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

var formats = tape.Formats{Format}

func mustRead(t testing.TB, data []byte) *tape.Trace {
	t.Helper()
	return tracetest.MustRead(t, formats, data, tape.Options{KeepPaths: true})
}

func readString(s string) (*tape.Trace, error) {
	return formats.Read(context.Background(), strings.NewReader(s), "in", tape.Options{})
}

// The slow reader: everything is in memory, and every event looks at all spans.

type slowEvent struct {
	Name, Cat, Ph string
	Pid, Tid      any
	Ts, Dur       json.Number
	Args          map[string]any
}

func (e *slowEvent) begin() *big.Rat { return rat(e.Ts) }
func (e *slowEvent) end() *big.Rat   { return new(big.Rat).Add(rat(e.Ts), rat(cmp.Or(e.Dur, "0"))) }

func rat(n json.Number) *big.Rat {
	r, ok := new(big.Rat).SetString(string(cmp.Or(n, "0")))
	if !ok {
		panic(n)
	}
	return r
}

func (e *slowEvent) thread() string { return fmt.Sprint(e.Pid, " ", e.Tid) }

func (e *slowEvent) number(arg string) (int64, bool) {
	n, ok := e.Args[arg].(json.Number)
	v, err := n.Int64()
	return v, ok && err == nil
}

// slowFrame is "name (file:line)" of "file(line): name", without addresses.
func slowFrame(text string) string {
	text = regexp.MustCompile(` at 0x[0-9a-f]+`).ReplaceAllString(text, "")
	place, name, ok := strings.Cut(text, "): ")
	if at := strings.LastIndex(place, "("); ok && at > 0 && strings.Trim(place[at+1:], "0123456789") == "" {
		return fmt.Sprintf("%s (%s:%s)", input.Cut(cmp.Or(name, "?"), 200), place[:at], place[at+1:])
	}
	return input.Cut(text, 200)
}

// slowSite is the stack of an event, with that of the forward pass behind one of the backward
// pass that has no Python.
func slowSite(e *slowEvent, all map[string][]*slowEvent) string {
	stack, open := slowStack(e, all[e.thread()])
	if python := slices.ContainsFunc(open, func(s *slowEvent) bool {
		_, lines := s.Args["Call stack"]
		return lines || strings.Contains(s.Name, "): ")
	}); python {
		return stack
	}
	for _, s := range open {
		number, ok := s.number("Sequence number")
		if thread, _ := s.number("Fwd thread id"); !ok || thread == 0 {
			continue
		}
		var forward *slowEvent // the last before the span
		for _, spans := range all {
			for _, f := range spans {
				n, ok := f.number("Sequence number")
				thread, _ := f.number("Fwd thread id")
				same := ok && n == number && thread == 0 && f.Pid == e.Pid
				before := same && f.begin().Cmp(s.begin()) <= 0
				if later := forward == nil || forward.begin().Cmp(f.begin()) < 0; before && later {
					forward = f
				}
			}
		}
		if forward != nil {
			// Of spans that begin with it, those within are not around it.
			around := slices.DeleteFunc(slices.Clone(all[forward.thread()]), func(s *slowEvent) bool {
				return s != forward && s.begin().Cmp(forward.begin()) == 0 && s.end().Cmp(forward.end()) <= 0
			})
			below, _ := slowStack(forward, around)
			lines := strings.Split(stack+"\nin the backward pass of\n"+below, "\n")
			return strings.Join(lines[:min(len(lines), tape.MaxFrames)], "\n")
		}
	}
	return stack
}

// slowStack is the stack of the thread of e at its time, of the thread's spans, and those that
// are open then, the innermost first.
func slowStack(e *slowEvent, spans []*slowEvent) (string, []*slowEvent) {
	now := e.begin()
	var open []*slowEvent
	for _, s := range spans {
		if s.begin().Cmp(now) <= 0 && s.end().Cmp(now) >= 0 {
			open = append(open, s)
		}
	}
	// One that is over where the next begins is not around it.
	open = slices.DeleteFunc(open, func(s *slowEvent) bool {
		return slices.ContainsFunc(open, func(next *slowEvent) bool {
			return next != s && next.begin().Cmp(s.end()) >= 0 && s.begin().Cmp(next.begin()) < 0
		})
	})
	slices.SortStableFunc(open, func(a, b *slowEvent) int {
		return cmp.Or(a.begin().Cmp(b.begin()), b.end().Cmp(a.end()))
	})
	slices.Reverse(open)
	var stack []string
	for _, s := range open {
		stack = append(stack, slowFrame(s.Name))
	}
	for _, s := range open {
		if lines, _ := s.Args["Call stack"].(string); lines != "" {
			for l := range strings.SplitSeq(lines, ";") {
				stack = append(stack, slowFrame(l))
			}
			break
		}
	}
	return strings.Join(stack[:min(len(stack), tape.MaxFrames)], "\n"), open
}

// slowPool is what the slow reader has of a device: each event as "a BYTES STACK" or "f BYTES",
// and the sums, which count from what Total Allocated was before the first event, or, where a
// trace does not have it, from the frees of what was not allocated.
type slowPool struct {
	name      string
	events    []string
	peak, end int64
}

func slowRead(t testing.TB, data []byte) map[string]*slowPool {
	t.Helper()
	if len(data) > 1 && data[0] == 0x1f {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if data, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	var trace struct{ TraceEvents []*slowEvent }
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&trace); err != nil {
		t.Fatal(err)
	}
	spans := make(map[string][]*slowEvent)
	var memory []*slowEvent
	for _, e := range trace.TraceEvents {
		switch {
		case e.Name == "[memory]":
			memory = append(memory, e)
		case e.Ph == "X" && (e.Cat == "cpu_op" || e.Cat == "Operator" || e.Cat == "python_function" ||
			e.Cat == "user_annotation" && !strings.HasPrefix(e.Name, "ProfilerStep#")):
			spans[e.thread()] = append(spans[e.thread()], e)
		}
	}
	slices.SortStableFunc(memory, func(a, b *slowEvent) int { return a.begin().Cmp(b.begin()) })
	pools := make(map[string]*slowPool)
	type state struct {
		now, older int64
		live       map[string]int64 // bytes by address, or the number of blocks by size
	}
	states := make(map[string]*state)
	for _, e := range memory {
		kind, _ := e.number("Device Type")
		name := "cpu"
		if kind == 1 {
			name = fmt.Sprintf("cuda:%v", e.Args["Device Id"])
		}
		p, s := pools[name], states[name]
		n, _ := e.number("Bytes")
		total, hasTotal := e.number("Total Allocated")
		if p == nil {
			p, s = &slowPool{name: name}, &state{live: make(map[string]int64)}
			pools[name], states[name] = p, s
			if hasTotal {
				s.now, p.peak = total-n, total-n
			}
		}
		addr, hasAddr := e.Args["Addr"]
		key := fmt.Sprint(addr)
		if !hasAddr {
			key = fmt.Sprint("of ", max(n, -n))
		}
		if n > 0 {
			p.events = append(p.events, fmt.Sprintf("a %d %s", n, slowSite(e, spans)))
			s.live[key]++
		} else {
			p.events = append(p.events, fmt.Sprintf("f %d", -n))
			if s.live[key]--; s.live[key] < 0 {
				s.live[key] = 0
				s.older -= n
			}
		}
		s.now += n
		p.peak, p.end = max(p.peak, s.now), s.now
		if !hasTotal { // what is freed and was not allocated was there from the start
			p.peak, p.end = max(p.peak, s.now+s.older), s.now+s.older
		}
	}
	for name, p := range pools {
		if _, ok := memory[0].number("Total Allocated"); ok {
			continue
		}
		// The peak counts all that is older, also where it was found out later.
		now, peak := states[name].older, states[name].older
		for _, e := range p.events {
			var n int64
			fmt.Sscanf(e[2:], "%d", &n)
			if e[0] == 'f' {
				n = -n
			}
			now += n
			peak = max(peak, now)
		}
		p.peak, p.end = peak, now
	}
	return pools
}

// compareWithSlow compares a trace with the slow reader: each event in order, its bytes, its
// stack, the peak and what lives at the end.
func compareWithSlow(t *testing.T, data []byte) {
	t.Helper()
	tr := mustRead(t, data)
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	// A token may begin in one piece of the file and end in the next.
	pieces, err := formats.Read(t.Context(), iotest.OneByteReader(bytes.NewReader(data)), "in", tape.Options{KeepPaths: true})
	if err != nil {
		t.Fatal(err)
	}
	defer pieces.Close()
	if d := tracetest.Diff(tr, pieces); d != "" {
		t.Errorf("read byte by byte: %s", d)
	}
	want := slowRead(t, data)
	if len(want) != len(tr.Pools) {
		t.Errorf("%d pools, want %d", len(tr.Pools), len(want))
	}
	for _, p := range tr.Pools {
		w := want[p.Name]
		if w == nil {
			t.Errorf("pool %q", p.Name)
			continue
		}
		size := make(map[uint32]uint64)
		var got []string
		for i, e := range tracetest.Events(t, p, 1000) {
			switch {
			case e.Op == tape.Alloc:
				size[e.Slot] = e.Bytes
				if uint64(i) >= p.Seeds && !e.Refused {
					got = append(got, fmt.Sprintf("a %d %s", e.Bytes, tr.Site(e.Site)))
				}
			default:
				got = append(got, fmt.Sprintf("f %d", size[e.Slot]))
			}
		}
		if len(got) != len(w.events) {
			t.Errorf("%s: %d events, want %d", p.Name, len(got), len(w.events))
			continue
		}
		wrong := 0
		for i := range got {
			if got[i] != w.events[i] {
				if wrong++; wrong <= 3 {
					t.Errorf("%s: event %d:\n%s\nwant\n%s", p.Name, i, got[i], w.events[i])
				}
			}
		}
		if p.Refused == 0 && p.PeakLive != uint64(w.peak) || p.EndLive != uint64(w.end) {
			t.Errorf("%s: peak %d, end %d; want %d, %d", p.Name, p.PeakLive, p.EndLive, w.peak, w.end)
		}
		t.Logf("%s: %d events, %d of them with other bytes or stacks than in the slow reader; peak %d", p.Name, len(got), wrong, p.PeakLive)
	}
}

func TestRealTraceIsThatOfTheSlowReader(t *testing.T) {
	compareWithSlow(t, tracetest.Sample(t, "kineto.json.gz"))
}

// The events of a trace of 2021 of another program, without addresses and totals.
func TestTraceOfOthersIsThatOfTheSlowReader(t *testing.T) {
	for _, file := range tracetest.Others(t, "field3", "kineto-*.json") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		compareWithSlow(t, data)
	}
}

// generated is a trace of n events of memory in random threads, with spans, most within each
// other, in the order in which PyTorch writes them: by thread and kind.
func generated(rnd *rand.Rand, n int) []byte {
	type thread struct {
		ops, python, memory []string
		open                []int // begins of open spans
	}
	threads := make([]thread, 1+rnd.IntN(3))
	type block struct {
		addr, device int
		bytes        int
	}
	var live []block
	total := make([]int, 3)
	for i := range total {
		total[i] = rnd.IntN(2) * 5000
	}
	older := []block{{addr: 0x77000, device: 0, bytes: 2000}, {addr: 0x78000, device: 2, bytes: 1000}}
	if total[0] > 0 {
		live = append(live, older[0])
	}
	if total[2] > 0 {
		live = append(live, older[1])
	}
	now := 1_000_000
	names := []string{"aten::mm", "train.py(20): <module>", "a/b (c)/x.py(3): f", "nn.Module: Linear_0", "<built-in method x of Tensor object at 0x7fb95517f5c0>", "ProfilerStep#3"}
	noPython := rnd.IntN(2) == 0
	closeSpan := func(k int, th *thread) {
		at := len(th.open) - 1
		if rnd.IntN(4) == 0 { // as those of record_function do
			at = rnd.IntN(len(th.open))
		}
		begin := th.open[at]
		th.open = slices.Delete(th.open, at, at+1)
		cat := []string{"python_function", "cpu_op", "user_annotation", "kernel"}[rnd.IntN(4)]
		if noPython {
			cat = "cpu_op"
		}
		args := ""
		switch {
		case cat == "cpu_op" && rnd.IntN(4) > 0:
			args = fmt.Sprintf(`, "args": {"Sequence number": %d, "Fwd thread id": %d}`, rnd.IntN(3), rnd.IntN(2))
		case cat == "cpu_op" && rnd.IntN(3) == 0:
			args = `, "args": {"External id": [1, {"Bytes": 3}], "Call stack": "y.py(1): g;train.py(20): <module>"}`
		}
		line := fmt.Sprintf(`{"ph": "X", "cat": %q, "name": %q, "pid": 7, "tid": %d, "ts": %d.%03d, "dur": %d.%03d%s}`,
			cat, names[rnd.IntN(len(names))], 100+k, begin/1000, begin%1000, (now-begin)/1000, (now-begin)%1000, args)
		if cat == "python_function" {
			th.python = append(th.python, line)
		} else {
			th.ops = append(th.ops, line)
		}
	}
	for i := range n {
		k := rnd.IntN(len(threads))
		th := &threads[k]
		now += 1 + rnd.IntN(2000)
		switch op := rnd.IntN(6); {
		case op == 0:
			th.open = append(th.open, now)
		case op == 1 && len(th.open) > 0:
			closeSpan(k, th)
		default:
			b := block{addr: 0x10000 + 0x1000*i, device: rnd.IntN(3), bytes: 1 + rnd.IntN(4000)}
			sign := 1
			if len(live) > 0 && rnd.IntN(2) == 0 {
				at := rnd.IntN(len(live))
				b = live[at]
				live = slices.Delete(live, at, at+1)
				sign = -1
			} else {
				live = append(live, b)
			}
			total[b.device] += sign * b.bytes
			kind, id := 1, b.device
			if b.device == 2 {
				kind, id = 0, -1
			}
			th.memory = append(th.memory, fmt.Sprintf(`{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": %d, "ts": %d.%03d,`+
				` "args": {"Total Reserved": %d, "Total Allocated": %d, "Bytes": %d, "Device Id": %d, "Device Type": %d, "Addr": %d}}`,
				100+k, now/1000, now%1000, 4096*i, total[b.device], sign*b.bytes, id, kind, b.addr))
		}
	}
	var lines []string
	for k := range threads {
		for len(threads[k].open) > 0 {
			now += 10
			closeSpan(k, &threads[k])
		}
		lines = append(lines, threads[k].ops...)
		lines = append(lines, threads[k].memory...)
		lines = append(lines, threads[k].python...)
	}
	return []byte(`{"schemaVersion": 1, "x": {"traceEvents": [1]}, "traceEvents": [` + strings.Join(lines, ",\n  ") + `], "traceName": "x"}`)
}

// Some have stacks that go on in the forward pass.
func TestRandomTracesAreThoseOfTheSlowReader(t *testing.T) {
	linked, compared := 0, 0
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			data := generated(rand.New(rand.NewPCG(seed, 1)), 5+int(seed)*5)
			if !bytes.Contains(data, []byte("[memory]")) {
				return // it is refused, and not compared
			}
			compared++
			compareWithSlow(t, data)
			tr := mustRead(t, data)
			for i := range tr.Sites() {
				if strings.Contains(tr.Site(i), "in the backward pass of") {
					linked++
				}
			}
		})
	}
	if linked < 20 || compared < 55 {
		t.Errorf("%d traces are compared, and %d stacks go on in the forward pass", compared, linked)
	}
}

// Runs of three records, merged, are in the order that one run has.
func TestManyRunsAreInOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []record
	for i := range 1000 {
		r := record{begin: rnd.Uint64N(50), thread: uint32(i), of: rnd.Uint32(), kind: span}
		if r.end = r.begin + rnd.Uint64N(3); rnd.IntN(2) == 0 {
			r = record{begin: r.begin, thread: uint32(i), of: r.of, kind: memory, has: uint8(rnd.IntN(32)),
				bytes: rnd.Int64() - rnd.Int64(), addr: rnd.Uint64(), allocated: rnd.Uint64(), reserved: rnd.Uint64()}
		}
		all = append(all, r)
	}
	var got []record
	_, err := tape.Formats{{Name: "x", Looks: func([]byte) bool { return true }, Read: func(in *input.Reader, b *tape.Builder) error {
		s := newSorter(b.Spool())
		defer s.close()
		s.most = 3
		for i := range all {
			s.add(&all[i])
		}
		return s.each(func(r *record) error {
			got = append(got, *r)
			return nil
		})
	}}}.Read(t.Context(), strings.NewReader("x"), "in", tape.Options{SpoolLimit: 100, TempDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "no events") { // none were made of the records
		t.Fatal(err)
	}
	slices.SortStableFunc(all, func(a, b record) int { return compare(&a, &b) })
	if !slices.Equal(got, all) {
		t.Errorf("%d records, want %d in order", len(got), len(all))
	}
}

// A run is read back in small pieces, so that the merge of many takes little memory.
func TestRunsAreSpooledInPieces(t *testing.T) {
	s := newSorter(spool.New(1<<20, t.TempDir()))
	defer s.close()
	for i := range uint64(3000) {
		s.add(&record{begin: i, kind: memory, bytes: math.MaxInt64, addr: math.MaxUint64, allocated: math.MaxUint64, reserved: math.MaxUint64})
	}
	s.seal()
	if s.err != nil || len(s.runs) != 1 || len(s.runs[0]) != 3 {
		t.Fatalf("%v, %d pieces", s.err, len(s.runs[0]))
	}
	for _, piece := range s.runs[0] {
		var buf []byte
		if got, err := s.spool.Load(piece, &buf); err != nil || len(got) > pieceBytes {
			t.Errorf("a piece of %d bytes, %v", len(got), err)
		}
	}
}

// memoryLine is an event at a time in microseconds.
func memoryLine(ts, bytes, total int, rest string) string {
	return fmt.Sprintf(`{"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":%d,"args":{"Bytes":%d,"Total Allocated":%d,"Device Type":1,"Device Id":0%s}}`, ts, bytes, total, rest)
}

func traceOf(lines ...string) string { return `{"traceEvents":[` + strings.Join(lines, ",") + `]}` }

func TestNotesSayWhatIsAssumed(t *testing.T) {
	for _, test := range []struct {
		name, trace string
		want        []string
	}{
		{"whole", traceOf(memoryLine(1, 8, 8, `,"Addr":1`), memoryLine(2, -8, 0, `,"Addr":1`)), nil},
		{"some is older, some of it is freed", traceOf(memoryLine(1, 8, 108, `,"Addr":1`), memoryLine(2, -30, 78, `,"Addr":2`)), []string{
			"1 block older than the recording (30 B) is allocated at its start, in the order of the addresses; known from the frees",
			"70 B is live when the recording begins and is not freed in it; allocated at its start as one block",
		}},
		{"an event is missing", traceOf(memoryLine(1, 8, 8, `,"Addr":1`), memoryLine(3, 8, 24, `,"Addr":3`)), []string{
			"1 of 1 step of Total Allocated is not the bytes of the event: events are missing or out of order",
		}},
		{"one total is not known", traceOf(memoryLine(1, 8, 8, `,"Addr":1`),
			strings.Replace(memoryLine(2, 8, 16, `,"Addr":2`), "Total Allocated", "Total", 1), memoryLine(3, 8, 24, `,"Addr":3`)), nil},
		{"of 2021", `[{"ph":"i","name":"[memory]","args":{"Bytes":4,"Device Type":0,"Device Id":-1}}]`, []string{
			"the events have no addresses, as PyTorch wrote them until 2021; a free is taken for the youngest block of its size",
		}},
		{"not usable", traceOf(memoryLine(1, 8, 8, `,"Addr":1`), `{"ph":"i","name":"[memory]","args":{"Bytes":8}}`, `{"ph":"i","name":"[memory]"}`), []string{
			"2 memory events without a device or bytes; skipped",
		}},
		{"refused", traceOf(memoryLine(1, 8, 8, `,"Addr":1`), `{"ph":"i","name":"[OutOfMemory]","pid":1,"tid":1,"ts":3,"args":{"Bytes":4096,"Device Type":1,"Device Id":0}}`), []string{
			"the recorded run was refused 1 request: 4 KiB (event 2)",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := mustRead(t, []byte(test.trace))
			if !slices.Equal(tr.Notes, test.want) {
				t.Errorf("%q\nwant %q", tr.Notes, test.want)
			}
		})
	}
}

func TestPoolsAreDevices(t *testing.T) {
	line := func(pid, kind, id int) string {
		return fmt.Sprintf(`{"ph":"i","name":"[memory]","pid":%d,"tid":"1","ts":1,"args":{"Bytes":4,"Addr":1,"Total Reserved":0,"Device Type":%d,"Device Id":%d}}`, pid, kind, id)
	}
	tr := mustRead(t, []byte(traceOf(line(1, 0, -1), line(1, 12, 0), line(1, 1, 10), line(1, 1, 2), line(2, 1, 2), line(1, 77, 5))))
	var names []string
	for _, p := range tr.Pools {
		names = append(names, p.Name)
	}
	want := []string{"cuda:2 of process 1", "cuda:2 of process 2", "cuda:10", "xpu:0", "device type 77:5", "cpu"}
	if !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	// Where a block of the host lies is no placement of a pool, and nothing is reserved there.
	gpu, host := tr.Pools[0], tr.Pools[len(tr.Pools)-1]
	if gpu.Placed != 1 || host.Placed != 0 {
		t.Errorf("%d placements on the GPU, %d on the host", gpu.Placed, host.Placed)
	}
	if len(gpu.Reserved()) != 1 || len(host.Reserved()) != 0 {
		t.Errorf("reserved on the GPU %v, on the host %v", gpu.Reserved(), host.Reserved())
	}
}

// What the pool holds from its device is known at each event, also where a block turns out to be
// older than the recording after that.
func TestReservedStandsAtItsEvents(t *testing.T) {
	tr := mustRead(t, []byte(traceOf(
		memoryLine(1, 8, 38, `,"Addr":1,"Total Reserved":100`),
		memoryLine(2, 8, 46, `,"Addr":2,"Total Reserved":200`),
		memoryLine(3, 8, 54, `,"Addr":3,"Total Reserved":200`),
		memoryLine(4, -30, 24, `,"Addr":4,"Total Reserved":150`),
	)))
	p := tr.Pools[0]
	want := []tape.Reserved{{Event: 0, Bytes: 100}, {Event: 3, Bytes: 200}, {Event: 5, Bytes: 150}}
	if !slices.Equal(p.Reserved(), want) || p.Seeds != 1 {
		t.Errorf("%v with %d seeds, want %v", p.Reserved(), p.Seeds, want)
	}
}

// devices are events of as many devices.
func devices(n int) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf(`{"ph":"i","name":"[memory]","args":{"Bytes":4,"Device Type":1,"Device Id":%d}}`, i))
	}
	return lines
}

func TestWhatIsNotReadIsSaid(t *testing.T) {
	for _, test := range []struct{ name, trace, want string }{
		{"no memory", traceOf(`{"ph":"X","name":"aten::mm","ts":1,"dur":2}`),
			"in: a Chrome trace without memory events; record with torch.profiler.profile(profile_memory=True, with_stack=True)"},
		{"XLA", `{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M"}]}`,
			"in: a Chrome trace of XLA's profiler, without memory events; the file NAME.xplane.pb beside it has them"},
		{"XLA, for Perfetto", `{"displayTimeUnit":"ns","traceEvents":[{"ph":"M","pid":701,"name":"process_name","args":{"name":"/host:CPU"}}]}`,
			"in: a Chrome trace of XLA's profiler, without memory events; the file NAME.xplane.pb beside it has them"},
		{"no events", `{"schemaVersion":1}`, `in: JSON without the member "traceEvents", so no trace of PyTorch's profiler`},
		{"cut short", `{"schemaVersion":1,"traceEvents":[{"ph":"X","na`, "in: byte 47: the file is cut short: the end of a string is missing; copy the file again"},
		{"cut short between events", `{"schemaVersion":1,"traceEvents":[{"ph":"X"},`, "in: byte 45: the file is cut short: a value is missing; copy the file again"},
		{"more behind", traceOf() + "x", "in: byte 18: damaged: the trace is at its end here, and more follows; copy the file again"},
		{"JSON of something else", `[{"name":"x"}]`, `in:1: "[{\"name\":\"x\"}]": not a recording that this version knows; it reads kineto ` +
			"(a trace of PyTorch's profiler with profile_memory=True, JSON); the log of a program is for gpumem doctor"},
		{"many devices", traceOf(devices(maxPools + 1)...), "in: byte 81930: memory events of more than 1024 devices; the trace is damaged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := readString(test.trace)
			tracetest.WantInputError(t, err, test.want)
		})
	}
}

// spanLine is a span of a thread, in microseconds.
func spanLine(name string, begin, length int, rest string) string {
	return fmt.Sprintf(`{"ph":"X","cat":"cpu_op","name":%q,"pid":1,"tid":1,"ts":%d,"dur":%d%s}`, name, begin, length, rest)
}

func TestStackIsOfTheSpansAroundTheEvent(t *testing.T) {
	block := memoryLine(10, 8, 8, `,"Addr":1`)
	for _, test := range []struct {
		name, trace, want string
	}{
		{"within another", traceOf(spanLine("outer", 0, 20, ""), spanLine("inner", 5, 10, ""), block), "inner\nouter"},
		{"at the end of one", traceOf(spanLine("one", 0, 10, ""), block), "one"},
		{"where one ends and the next begins", traceOf(spanLine("one", 0, 10, ""), spanLine("next", 10, 10, ""), block), "next"},
		{"that begins with another, which is longer", traceOf(spanLine("inner", 5, 10, ""), spanLine("outer", 5, 20, ""), block), "inner\nouter"},
		{"that begins with the event", traceOf(block, spanLine("one", 10, 1, "")), "one"},
		{"with arguments of other shapes", traceOf(spanLine("one", 0, 20, `,"args":{"Bytes":{"a":1},"Call stack":[["x.py(1): f"]]}`), block), "one"},
		{"in a trace of 2021", traceOf(strings.Replace(spanLine("one", 0, 20, ""), "cpu_op", "Operator", 1), block), "one"},
		{"of a line of Python", traceOf(spanLine("a (b)/train.py(20): step", 0, 20, ""), block), "step (a (b)/train.py:20)"},
		{"of a name like a line of Python", traceOf(spanLine("(3): f", 0, 20, ""), block), "(3): f"},
		{"of another thread", traceOf(`{"ph":"X","cat":"cpu_op","name":"other","pid":1,"tid":2,"ts":0,"dur":20}`, block), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := mustRead(t, []byte(test.trace))
			if got := tr.Site(tracetest.Events(t, tr.Pools[0], 10)[0].Site); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// Of spans that lie very deep in each other, the innermost count.
func TestDeepSpansAreCut(t *testing.T) {
	var lines []string
	for i := range maxOpen + 1 {
		lines = append(lines, spanLine(fmt.Sprint("op", i), i, 1e6, ""))
	}
	tr := mustRead(t, []byte(traceOf(append(lines, memoryLine(maxOpen+1, 8, 8, `,"Addr":1`))...)))
	stack := strings.Split(tr.Site(1), "\n")
	if len(stack) != tape.MaxFrames || stack[0] != fmt.Sprint("op", maxOpen) || stack[63] != fmt.Sprint("op", maxOpen-63) {
		t.Errorf("%d frames, %q", len(stack), stack)
	}
}

// A stack is cut where two parts of it make it too deep: the lines of Python below an operation,
// and the forward pass below the backward pass.
func TestStacksOfTwoPartsAreCut(t *testing.T) {
	deep := func(name string, begin int, args string) (lines []string) {
		for i := range 40 {
			lines = append(lines, spanLine(fmt.Sprint(name, i), begin+i, 100, args))
		}
		return lines
	}
	below := strings.Repeat("x.py(1): f;", 40)
	for _, test := range []struct {
		name  string
		lines []string
		last  string
	}{
		{"lines of Python", deep("op", 1000, `,"args":{"Call stack":"`+below+`"}`), "f (x.py:1)"},
		{"the forward pass", append(deep("forward", 0, `,"args":{"Sequence number":5}`),
			deep("op", 1000, `,"args":{"Sequence number":5,"Fwd thread id":1}`)...), "forward17"},
	} {
		tr := mustRead(t, []byte(traceOf(append(test.lines, memoryLine(1050, 8, 8, `,"Addr":1`))...)))
		stack := strings.Split(tr.Site(1), "\n")
		if len(stack) != tape.MaxFrames || stack[0] != "op39" || stack[tape.MaxFrames-1] != test.last {
			t.Errorf("%s: %d frames, %q", test.name, len(stack), stack)
		}
	}
}

// The forward pass of a run of any length is remembered in bounded memory: what is too far back
// is forgotten.
func TestOldForwardPassIsForgotten(t *testing.T) {
	for _, test := range []struct {
		between int
		want    string
	}{{1, "backward\nin the backward pass of\nforward"}, {maxForward, "backward"}} {
		lines := []string{spanLine("forward", 0, 1, `,"args":{"Sequence number":0}`)}
		for i := range test.between {
			lines = append(lines, fmt.Sprintf(`{"ph":"X","cat":"cpu_op","pid":1,"ts":%d,"args":{"Sequence number":%d}}`, i, i+1))
		}
		lines = append(lines, spanLine("backward", 1e6, 10, `,"args":{"Sequence number":0,"Fwd thread id":1}`))
		tr := mustRead(t, []byte(traceOf(append(lines, memoryLine(1e6+5, 8, 8, `,"Addr":1`))...)))
		if got := tr.Site(tracetest.Events(t, tr.Pools[0], 10)[0].Site); got != test.want {
			t.Errorf("%d operations later: %q, want %q", test.between, got, test.want)
		}
	}
}

// Of what was live before the trace only a sum is known. One below 0 is damage, and nothing.
func TestTotalAtTheFirstEventIsWhatIsOlder(t *testing.T) {
	for total, want := range map[int]uint64{8: 0, 108: 100, 3: 0} {
		p := mustRead(t, []byte(traceOf(memoryLine(1, 8, total, `,"Addr":1`)))).Pools[0]
		if p.PeakLive != want+8 {
			t.Errorf("a total of %d after 8 bytes: a peak of %d, want %d", total, p.PeakLive, want+8)
		}
	}
}

func TestTimesAreExact(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "1": 1000, "5097992201218.334": 5097992201218334, "1623212760127840": 1623212760127840000, "1.5": 1500, "1.23456": 1234,
		"1.6e3": 1600000, "-5": 0, "x": 0, "": 0, "null": 0, "1.x": 0, "99999999999999999999": 1<<62 - 1, "1e300": 1<<62 - 1,
	} {
		if got := nanoseconds([]byte(text)); got != want && !(want == 1<<62-1 && got >= want) {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func FuzzKineto(f *testing.F) {
	f.Add(generated(rand.New(rand.NewPCG(3, 1)), 40))
	f.Add([]byte(traceOf(memoryLine(1, 8, 108, `,"Addr":1`), memoryLine(2, -30, 78, `,"Addr":2`), memoryLine(2, -1<<63, 1, `,"Addr":2`))))
	f.Add([]byte(traceOf(memoryLine(1, 8, 3, ``), memoryLine(2, -8, 0, ``), memoryLine(3, -8, 0, ``))))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, formats, in, "kineto") })
}
