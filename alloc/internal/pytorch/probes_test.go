package pytorch_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/alloc/internal/pytorch"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/test/golden"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

// withheld is a device whose events stay pending while it is held up, but for those that
// are waited for, as the stand-in of the probes did it.
type withheld struct {
	*recorder
	held             bool
	recorded, waited int
}

func (w *withheld) EventRecord(e device.Event, s device.Stream) error {
	w.recorded++
	return w.recorder.EventRecord(e, s)
}

func (w *withheld) EventQuery(e device.Event) (bool, error) {
	if w.held {
		return false, nil
	}
	return w.recorder.EventQuery(e)
}

func (w *withheld) EventSynchronize(e device.Event) error {
	w.waited++
	return w.recorder.EventSynchronize(e)
}

// TestProbes runs the small programs of testdata/pytorch/probes, which use what traces
// do not have: streams, events, private pools, empty_cache. Their answers are those of
// PyTorch 2.15.0: each placement, each call of the device, and the counters.
//
// The lines: "a ID BYTES [STREAM]", "f ID", "r ID STREAM" record_stream, "e 0" holds
// events up and "e 1" lets them pass, "c" empty_cache, "g begin|capture|end|release N" a
// private pool, of a graph that is being captured or not (up to 2.2 for stream 0), "s" shows the counters.
func TestProbes(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(golden.Dir(), "pytorch", "probes", "*.want"))
	if err != nil || len(paths) != 9 {
		t.Fatalf("%d probes, %v; want 9", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".want")
		t.Run(name, func(t *testing.T) {
			answer := readLines(t, path)
			var want []string
			for _, line := range answer[1:] {
				if !strings.HasPrefix(line, "event ") { // the error's text
					want = append(want, line)
				}
			}
			got := probe(t, answer[0], readLines(t, strings.TrimSuffix(path, ".want")+".txt"))
			if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
				t.Errorf("got\n%s\nwant\n%s", g, w)
			}
		})
	}
}

// probe runs a program, with the total, fraction and settings of the head of its answer.
func probe(t *testing.T, head string, lines []string) []string {
	t.Helper()
	spec, total := "pytorch", uint64(0)
	sep := ":"
	first := false // a release whose pools serve stream 0 alone, as the program uses them
	words := strings.Fields(head)
	for i, w := range words {
		var err error
		if conf, ok := strings.CutPrefix(w, "PYTORCH_CUDA_ALLOC_CONF="); ok {
			spec += sep + conf
			sep = ","
		}
		switch w {
		case "--release":
			spec += "@" + words[i+1]
			first = strings.HasPrefix(words[i+1], "2.1.") || strings.HasPrefix(words[i+1], "2.2.")
		case "--total":
			total, err = size.Parse(words[i+1])
		case "--fraction":
			spec += sep + "fraction=" + words[i+1]
			sep = ","
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := sim.New(sim.Config{Total: total})
	if err != nil {
		t.Fatal(err)
	}
	event, capture := -1, false
	var out, calls []string
	rec := newRecorder(dev)
	// The stand-in's addresses rise with each grant and reservation, where the simulated
	// GPU has a range for each kind.
	type grant struct{ at, bytes, rising uint64 }
	var grants []grant
	rising := func(addr uint64) uint64 {
		i := slices.IndexFunc(grants, func(g grant) bool { return addr >= g.at && addr < g.at+g.bytes })
		if i < 0 {
			t.Fatalf("address %#x was not given", addr)
		}
		return addr - grants[i].at + grants[i].rising
	}
	next := uint64(0)
	rec.log = func(kind byte, offset, bytes uint64) {
		at := "-"
		switch kind {
		case 'M', 'V':
			grants = append(grants, grant{offset + rec.base, bytes, next})
			next += up(bytes, 2<<20)
			fallthrough
		default:
			at = strconv.FormatUint(rising(offset+rec.base), 10)
		case 'X':
		}
		calls = append(calls, fmt.Sprintf("%d %c %s %d", event, kind, at, bytes))
	}
	w := &withheld{recorder: rec}
	made, err := build.New(w, p, build.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := made.(*pytorch.Allocator)
	blocks := map[string]alloc.Block{}
	places := []string{"placements"}
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, line := range lines {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		switch f[0] {
		case "a":
			event++
			stream := uint64(0)
			if len(f) > 3 {
				stream = number(f[3])
			}
			b, err := a.Alloc(alloc.Request{Bytes: number(f[2]), Stream: uint32(stream)})
			place := "refused"
			if err == nil {
				place = strconv.FormatUint(rising(b.Addr), 10)
			} else if !errors.Is(err, alloc.ErrNoMemory) {
				t.Fatal(err)
			}
			blocks[f[1]] = b
			places = append(places, f[1]+" "+place)
		case "f":
			event++
			if err := a.Free(blocks[f[1]]); err != nil {
				t.Fatal(err)
			}
		case "r":
			if b := blocks[f[1]]; b.Size > 0 { // not of a refused request
				if err := a.Record(b, uint32(number(f[2]))); err != nil {
					t.Fatal(err)
				}
			}
		case "e":
			w.held = f[1] == "0"
		case "c":
			if _, err := a.Trim(0); err != nil {
				t.Fatal(err)
			}
		case "g":
			var err error
			uses := func(stream uint32) bool { return stream == 0 || !first }
			switch id := number(f[2]); f[1] {
			case "begin":
				err = a.BeginPool(id, uses)
			case "capture":
				capture = true
				err = errors.Join(a.BeginPool(id, uses), a.BeginCapture())
			case "end":
				if capture {
					capture, err = false, a.EndCapture()
				}
				err = errors.Join(err, a.EndPool(id))
			case "release":
				err = a.ReleasePool(id)
			}
			if err != nil {
				t.Fatal(err)
			}
		case "s":
			s, m := a.Stats(), a.MemoryStats()
			out = append(out, fmt.Sprintf("stat at %d: allocated %d active %d reserved %d inactive_split %d segments %d mallocs %d frees %d ev_rec %d ev_sync %d",
				event, s.BytesInUse, s.BytesInUse+m.Waiting, m.Reserved, m.InactiveSplit, m.Segments, rec.malloc, rec.free, w.recorded, w.waited))
		}
		if err := a.Check(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	rec.log = nil // what Close gives back is not PyTorch's
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if found := dev.Hazards(); len(found) > 0 {
		t.Error(found)
	}
	return append(append(append(out, places...), "calls"), calls...)
}
