package replay_test

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// pingPong is a recording of n events: one block at a time comes and goes, on
// top of one that stays. It is made while it is read, so it takes no memory.
type pingPong struct {
	left, next int
	rest       []byte
}

func (p *pingPong) Read(dst []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.left == 0 {
			return 0, io.EOF
		}
		var b []byte
		for range min(1000, p.left) {
			id := strconv.Itoa((p.next + 1) / 2)
			switch {
			case p.next == 0:
				b = append(b, "a stays 1000\n"...)
			case p.next%2 == 1:
				b = append(b, "a "+id+" 1000\n"...)
			default:
				b = append(b, "f "+id+"\n"...)
			}
			p.next++
		}
		p.left -= min(1000, p.left)
		p.rest = b
	}
	n := copy(dst, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// watched is a simulated GPU that calls a function after each grant.
type watched struct {
	*sim.Device
	granted func()
}

func (w *watched) Alloc(n uint64) (device.Range, error) {
	r, err := w.Device.Alloc(n)
	w.granted()
	return r, err
}

// TestCancel: whatever pass is running, the end of the context ends it within a
// batch of events, the error is the context's, and nothing is left: no memory on
// any device, no temporary file.
func TestCancel(t *testing.T) {
	const events = 40_000 // about ten batches; half of them are grants
	tmp := t.TempDir()
	tr, err := formats.Read(t.Context(), &pingPong{left: events}, "in", trace.Options{SpoolLimit: -1, TempDir: tmp})
	if err != nil {
		t.Fatal(err)
	}
	for name, after := range map[string]int{
		"before":    0,
		"observing": 5000,
		"timing":    events/2 + 5000,
		"searching": 4*events/2 + 5000,
	} {
		t.Run(name, func(t *testing.T) {
			reason := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			grants := 0
			granted := func() {
				if grants++; grants == after {
					cancel(reason)
				}
			}
			if after == 0 {
				cancel(reason)
			}
			var made []*sim.Device
			cfg := config(t, "sim:16MiB", "platform")
			cfg.Smallest = true
			cfg.Device = func(total uint64) (device.GPU, error) {
				d, err := sim.New(sim.Config{Total: total})
				made = append(made, d)
				return &watched{d, granted}, err
			}
			rep, err := replay.Run(ctx, tr, cfg)
			if rep != nil || !errors.Is(err, context.Canceled) {
				t.Fatalf("%v, %v; want context.Canceled", rep, err)
			}
			if grants > after+4096 {
				t.Errorf("%d grants after the end of the context", grants-after)
			}
			for i, d := range made {
				if now, _ := d.Held(); now != 0 {
					t.Errorf("%d bytes are left on device %d", now, i)
				}
			}
		})
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", left, err)
	}
}

// TestMemory: what a replay needs does not grow with the length of the
// recording. The heap is looked at while it runs, on a clean one.
func TestMemory(t *testing.T) {
	events := 3_000_000
	if slow {
		events /= 10
	}
	tr, err := formats.Read(t.Context(), &pingPong{left: events}, "in", trace.Options{SpoolLimit: -1, TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	start, most := heap(), uint64(0)
	grants := 0
	cfg := config(t, "sim:16MiB", "platform", "bfc")
	cfg.Device = func(total uint64) (device.GPU, error) {
		d, err := sim.New(sim.Config{Total: total})
		most = max(most, heap())
		return &watched{d, func() {
			if grants++; grants%100_000 == 0 {
				most = max(most, heap())
			}
		}}, err
	}
	rep := run(t, tr, cfg)
	most = max(most, heap())
	if rep.Trace.Events != uint64(events) || !rep.Results[0].Fits || grants < events/2 {
		t.Fatalf("%+v, %d grants", rep.Trace, grants)
	}
	// The buffers of a pass take about half a megabyte. Two bytes for each event
	// would pass this.
	if most > start+4*mib {
		t.Errorf("the heap grew from %d to %d bytes", start, most)
	}
}

// TestTimedPassFails: a device that is lost in a timed pass, after the pass that
// looks went well, is an error and no figure.
func TestTimedPassFails(t *testing.T) {
	cfg := config(t, "sim:1GiB", "platform")
	made := 0
	cfg.Device = func(total uint64) (device.GPU, error) {
		d, err := sim.New(sim.Config{Total: total})
		if made++; err == nil && made > 1 {
			d.SetFaults(sim.Faults{LoseAt: 2})
		}
		return d, err
	}
	_, err := replay.Run(t.Context(), text(t, "a 1 1048576\na 2 1048576\n"), cfg)
	if !errors.Is(err, device.ErrLost) {
		t.Errorf("%v, want the lost device", err)
	}
}
