package advise

import (
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
			if g := advised(t, tr, test.cfg).Grows; g == nil || g.FitsSteps == nil || *g.FitsSteps != test.steps {
				t.Errorf("%+v, want %d steps", g, test.steps)
			}
		})
	}
	if g := advised(t, tr, Config{Sim: card(mib, 0)}).Grows; g == nil || g.FitsSteps != nil {
		t.Errorf("on a card that is too small: %+v", g)
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
