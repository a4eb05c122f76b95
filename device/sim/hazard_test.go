package sim_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/device/sim"
)

// A block is freed in one stream while another one still copies from it, and
// the copy that comes too late is found as well. A GPU would say nothing to
// either, and mostly get away with it.
func ExampleHazard() {
	d, _ := sim.New(sim.Config{Total: 1 << 30, Name: "gpu"})
	pool, _ := d.DefaultPool()
	compute, _ := d.StreamCreate()
	out, _ := d.AllocAsync(pool, 2<<20, compute)
	in, _ := d.AllocAsync(pool, 2<<20, compute)
	_ = d.StreamSynchronize(compute)

	_ = d.CopyAsync(out.Addr, in.Addr, in.Bytes, compute)
	err := d.FreeAsync(in.Addr, 0)
	fmt.Println(err)
	fmt.Println(errors.Is(err, device.ErrIllegalAddress))

	_ = d.FreeAsync(in.Addr, compute) // in the same stream it waits its turn
	fmt.Println(d.CopyAsync(out.Addr, in.Addr, in.Bytes, compute))
	fmt.Println(len(d.Hazards()))
	// Output:
	// cuMemFreeAsync on gpu: cuMemFreeAsync in stream 0: cuMemcpyDtoDAsync in stream 1 may still be reading these 2 MiB at 0x1000000200000; record an event after it and make stream 0 wait for that
	// true
	// cuMemcpyDtoDAsync on gpu: cuMemcpyDtoDAsync in stream 1: cuMemFreeAsync in stream 1 has freed these 2 MiB at 0x1000000200000; use it before it is freed, and let the free wait for that
	// 2
}

