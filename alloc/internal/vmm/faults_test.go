package vmm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/vmm"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

// ledger is a device that knows what was made and not ended.
type ledger struct {
	*sim.Device
	open map[string]int
}

func (l ledger) note(what string, n int, err error) {
	if err == nil {
		l.open[what] += n
	}
}

func (l ledger) MemCreate(n uint64) (device.Handle, error) {
	h, err := l.Device.MemCreate(n)
	l.note("handles", 1, err)
	return h, err
}

func (l ledger) MemRelease(h device.Handle) error {
	err := l.Device.MemRelease(h)
	l.note("handles", -1, err)
	return err
}

func (l ledger) AddressReserve(n, align uint64) (uint64, error) {
	addr, err := l.Device.AddressReserve(n, align)
	l.note("reservations", 1, err)
	return addr, err
}

func (l ledger) AddressFree(addr, n uint64) error {
	err := l.Device.AddressFree(addr, n)
	l.note("reservations", -1, err)
	return err
}

func (l ledger) MemMap(addr, n uint64, h device.Handle) error {
	err := l.Device.MemMap(addr, n, h)
	l.note("mappings", 1, err)
	return err
}

func (l ledger) MemUnmap(addr, n uint64) error {
	err := l.Device.MemUnmap(addr, n)
	l.note("mappings", -1, err)
	return err
}

func (l ledger) EventCreate() (device.Event, error) {
	e, err := l.Device.EventCreate()
	l.note("events", 1, err)
	return e, err
}

func (l ledger) EventDestroy(e device.Event) error {
	err := l.Device.EventDestroy(e)
	l.note("events", -1, err)
	return err
}

func (l ledger) total() (n int) {
	for _, k := range l.open {
		n += k
	}
	return n
}

// program makes an allocator call the driver in every way that it knows, with
// work under way in three streams. It goes on after errors, which it counts.
func program(t *testing.T, a *vmm.Allocator, dev *sim.Device) (failed int) {
	r := rand.New(rand.NewPCG(9, 9))
	type used struct {
		alloc.Block
		streams []device.Stream
	}
	var live []used
	for i := range 160 {
		before := a.Stats()
		var err error
		gone := -1
		switch {
		case i%40 == 39:
			_, err = a.Trim(uint64(r.IntN(4)) * 20 * mib)
		case i%3 == 2 && len(live) > 0:
			gone = r.IntN(len(live))
			err = a.Free(live[gone].Block)
		case i%10 == 4 && len(live) > 0:
			k := &live[r.IntN(len(live))]
			s := uint32(r.IntN(3))
			if err = a.Record(k.Block, s); err == nil {
				k.streams = append(k.streams, device.Stream(s))
			}
		default:
			s := r.IntN(3)
			q := alloc.Request{Bytes: uint64(1+r.IntN(5)) * 5 * mib, Stream: uint32(s), End: alloc.End(r.IntN(8) / 7)}
			var b alloc.Block
			if b, err = a.Alloc(q); err == nil {
				live = append(live, used{b, []device.Stream{device.Stream(s)}})
			} else if errors.Is(err, alloc.ErrNoMemory) {
				err = nil
			}
		}
		if err != nil {
			failed++
			after := a.Stats()
			if after.BytesInUse != before.BytesInUse || after.NumAllocs != before.NumAllocs {
				t.Fatalf("operation %d failed with %v and changed the statistics from %+v to %+v", i, err, before, after)
			}
		} else if gone >= 0 {
			live = slices.Delete(live, gone, gone+1)
		}
		if held, _ := dev.Held(); a.Check() != nil || a.Stats().PoolBytes != held {
			t.Fatalf("operation %d (%v): %v; statistics %+v, %d bytes are held", i, err, a.Check(), a.Stats(), held)
		}
		for _, k := range live { // reads: the streams are in no order
			if r.IntN(4) == 0 {
				_ = dev.Work(k.streams[r.IntN(len(k.streams))], time.Minute, []device.Range{{Addr: k.Addr, Bytes: k.Size}}, nil)
			}
		}
	}
	return failed
}

