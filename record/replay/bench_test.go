package replay_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/replaytest"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

var (
	benchEvents = flag.Uint64("events", 1_000_000, "events of BenchmarkReplay's recordings")
	saveBench   = flag.String("save", "", "only write BenchmarkReplay's recordings, to files that begin so, for gpumem replay")
)

// program makes the next request of a program: an allocation of that many bytes, or
// with 0 the free of one of the live blocks.
type program func(r *rand.Rand, live int) (bytes uint64, free int)

// programs are what recordings are made of.
var programs = []struct {
	name string
	make func() program
}{
	{"step", jittedStep},
	{"mix", func() program { return random(400, func(r *rand.Rand) uint64 { return 1 + r.Uint64N(1<<r.UintN(29)) }) }},
	{"live", func() program { return random(100_000, func(r *rand.Rand) uint64 { return 256 + r.Uint64N(64<<10) }) }},
}

// jittedStep is a step that is done again and again: 250 blocks of 40 sizes come, most
// for a short time, and all but the 50 oldest go.
func jittedStep() program {
	sizes := make([]uint64, 40)
	shape := rand.New(rand.NewPCG(1, 1))
	for i := range sizes {
		sizes[i] = 256 + shape.Uint64N(1<<(8+i/2))
	}
	type op struct {
		bytes uint64
		free  int
	}
	var step []op
	for live, left := 0, 250; left > 0 || live > 0; {
		if left > 0 && (live < 3 || shape.IntN(5) < 3) {
			step = append(step, op{bytes: sizes[shape.IntN(len(sizes))]})
			live, left = live+1, left-1
		} else {
			live--
			step = append(step, op{free: live - min(live, shape.IntN(3))})
		}
	}
	next := 0
	return func(_ *rand.Rand, live int) (uint64, int) {
		if live < 50 {
			return 64 << 10, 0
		}
		o := step[next]
		next = (next + 1) % len(step)
		return o.bytes, 50 + o.free
	}
}

// random is about so many live blocks, freed in any order.
func random(most int, size func(*rand.Rand) uint64) program {
	return func(r *rand.Rand, live int) (uint64, int) {
		if live > 0 && r.IntN(2*most) < live {
			return 0, r.IntN(live)
		}
		return size(r), 0
	}
}

// recorded is a recording of n events of a program. It is made while it is read.
func recorded(t testing.TB, p program, n uint64) *trace.Trace {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	format := trace.Format{Name: "program", Looks: func([]byte) bool { return true }, Read: func(_ *input.Reader, b *tape.Builder) error {
		pool := b.Pool("")
		var live []uint32
		for range n {
			bytes, k := p(r, len(live))
			if bytes == 0 {
				slot := live[k]
				live[k] = live[len(live)-1]
				live = live[:len(live)-1]
				if err := pool.Free(trace.Event{Slot: slot}); err != nil {
					return err
				}
				continue
			}
			slot, err := pool.Alloc(trace.Event{Bytes: bytes}, 0)
			if err != nil {
				return err
			}
			live = append(live, slot)
		}
		return nil
	}}
	tr, err := trace.Formats{format}.Read(t.Context(), strings.NewReader("program"), "program", trace.Options{TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// save writes a recording to a file in our own format.
func save(t testing.TB, tr *trace.Trace, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tr.Save(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkReplay is every policy of a replay on recordings that are made here. ns/event
// is the policy's own time, and ns/op that of the whole replay, with its passes.
//
//	go test ./record/replay -run '^$' -bench Replay -benchtime 1x -events 100000000
func BenchmarkReplay(b *testing.B) {
	for _, prog := range programs {
		b.Run(prog.name, func(b *testing.B) {
			tr := recorded(b, prog.make(), *benchEvents)
			if *saveBench != "" {
				save(b, tr, *saveBench+prog.name)
				return
			}
			for _, p := range []string{"jax", "platform", "async", "vmm", "elastic"} {
				b.Run(p, func(b *testing.B) {
					cfg := replaytest.Config(b, "sim:80GiB", p)
					var res *replay.Result
					b.ReportAllocs()
					for b.Loop() {
						res = run(b, tr, cfg).Results[0]
					}
					b.ReportMetric(res.EventNanos(), "ns/event")
				})
			}
		})
	}
}