// TestHazards: the last step is refused, with that text, or passes.
func TestHazards(t *testing.T) {
	type env struct {
		*sim.Device
		r, b device.Range // a plain grant of 2 MiB; 1 MiB from a pool in stream 1
		m    device.Range // a managed grant of 2 MiB
		a    device.Stream
		s, o device.Stream // 2 and 3
		e    device.Event
		p    device.Pool
	}
	fill := func(e env, s device.Stream) error { return e.FillAsync(e.r.Addr, 512, 1, s) }
	read := func(e env, s device.Stream) error { return e.Work(s, us, []device.Range{e.r}, nil) }
	write := func(e env, s device.Stream) error { return e.Work(s, us, nil, []device.Range{e.r}) }
	useB := func(e env, s device.Stream) error { return e.FillAsync(e.b.Addr, 512, 1, s) }
	useM := func(e env, s device.Stream) error { return e.FillAsync(e.m.Addr, 512, 1, s) }
	sync := func(e env) error { return e.Synchronize() }
	look := func(e env) error { return e.Read(e.r.Addr, make([]byte, 100)) }
	poke := func(e env) error { return e.Write(e.r.Addr, make([]byte, 100)) }
	do := func(f func(env, device.Stream) error, n int) func(env) error {
		return func(e env) error { return f(e, device.Stream(n)) }
	}
	record := func(n int) func(env) error {
		return func(e env) error { return e.EventRecord(e.e, device.Stream(n)) }
	}
	wait := func(n int) func(env) error {
		return func(e env) error { return e.StreamWaitEvent(device.Stream(n), e.e) }
	}
	idle := func(e env) error { e.Advance(time.Hour); return nil }
	squery := func(e env) error { _, err := e.StreamQuery(e.s); return err }
	equery := func(e env) error { _, err := e.EventQuery(e.e); return err }
	free := func(n int) func(env) error {
		return func(e env) error { return e.FreeAsync(e.b.Addr, device.Stream(n)) }
	}
	steps := func(s ...func(env) error) []func(env) error { return s }
	at := fmt.Sprintf("at %#x", uint64(sim.Base))
	for _, tc := range []struct {
		name  string
		steps []func(env) error
		want  string // "": passes
	}{
		{"same stream", steps(do(fill, 2), do(fill, 2)), ""},
		{"both read", steps(do(read, 2), do(read, 3)), ""},
		{"write after write", steps(do(write, 2), do(fill, 3)),
			"cuMemsetD8Async in stream 3: cuLaunchKernel in stream 2 may still be writing these 512 B " + at + "; record an event after it and make stream 3 wait for that"},
		{"read after write", steps(do(write, 2), do(read, 3)), "cuLaunchKernel in stream 3: cuLaunchKernel in stream 2 may still be writing these 2 MiB"},
		{"write after read", steps(do(read, 2), do(write, 3)), "cuLaunchKernel in stream 3: cuLaunchKernel in stream 2 may still be reading these 2 MiB"},
		{"other bytes", steps(do(fill, 2), func(e env) error { return e.FillAsync(e.r.Addr+512, 512, 1, e.o) }), ""},
		{"one byte in common", steps(do(fill, 2), func(e env) error { return e.FillAsync(e.r.Addr+511, 512, 1, e.o) }),
			fmt.Sprintf("these 1 B at %#x;", uint64(sim.Base+511))},
		{"luck is no excuse", steps(do(fill, 2), idle, do(fill, 3)), "may still be writing"},
		{"an event between", steps(do(fill, 2), record(2), wait(3), do(fill, 3)), ""},
		{"an event too early", steps(record(2), do(fill, 2), wait(3), do(fill, 3)), "may still be writing"},
		{"an event that is recorded again later", steps(do(fill, 2), record(2), wait(3), do(fill, 2), record(2), do(fill, 3)), "may still be writing"},
		{"an event for another stream", steps(do(fill, 2), record(2), wait(0), do(fill, 3)), "may still be writing"},
		{"a chain of streams", steps(do(fill, 2), record(2), wait(0), record(0), wait(3), do(fill, 3)), ""},
		{"what the last writer waited for", steps(do(fill, 2), record(2), wait(3), do(fill, 3), record(3), wait(0), do(fill, 0)), ""},
		{"one of two readers", steps(do(read, 2), do(read, 3), record(2), wait(0), do(fill, 0)), "cuLaunchKernel in stream 3 may still be reading"},
		{"the other one", steps(do(read, 2), do(read, 3), record(3), wait(0), do(fill, 0)), "cuLaunchKernel in stream 2 may still be reading"},
		{"the host waited", steps(do(fill, 2), sync, do(fill, 3)), ""},
		{"the host waited for another", steps(do(fill, 2), func(e env) error { return e.StreamSynchronize(3) }, do(fill, 3)), "may still be writing"},
		{"the host asked", steps(do(fill, 2), idle, squery, do(fill, 3)), ""},
		{"the host asked too early", steps(do(fill, 2), squery, do(fill, 3)), "may still be writing"},
		{"the host asked the event", steps(do(fill, 2), record(2), idle, equery, do(fill, 3)), ""},
		{"host reads", steps(do(read, 2), look), ""},
		{"host reads what is written", steps(do(fill, 2), look),
			"cuMemcpyDtoH by the host: cuMemsetD8Async in stream 2 may still be writing these 100 B " + at + "; synchronise stream 2, or an event recorded in it after that, first"},
		{"host writes what is read", steps(do(read, 2), poke), "cuMemcpyHtoD by the host: cuLaunchKernel in stream 2 may still be reading these 100 B"},
		{"host waited", steps(do(write, 2), sync, poke, look, do(fill, 3)), ""},

		{"used before it is there", steps(do(useB, 2)),
			"cuMemsetD8Async in stream 2: cuMemAllocFromPoolAsync in stream 1 may not yet have allocated these 512 B"},
		{"host uses it before it is there", steps(func(e env) error { return e.Fill(e.b.Addr, 1, 1) }), "cuMemsetD8 by the host: cuMemAllocFromPoolAsync in stream 1 may not yet"},
		{"used after an event", steps(record(1), wait(2), do(useB, 2)), ""},
		{"freed while it is used", steps(sync, do(useB, 2), free(3)), "cuMemFreeAsync in stream 3: cuMemsetD8Async in stream 2 may still be writing these 512 B"},
		{"freed before it is there", steps(free(3)), "cuMemFreeAsync in stream 3: cuMemAllocFromPoolAsync in stream 1 may not yet have allocated these 1 MiB"},
		{"freed in order", steps(sync, do(useB, 2), record(2), wait(3), free(3)), ""},
		{"used after its free", steps(free(1), do(useB, 1)), "cuMemsetD8Async in stream 1: cuMemFreeAsync in stream 1 has freed these 512 B"},
		{"used after its free elsewhere", steps(sync, free(3), do(useB, 1)), "cuMemFreeAsync in stream 3 has freed these 512 B"},
		{"used long after its free", steps(func(e env) error { return e.PoolSetAttribute(e.p, device.PoolReleaseThreshold, gib) }, free(1), sync, do(useB, 1)),
			"of a pool are not allocated (any more)"},
		{"a grant used after its free", steps(do(fill, 2), func(e env) error { return e.FreeAsync(e.r.Addr, e.s) }, do(read, 2)), "cuMemFreeAsync in stream 2 has freed these 2 MiB " + at},
		{"a grant freed while it is used", steps(do(read, 3), func(e env) error { return e.FreeAsync(e.r.Addr, e.s) }), "cuLaunchKernel in stream 3 may still be reading these 2 MiB"},
		{"a kernel runs astray", steps(func(e env) error { return e.Work(0, us, []device.Range{{Addr: 512, Bytes: 4 * kib}}, nil) }),
			"cuLaunchKernel in stream 0: 4 KiB at 0x200: that is not memory of one allocation (any more)"},
		{"a plain free waits", steps(do(fill, 2), func(e env) error { return e.Free(e.r.Addr) }), ""},
		{"managed memory in two streams", steps(do(useM, 2), do(useM, 3)), "cuMemsetD8Async in stream 3: cuMemsetD8Async in stream 2 may still be writing these 512 B"},
		{"the host reads managed memory", steps(do(useM, 2), func(e env) error { return e.Read(e.m.Addr, make([]byte, 1)) }), "cuMemcpyDtoH by the host: cuMemsetD8Async in stream 2 may still"},
		{"managed memory in order", steps(do(useM, 2), record(2), wait(3), do(useM, 3)), ""},
		{"a managed free waits", steps(do(useM, 2), func(e env) error { return e.Free(e.m.Addr) }), ""},
		{"managed memory used after its free", steps(func(e env) error { return e.Free(e.m.Addr) }, func(e env) error { return e.Work(2, us, []device.Range{e.m}, nil) }),
			"that is not memory of one allocation (any more)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: gib, Costs: freeCalls})
			e := env{Device: d, r: must[device.Range](t)(d.Alloc(1)), p: must[device.Pool](t)(d.DefaultPool())}
			e.a, e.s, e.o = must[device.Stream](t)(d.StreamCreate()), must[device.Stream](t)(d.StreamCreate()), must[device.Stream](t)(d.StreamCreate())
			e.e = must[device.Event](t)(d.EventCreate())
			e.b = must[device.Range](t)(d.AllocAsync(e.p, mib, e.a))
			e.m = must[device.Range](t)(d.AllocManaged(1))
			last := len(tc.steps) - 1
			for i, step := range tc.steps[:last] {
				if err := step(e); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
			err := tc.steps[last](e)
			if tc.want == "" {
				if err != nil || len(d.Hazards()) > 0 {
					t.Errorf("%v, hazards %v", err, d.Hazards())
				}
				return
			}
			var h *sim.Hazard
			var call *device.CallError
			if !errors.As(err, &h) || !errors.As(err, &call) || !errors.Is(err, device.ErrIllegalAddress) || call.Call != h.Call {
				t.Fatalf("%v is no hazard in a CallError", err)
			}
			if !strings.Contains(h.Error(), tc.want) || strings.Contains(h.Error(), "\n") {
				t.Errorf("%q has no %q", h, tc.want)
			}
			if list := d.Hazards(); len(list) != 1 || list[0] != h {
				t.Errorf("hazards are %v", list)
			}
			// Whatever it was, it goes away once the host has waited, unless the
			// memory is gone.
			if err := d.Synchronize(); err != nil {
				t.Error(err)
			}
			if err := tc.steps[last](e); err != nil && h.Reason != sim.Freed && h.Reason != sim.NothingThere {
				t.Errorf("after a synchronise: %v", err)
			}
		})
	}
}

