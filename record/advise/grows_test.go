package advise

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/internal/input"
	"gpumem/record/formats"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// kept is a block that a program keeps on a device in every so many steps.
type kept struct {
	device string // its type and number, as PyTorch's profiler has them
	bytes  int
	every  int
}

const (
	gpu0 = `"Device Type":1,"Device Id":0`
	gpu1 = `"Device Type":1,"Device Id":1`
	host = `"Device Type":0,"Device Id":-1`
)

// profiled is a program of 60 steps, each of which allocates and frees on each device.
func profiled(t *testing.T, list ...kept) *trace.Trace {
	t.Helper()
	var lines []string
	event := func(device string, addr, bytes int) {
		lines = append(lines, fmt.Sprintf(`{"ph":"i","name":"[memory]","ts":%d,"args":{"Bytes":%d,"Addr":%d,%s}}`, len(lines), bytes, addr, device))
	}
	for step := range 60 {
		for k, one := range list {
			if step%one.every == 0 {
				event(one.device, 1<<40+(step*len(list)+k)<<24, one.bytes)
			}
			for i := range 5 {
				event(one.device, 4096*(i+1), 512*(i+1))
			}
			for i := range 5 {
				event(one.device, 4096*(i+1), -512*(i+1))
			}
		}
	}
	tr, err := formats.Read(t.Context(), strings.NewReader(`{"traceEvents":[`+strings.Join(lines, ",\n")+`]}`), "run.json", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func advised(t *testing.T, tr *trace.Trace, cfg Config) *Report {
	t.Helper()
	rep, err := Run(t.Context(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestWhatGrowsIsOfTheGPUWhereItIsMost(t *testing.T) {
	for _, test := range []struct {
		name  string
		list  []kept
		pool  string
		bytes uint64
		where string
	}{
		{"on one GPU", []kept{{gpu0, mib, 1}}, "", mib, "requests of 1 MiB"},
		{"in every second step", []kept{{gpu0, mib, 2}}, "", mib / 2, "requests of 1 MiB"},
		{"at two lines", []kept{{gpu0, mib, 1}, {gpu0, 3 * mib, 1}}, "", 4 * mib, "requests of 3 MiB"},
		{"on two GPUs", []kept{{gpu0, mib, 1}, {gpu1, 3 * mib, 1}}, "", 3 * mib, "requests of 3 MiB"},
		{"on the GPU that is chosen", []kept{{gpu0, mib, 1}, {gpu1, 3 * mib, 1}}, "cuda:0", mib, "requests of 1 MiB"},
		{"on the host", []kept{{host, mib, 1}, {gpu0, mib, 100}}, "", 0, ""},
		{"less than a byte a step", []kept{{gpu0, 1, 5}}, "", 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := advised(t, profiled(t, test.list...), Config{Sim: sim.Config{Total: 1 << 30}, Pool: test.pool}).Grows
			switch {
			case test.bytes == 0:
				if g != nil {
					t.Errorf("%+v, want nothing", g)
				}
			case g == nil:
				t.Error("nothing grows")
			case g.BytesPerStep != test.bytes || g.Where != test.where || g.RecordedSteps != 60:
				t.Errorf("%+v, want %d bytes for %s", g, test.bytes, test.where)
			}
		})
	}
}

// TestGrowthAtNoPlace: memory that grows and that no one place keeps is taken to grow in each step only where most of what
// is allocated repeats, or where steps were counted. A model whose weights are loaded grows as well.
func TestGrowthAtNoPlace(t *testing.T) {
	var longer, loaded strings.Builder
	for i := range 60 {
		fmt.Fprintf(&longer, "a x%d 262144\na y%d 8192\na k%d %d\nf x%d\nf y%d\n", i, i, i, (i+1)<<20, i, i)
		if i > 0 {
			fmt.Fprintf(&longer, "f k%d\n", i-1)
		}
		fmt.Fprintf(&loaded, "a x%d %d\na k%d %d\nf x%d\n", i, (100+i*7919%61)*4099, i, (20+i*104729%307)*8221, i)
	}
	for _, test := range []struct {
		name    string
		events  string
		counted uint64
		bytes   uint64 // about, in each step
		steps   uint64
	}{
		{"a larger block for the last", longer.String(), 0, mib, 60},
		{"loaded", loaded.String(), 0, 0, 0},
		{"loaded in nine steps", loaded.String(), 9, 0, 0},
		{"kept in ten steps", loaded.String(), 10, 8343492, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr, err := formats.Read(t.Context(), strings.NewReader(test.events), "a program", trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			g := advised(t, tr, Config{Sim: sim.Config{Total: 1 << 30}, Steps: test.counted}).Grows
			if g == nil || test.bytes == 0 {
				if g != nil || test.bytes != 0 {
					t.Errorf("%+v", g)
				}
				return
			}
			if g.Where != "" || g.Grown != 0 || g.RecordedSteps != test.steps || g.BytesPerStep < test.bytes*9/10 || g.BytesPerStep > test.bytes*11/10 {
				t.Errorf("%+v, want about %d in each of %d steps", g, test.bytes, test.steps)
			}
		})
	}
}

// TestStepsAreUnknownWhereASizeIsOfSeveralPlaces: without lines a function's argument and its result, of one size, are one place.
// Both are taken in each of 30 steps, and the result is kept: that is not half a result in each of 60. One argument lives at the end.
func TestStepsAreUnknownWhereASizeIsOfSeveralPlaces(t *testing.T) {
	var events strings.Builder
	for i := range 30 {
		fmt.Fprintf(&events, "a x%d 16777216\na s%d 4096\na y%d 16777216\na t%d 4096\nf x%d\nf s%d\nf t%d\n", i, i, i, i, i, i, i)
	}
	for _, counted := range []uint64{0, 30} {
		tr, err := formats.Read(t.Context(), strings.NewReader(events.String()), "a program", trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		g := advised(t, tr, Config{Sim: sim.Config{Total: 4 << 30}, Steps: counted}).Grows
		switch {
		case g == nil || g.RecordedSteps != counted || g.Where != "requests of 16 MiB":
			t.Errorf("%d counted: %+v", counted, g)
		case counted == 0 && (g.BytesPerStep != 0 || g.Grown < 28*16*mib || g.Grown > 31*16*mib || g.FitsSteps != nil):
			t.Errorf("not counted: %+v", g)
		case counted > 0 && (g.BytesPerStep < 15*mib || g.BytesPerStep > 31*16*mib/30+1):
			t.Errorf("counted: %+v", g)
		}
	}
}

// It fits for as many steps as there is memory left beside what else lies on the card.
func TestWhatGrowsFitsForATime(t *testing.T) {
	tr := profiled(t, kept{gpu0, mib, 1})
	card := func(total, used uint64) sim.Config { return sim.Config{Total: total, Used: used} }
	for _, test := range []struct {
		name  string
		cfg   Config
		steps uint64
	}{
		{"1 GiB", Config{Sim: card(1<<30, 0)}, 1023},
		{"2 GiB", Config{Sim: card(2<<30, 0)}, 2047},
		{"beside another program", Config{Sim: card(2<<30, 1<<30)}, 1023},
		{"beside the context", Config{Sim: card(2<<30, 0), Context: 512 * mib}, 1535},
		{"beside constants", Config{Sim: card(2<<30, 0), Constants: 256 * mib}, 1791},
	} {
		t.Run(test.name, func(t *testing.T) {
			if g := advised(t, tr, test.cfg).Grows; g == nil || g.FitsSteps == nil || *g.FitsSteps > test.steps || *g.FitsSteps < test.steps*19/20-25 {
				t.Errorf("%+v, want a little less than %d steps", g, test.steps)
			}
		})
	}
	if g := advised(t, tr, Config{Sim: card(mib, 0)}).Grows; g == nil || g.FitsSteps != nil {
		t.Errorf("on a card that is too small: %+v", g)
	}
}

// stepping is a recording of steps of a program, each of which does something between a batch and its free.
func stepping(t *testing.T, steps uint64, step func(alloc, free func(id, bytes uint64), i uint64)) *trace.Trace {
	t.Helper()
	var out bytes.Buffer
	w, err := trace.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(0)
	call := func(do func(trace.Call) error, site string) func(id, n uint64) {
		return func(id, n uint64) {
			at += 1000
			if err := do(trace.Call{Pool: "GPU_0", ID: id, Bytes: n, Site: site, Time: at}); err != nil {
				t.Fatal(err)
			}
		}
	}
	batch, keep, free := call(w.Alloc, "batch (train.py:1)"), call(w.Alloc, "keep (train.py:2)"), call(w.Free, "")
	for i := range steps {
		batch(1, 4*mib)
		step(keep, free, i)
		free(1, 0)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Read(t.Context(), &out, "a program", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// What is said of more steps than were recorded holds for a recording of as many, and is not much
// too little; of what does not grow evenly nothing is said.
func TestStepsThatFitDoFit(t *testing.T) {
	keeps := func(n uint64, every uint64) func(alloc, free func(id, bytes uint64), i uint64) {
		return func(alloc, _ func(id, bytes uint64), i uint64) {
			if i%every == 0 {
				alloc(10+i, n)
			}
		}
	}
	again := func(alloc, free func(id, bytes uint64), i uint64) { // the old one, the new one and a piece
		alloc(5, 5*mib)
		alloc(10+i, (i+1)*5*mib)
		free(5, 0)
		if i > 0 {
			free(9+i, 0)
		}
	}
	more := func(alloc, _ func(id, bytes uint64), i uint64) { alloc(10+i, (i+1)*100_000) }
	for _, tc := range []struct {
		name  string
		as    string
		total uint64 // MiB of the card
		steps uint64
		step  func(alloc, free func(id, bytes uint64), i uint64)
		none  bool
	}{
		{"in each step", "pytorch", 4096, 60, keeps(5*mib, 1), false},
		{"in each step, in segments of 2 MiB", "pytorch", 4096, 60, keeps(700_000, 1), false},
		{"in each step, two in a segment", "pytorch", 4096, 60, keeps(7*mib, 1), false},
		{"in every third step, in segments of its own", "pytorch", 4096, 60, keeps(15*mib, 3), false},
		{"a list that is concatenated", "pytorch", 4096, 60, again, false},
		{"in each step, on a card that is nearly full", "pytorch", 1536 + 400, 60, keeps(5*mib, 1), false},
		{"a list that is concatenated, on a card that is nearly full", "pytorch", 1536 + 800, 60, again, false},
		{"in JAX's pool", "jax", 4096, 60, keeps(5*mib, 1), false},
		{"ever more", "pytorch", 4096, 60, more, true},
		{"too few steps", "pytorch", 4096, 15, keeps(5*mib, 1), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Config{Sim: sim.Config{Total: tc.total * mib}, Context: 1536 * mib, As: tc.as}
			g := advised(t, stepping(t, tc.steps, tc.step), cfg).Grows
			if g == nil || (g.FitsSteps == nil) != tc.none {
				t.Fatalf("%+v", g)
			}
			if tc.none {
				return
			}
			each := tc.steps / g.RecordedSteps // steps of the program
			n := *g.FitsSteps * each
			t.Logf("%d steps, %+v", n, g)
			if r := advised(t, stepping(t, n, tc.step), cfg); !r.FitsAsItIs {
				t.Errorf("%d steps do not fit", n)
			}
			if r := advised(t, stepping(t, n+n/10+10, tc.step), cfg); r.FitsAsItIs {
				t.Errorf("%d steps fit, too", n+n/10+10)
			}
		})
	}
}

// A recording of one moment has no steps, though a list of equal blocks looks like them.
func TestNothingGrowsInOneMoment(t *testing.T) {
	for format, want := range map[string]bool{"memdump": false, "pprof": false, "text": true} {
		read := func(_ *input.Reader, b *tape.Builder) error {
			pool := b.Pool("")
			for range 100 {
				if _, err := pool.Alloc(tape.Event{Bytes: mib}, 0); err != nil {
					return err
				}
			}
			return nil
		}
		tr, err := trace.Formats{{Name: format, Looks: func([]byte) bool { return true }, Read: read}}.Read(t.Context(), strings.NewReader("x"), "x", trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if g := advised(t, tr, Config{Sim: sim.Config{Total: 1 << 30}, As: "none"}).Grows; (g != nil) != want {
			t.Errorf("%s: %+v", format, g)
		}
	}
}