// TestFaults makes the device fail at every call in turn. Whatever happens, the
// statistics are what is held, and all of it can be given back afterwards.
func TestFaults(t *testing.T) {
	run := func(t *testing.T, fault func(*sim.Device)) (l ledger, failed int, closing error) {
		dev, err := sim.New(sim.Config{Total: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := dev.StreamCreate(); err != nil {
				t.Fatal(err)
			}
		}
		l = ledger{dev, map[string]int{}}
		a, err := vmm.New(l, vmm.Config{Budget: 160 * mib, Streams: streams.Of(l, func(n uint32) (device.Stream, error) { return device.Stream(n), nil })})
		if err != nil {
			t.Fatal(err)
		}
		fault(dev)
		failed = program(t, a, dev)
		closing = a.Close()
		if found := dev.Hazards(); len(found) > 0 {
			t.Fatalf("hazards: %v", found)
		}
		held, _ := dev.Held()
		if s := a.Stats(); s.PoolBytes != held || s.BytesInUse != 0 {
			t.Fatalf("after Close: %+v, %d bytes are held", s, held)
		}
		if closing == nil && l.total() != 0 {
			t.Fatalf("Close says nothing, and there are left: %v", l.open)
		}
		return l, failed, closing
	}
	names := map[string]int{}
	l, failed, err := run(t, func(d *sim.Device) {
		d.OnCall(func(_ uint64, name string, _ uint64) error { names[name]++; return nil })
	})
	if failed > 0 || err != nil {
		t.Fatalf("%d operations failed, %v", failed, err)
	}
	for _, name := range []string{
		"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree",
		"cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventDestroy", "cuCtxSynchronize",
	} {
		if names[name] == 0 {
			t.Errorf("the program never calls %s", name)
		}
	}
	calls := l.Counters().Calls
	for n := uint64(3); n <= calls; n++ { // the first two make the streams
		for _, fault := range []struct {
			name string
			err  error
		}{{"refused", device.ErrOutOfMemory}, {"invalid", device.ErrInvalidValue}, {"lost", nil}} {
			t.Run(fmt.Sprintf("call %d of %d %s", n, calls, fault.name), func(t *testing.T) {
				name := "" // of the call that failed
				l, failed, err := run(t, func(d *sim.Device) {
					if fault.err == nil {
						d.SetFaults(sim.Faults{LoseAt: n})
					} else {
						d.SetFaults(sim.Faults{FailAt: n, Err: fault.err})
					}
					d.OnCall(func(i uint64, call string, _ uint64) error {
						if i == n {
							name = call
						}
						return nil
					})
				})
				switch {
				case fault.err == nil:
				case name == "cuLaunchKernel" || fault.err == device.ErrOutOfMemory && failed == 0 && err == nil:
					// Not ours, or a refusal like any other.
				case name == "cuEventQuery" && failed == 0 && err == nil:
					// Work that cannot be asked after is not done.
				case failed == 1 && err == nil:
					// Said once, and given back in the end.
				case failed == 0 && errors.Is(err, fault.err):
					// While closing. But for the memory that was not known to be out of
					// use, only what the call was about is left.
					if left := l.total(); name != "cuCtxSynchronize" && (left < 1 || left > 3) {
						t.Errorf("%s: left: %v", name, l.open)
					}
				default:
					t.Errorf("%s: %d operations failed, Close says %v", name, failed, err)
				}
			})
		}
	}
}

// TestStuck: memory that goes back only in part counts against the budget until
// it does, and is not handed out.
func TestStuck(t *testing.T) {
	for _, call := range []string{"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"} {
		for _, way := range []string{"trim", "pressure"} {
			t.Run(call+", "+way, func(t *testing.T) {
				b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{Budget: 10 * page})
				k := b.pages(6)
				b.free(k)
				broken := true
				b.dev.OnCall(func(_ uint64, name string, _ uint64) error {
					if broken && name == call {
						return device.ErrInvalidValue
					}
					return nil
				})
				again := func() error {
					if way == "trim" {
						_, err := b.a.Trim(0)
						return err
					}
					got, err := b.a.Alloc(alloc.Request{Bytes: 7 * page})
					if err == nil {
						b.free(got)
					}
					return err
				}
				for range 3 {
					// Where the memory itself is back, a request does not notice.
					if err := again(); !errors.Is(err, device.ErrInvalidValue) && (call != "cuMemAddressFree" || err != nil) {
						t.Fatalf("%v, want the device's error", err)
					}
					b.check()
				}
				if got, want := b.a.Stats().PoolBytes, map[string]uint64{"cuMemUnmap": k.Size, "cuMemRelease": k.Size}[call]; way == "trim" && got != want {
					t.Errorf("%d bytes count as held, want %d", got, want)
				}
				broken = false
				if err := again(); err != nil {
					t.Fatal(err)
				}
				b.check()
				if err := b.a.Close(); err != nil {
					t.Fatal(err)
				}
				if held, _ := b.dev.Held(); held != 0 {
					t.Errorf("%d bytes are held after Close", held)
				}
			})
		}
	}
}