// TestManyHazards: a program that goes wrong in a loop is told each time, and
// does not fill the memory.
func TestManyHazards(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	for range 1000 {
		if err := d.Work(0, 0, nil, []device.Range{{Addr: 1, Bytes: 1}}); !errors.Is(err, device.ErrIllegalAddress) {
			t.Fatal(err)
		}
	}
	if n := len(d.Hazards()); n != 100 {
		t.Errorf("%d are kept", n)
	}
}

// TestPromptAllocs: an allocation that has nothing to wait for is there for every stream when
// the call returns, as with a real driver; one behind work in its stream is not.
func TestPromptAllocs(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, PromptAllocs: true})
	p := must[device.Pool](t)(d.DefaultPool())
	a, b := must[device.Stream](t)(d.StreamCreate()), must[device.Stream](t)(d.StreamCreate())
	e := must[device.Event](t)(d.EventCreate())
	work := func(s device.Stream) func() error { return func() error { return d.Work(s, us, nil, nil) } }
	for _, tc := range []struct {
		name   string
		before []func() error // what is queued before the allocation in stream a
		want   string         // of its use in stream b; "": passes
	}{
		{"nothing before", nil, ""},
		{"an allocation and a free before", []func() error{func() error {
			r, err := d.AllocAsync(p, 64*mib, a)
			return errors.Join(err, d.FreeAsync(r.Addr, a))
		}}, ""},
		{"work in another stream", []func() error{work(b)}, ""},
		{"work before", []func() error{work(a)}, "cuMemAllocFromPoolAsync in stream 1 may not yet have allocated these 512 B"},
		{"work that the host waited for", []func() error{work(a), func() error { return d.StreamSynchronize(a) }}, ""},
		{"work that is done by luck", []func() error{work(a), func() error { d.Advance(time.Hour); return nil }}, "may not yet have allocated"},
		{"an event after work in another stream", []func() error{work(0), func() error { return d.EventRecord(e, 0) },
			func() error { return d.StreamWaitEvent(a, e) }}, "may not yet have allocated"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i, step := range tc.before {
				if err := step(); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
			r := must[device.Range](t)(d.AllocAsync(p, mib, a))
			err := d.FillAsync(r.Addr, 512, 1, b)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			// Uses of it are unordered all the same.
			if tc.want == "" {
				if err := d.FillAsync(r.Addr, 512, 1, a); err == nil || !strings.Contains(err.Error(), "may still be writing") {
					t.Errorf("in both streams: %v", err)
				}
			}
			if err := d.Synchronize(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReportedHazards: where hazards are reported, the call goes on as on a GPU.
func TestReportedHazards(t *testing.T) {
	var reported []*sim.Hazard
	d := newDevice(t, sim.Config{Total: gib, Report: func(h *sim.Hazard) { reported = append(reported, h) }})
	p := must[device.Pool](t)(d.DefaultPool())
	a, b := must[device.Stream](t)(d.StreamCreate()), must[device.Stream](t)(d.StreamCreate())
	r := must[device.Range](t)(d.AllocAsync(p, mib, a))
	addr := must[uint64](t)(d.AddressReserve(2*mib, 0))
	h := must[device.Handle](t)(d.MemCreate(2 * mib))
	if err := errors.Join(d.MemMap(addr, 2*mib, h), d.MemSetAccess(addr, 2*mib)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1)
	for _, step := range []struct {
		what string
		do   func() error
		want string // in the report; "": there is none
	}{
		{"use in another stream", func() error { return d.FillAsync(r.Addr, 512, 7, b) }, "may not yet have allocated"},
		{"use by the host", func() error { return d.Read(r.Addr, got) }, "by the host"},
		{"free while it is used", func() error { return d.FreeAsync(r.Addr, a) }, "may not yet have allocated|may still be writing"},
		{"fill what is free", func() error { return d.FillAsync(r.Addr, 512, 7, a) }, "has freed"},
		{"copy to what is free", func() error { return d.CopyAsync(r.Addr, addr, 512, a) }, "has freed"},
		{"a kernel astray", func() error { return d.Work(a, us, nil, []device.Range{{Addr: 512, Bytes: 1}}) }, "that is not memory"},
		{"a copy astray", func() error {
			if err := d.FillAsync(512, 1, 1, a); !errors.Is(err, device.ErrInvalidValue) { // the driver looks at its addresses
				return fmt.Errorf("got %v", err)
			}
			return nil
		}, ""},
		{"use of pages", func() error { return d.FillAsync(addr, 512, 7, a) }, ""},
		{"unmapping while they are used", func() error { return d.MemUnmap(addr, 2*mib) }, "may still be"},
	} {
		n := len(reported)
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		text := ""
		if len(reported) > n {
			text = reported[n].Error()
		}
		if !regexp.MustCompile(step.want).MatchString(text) || (step.want == "") != (text == "") {
			t.Errorf("%s: reported %q, want %q", step.what, text, step.want)
		}
	}
	if got[0] != 7 {
		t.Errorf("read %d, want the 7 that was written", got[0])
	}
	if !slices.Equal(d.Hazards(), reported) {
		t.Errorf("Hazards has %v, reported were %v", d.Hazards(), reported)
	}
	for range 1000 {
		if err := d.Work(0, 0, nil, []device.Range{{Addr: 1, Bytes: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(reported); n != 100 {
		t.Errorf("%d are reported, want as many as are kept", n)
	}
}

// node is something that was queued, or that the host learnt, as the world below
// remembers it: after what it comes at once, and what it touches.
type node struct {
	after  []int
	call   string
	stream device.Stream
	uses   []bytesUsed
}

// bytesUsed is [lo, hi) of some memory, used from address addr on.
type bytesUsed struct {
	memory string
	lo, hi uint64
	addr   uint64
	write  bool
}

func (a bytesUsed) meets(b bytesUsed) bool {
	return a.memory == b.memory && a.lo < b.hi && b.lo < a.hi && (a.write || b.write)
}

// world follows what a program does on a device by the rule that hazard.go
// states, and nothing cleverer: all that ever was queued is kept, with an edge
// to each thing that it comes after at once, and every question walks the whole
// graph.
type world struct {
	d      *sim.Device
	nodes  []node
	host   int
	open   []device.Stream
	tail   map[device.Stream]int           // the last node of each stream, of those that ended too
	end    map[device.Stream]time.Duration // and when it is done
	events []recorded
}

type recorded struct {
	device.Event
	node int
	at   time.Duration
}

// newWorld has stream 0 and three events.
func newWorld(t *rapid.T, cfg sim.Config) *world {
	d, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{d: d, nodes: []node{{}}, open: []device.Stream{0}, tail: map[device.Stream]int{0: 0}, end: map[device.Stream]time.Duration{}}
	for range 3 {
		e, err := d.EventCreate()
		if err != nil {
			t.Fatal(err)
		}
		w.events = append(w.events, recorded{Event: e})
	}
	return w
}

// before is which nodes come before something that comes after these.
func (w *world) before(after ...int) []bool {
	seen := make([]bool, len(w.nodes))
	var walk func([]int)
	walk = func(list []int) {
		for _, n := range list {
			if !seen[n] {
				seen[n] = true
				walk(w.nodes[n].after)
			}
		}
	}
	walk(after)
	return seen
}

// clash is the nodes that meet one of these uses and do not come before what
// comes after these nodes.
func (w *world) clash(uses []bytesUsed, after ...int) (list []int) {
	seen := w.before(after...)
	for i, n := range w.nodes {
		if !seen[i] && slices.ContainsFunc(n.uses, func(a bytesUsed) bool { return slices.ContainsFunc(uses, a.meets) }) {
			list = append(list, i)
		}
	}
	return list
}

// queue adds work that the device took.
func (w *world) queue(call string, s device.Stream, takes time.Duration, uses []bytesUsed, after ...int) int {
	w.nodes = append(w.nodes, node{append(after, w.tail[s], w.host), call, s, uses})
	w.tail[s] = len(w.nodes) - 1
	w.end[s] = max(w.end[s], w.d.Now()) + takes
	return w.tail[s]
}

// learn is the host being told that these are done.
func (w *world) learn(nodes ...int) {
	w.nodes = append(w.nodes, node{after: append(nodes, w.host)})
	w.host = len(w.nodes) - 1
}

// judge compares what the device said to work with those that it clashes with.
// It says whether the work was taken.
func (w *world) judge(t *rapid.T, err error, clash []int) bool {
	if len(clash) == 0 {
		if err != nil {
			t.Fatalf("refused, though all is in order: %v", err)
		}
		return true
	}
	var h *sim.Hazard
	if !errors.As(err, &h) {
		t.Fatalf("%v, though it clashes with %+v", err, w.nodes[clash[0]])
	}
	if !slices.ContainsFunc(clash, func(i int) bool { return w.nodes[i].call == h.Earlier && w.nodes[i].stream == h.EarlierStream }) {
		t.Fatalf("%v: this is none of those that it clashes with", h)
	}
	return false
}

func (w *world) stream(t *rapid.T) device.Stream { return rapid.SampledFrom(w.open).Draw(t, "stream") }

// streams are the actions that order work.
func (w *world) streams() map[string]func(*rapid.T) {
	event := func(t *rapid.T) *recorded { return &w.events[rapid.IntRange(0, 2).Draw(t, "event")] }
	return map[string]func(*rapid.T){
		"idle": func(t *rapid.T) { w.d.Advance(time.Duration(rapid.IntRange(0, 100).Draw(t, "us")) * us) },
		"create": func(t *rapid.T) {
			if len(w.open) == 3 {
				t.Skip("enough streams")
			}
			s, err := w.d.StreamCreate()
			if err != nil {
				t.Fatal(err)
			}
			w.open, w.tail[s] = append(w.open, s), w.host
		},
		"destroy": func(t *rapid.T) {
			if len(w.open) == 1 {
				t.Skip("no stream")
			}
			i := rapid.IntRange(1, len(w.open)-1).Draw(t, "which")
			if err := w.d.StreamDestroy(w.open[i]); err != nil {
				t.Fatal(err)
			}
			w.open = slices.Delete(w.open, i, i+1)
		},
		"record": func(t *rapid.T) {
			s, e := w.stream(t), event(t)
			if err := w.d.EventRecord(e.Event, s); err != nil {
				t.Fatal(err)
			}
			e.node, e.at = w.tail[s], w.end[s]
		},
		"wait": func(t *rapid.T) {
			s, e := w.stream(t), event(t)
			if err := w.d.StreamWaitEvent(s, e.Event); err != nil {
				t.Fatal(err)
			}
			w.nodes = append(w.nodes, node{after: []int{w.tail[s], e.node}})
			w.tail[s], w.end[s] = len(w.nodes)-1, max(w.end[s], e.at)
		},
		"query": func(t *rapid.T) {
			s := w.stream(t)
			done, err := w.d.StreamQuery(s)
			if err != nil || done != (w.end[s] <= w.d.Now()) {
				t.Fatalf("done is %v, %v at %v, of what ends at %v", done, err, w.d.Now(), w.end[s])
			}
			if done {
				w.learn(w.tail[s])
			}
		},
		"query event": func(t *rapid.T) {
			e := event(t)
			done, err := w.d.EventQuery(e.Event)
			if err != nil || done != (e.at <= w.d.Now()) {
				t.Fatalf("done is %v, %v at %v, of what ends at %v", done, err, w.d.Now(), e.at)
			}
			if done {
				w.learn(e.node)
			}
		},
		"": func(t *rapid.T) {},
	}
}

// syncs are the actions that wait; then comes what comes then.
func (w *world) syncs(then func(*rapid.T)) map[string]func(*rapid.T) {
	wait := func(t *rapid.T, err error, from, until time.Duration, nodes ...int) {
		// The costs of a release come later, so it may be later by then.
		if err != nil || w.d.Now() < until {
			t.Fatalf("%v at %v, from %v, of what ends at %v", err, w.d.Now(), from, until)
		}
		w.learn(nodes...)
		then(t)
	}
	return map[string]func(*rapid.T){
		"synchronise": func(t *rapid.T) {
			s, from := w.stream(t), w.d.Now()
			wait(t, w.d.StreamSynchronize(s), from, w.end[s], w.tail[s])
		},
		"synchronise event": func(t *rapid.T) {
			e, from := &w.events[rapid.IntRange(0, 2).Draw(t, "event")], w.d.Now()
			wait(t, w.d.EventSynchronize(e.Event), from, e.at, e.node)
		},
		"synchronise all": func(t *rapid.T) {
			from, until, nodes := w.d.Now(), time.Duration(0), []int(nil)
			for s, n := range w.tail {
				nodes, until = append(nodes, n), max(until, w.end[s])
			}
			wait(t, w.d.Synchronize(), from, until, nodes...)
		},
	}
}

// check is rapid.Check with ten times the programs: most of them do nothing
// that is interesting, and they are quick.
func check(t *testing.T, prop func(*rapid.T)) {
	for range 10 {
		rapid.Check(t, prop)
	}
}

// with joins actions.
func with(all ...map[string]func(*rapid.T)) map[string]func(*rapid.T) {
	sum := map[string]func(*rapid.T){}
	for _, m := range all {
		for name, f := range m {
			sum[name] = f
		}
	}
	return sum
}

// TestHazardModel runs random programs on a device and on the graph of all that
// was queued. At every step one refuses exactly if the other does. The memory
// is a plain grant, and a handle that is mapped twice.
func TestHazardModel(t *testing.T) {
	const step, steps = 512, 8
	check(t, func(t *rapid.T) {
		costs := sim.Costs{Async: sim.AsyncCosts{CopyPerMiB: 2048 * 20 * us, FillPerMiB: 2048 * 10 * us}}
		w := newWorld(t, sim.Config{Total: gib, Costs: costs})
		d := w.d
		grant, err1 := d.Alloc(1)
		handle, err2 := d.MemCreate(2 * mib)
		va, err3 := d.AddressReserve(4*mib, 0)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		mapping := []bool{false, false} // at va, and at va + 2 MiB
		toggle := func(i int) error {
			addr := va + uint64(i)*2*mib
			if mapping[i] {
				return d.MemUnmap(addr, 2*mib)
			}
			return errors.Join(d.MemMap(addr, 2*mib, handle), d.MemSetAccess(addr, 2*mib))
		}
		for i := range mapping {
			if err := toggle(i); err != nil {
				t.Fatal(err)
			}
			mapping[i] = true
		}
		// place draws some bytes of some memory.
		place := func(t *rapid.T, write bool) bytesUsed {
			lo := rapid.Uint64Range(0, steps-1).Draw(t, "from")
			hi := rapid.Uint64Range(lo+1, steps).Draw(t, "to")
			u := bytesUsed{"grant", lo * step, hi * step, grant.Addr + lo*step, write}
			if i := rapid.IntRange(-1, 1).Draw(t, "where"); i >= 0 && mapping[i] {
				u.memory, u.addr = "handle", va+uint64(i)*2*mib+lo*step
			}
			return u
		}
		submit := func(t *rapid.T, call string, err error, s device.Stream, takes time.Duration, uses ...bytesUsed) {
			if w.judge(t, err, w.clash(uses, w.tail[s], w.host)) {
				w.queue(call, s, takes, uses)
			}
		}
		t.Repeat(with(w.streams(), w.syncs(func(*rapid.T) {}), map[string]func(*rapid.T){
			"fill": func(t *rapid.T) {
				s, u := w.stream(t), place(t, true)
				submit(t, "cuMemsetD8Async", d.FillAsync(u.addr, u.hi-u.lo, 1, s), s, time.Duration(u.hi-u.lo)/step*10*us, u)
			},
			"copy": func(t *rapid.T) {
				s, from, to := w.stream(t), place(t, false), place(t, true)
				n := min(from.hi-from.lo, to.hi-to.lo)
				from.hi, to.hi = from.lo+n, to.lo+n
				if from.meets(to) {
					t.Skip("they overlap")
				}
				submit(t, "cuMemcpyDtoDAsync", d.CopyAsync(to.addr, from.addr, n, s), s, time.Duration(n)/step*20*us, from, to)
			},
			"kernel": func(t *rapid.T) {
				s, takes := w.stream(t), time.Duration(rapid.IntRange(0, 100).Draw(t, "us"))*us
				var ranges [2][]device.Range
				var uses []bytesUsed
				for i := range ranges {
					for range rapid.IntRange(0, 2).Draw(t, "ranges") {
						u := place(t, i == 1)
						uses = append(uses, u)
						ranges[i] = append(ranges[i], device.Range{Addr: u.addr, Bytes: u.hi - u.lo})
					}
				}
				submit(t, "cuLaunchKernel", d.Work(s, takes, ranges[0], ranges[1]), s, takes, uses...)
			},
			"host": func(t *rapid.T) {
				u := place(t, rapid.Bool().Draw(t, "write"))
				p := make([]byte, u.hi-u.lo)
				if u.write {
					w.judge(t, d.Write(u.addr, p), w.clash([]bytesUsed{u}, w.host))
				} else {
					w.judge(t, d.Read(u.addr, p), w.clash([]bytesUsed{u}, w.host))
				}
			},
			"map or unmap": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "which")
				var clash []int
				if mapping[i] {
					// Only what uses these addresses counts.
					lo := va + uint64(i)*2*mib
					seen := w.before(w.host)
					for j, n := range w.nodes {
						if !seen[j] && slices.ContainsFunc(n.uses, func(u bytesUsed) bool { return lo <= u.addr && u.addr < lo+2*mib }) {
							clash = append(clash, j)
						}
					}
				}
				if w.judge(t, toggle(i), clash) {
					mapping[i] = !mapping[i]
				}
			},
		}))
	})
}
