package elastic_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/elastic"
	"gpumem/device"
	"gpumem/device/sim"
)

// program calls the driver in every way there is. It goes on after errors, and
// says how many there were.
func program(a *elastic.Allocator) (failed int) {
	r := rand.New(rand.NewPCG(5, 6))
	note := func(err error) bool {
		if err != nil {
			failed++
		}
		return err != nil
	}
	var live []alloc.Block
	for i := range 90 {
		switch {
		case i%3 == 2 && len(live) > 0:
			k := r.IntN(len(live))
			if !note(a.Free(live[k])) {
				live = slices.Delete(live, k, k+1)
			}
		case i%29 == 28:
			_, err := a.Trim(8 * page)
			note(err)
		default:
			b, err := a.Alloc(alloc.Request{Bytes: 1 + r.Uint64N(7*page), OneHandle: i%11 == 4, Stream: uint32(i % 2)})
			if !note(err) {
				live = append(live, b)
			}
		}
	}
	return failed
}

// TestFaults makes the device fail at every call in turn: it has no memory,
// refuses the call, fails it and the one after it, or is lost. Whatever happens,
// the structure stays whole, what is held is what the device says, and the end
// leaves nothing behind but what the failing call kept.
func TestFaults(t *testing.T) {
	for name, cfg := range map[string]elastic.Config{"lazy": {}, "eager": {Eager: true, Reserve: 2 * page}, "deterministic": {Deterministic: true}} {
		t.Run(name, func(t *testing.T) {
			dev := newSim(t, 30)
			a := newPool(t, dev, cfg)
			plain := program(a)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			calls := dev.Counters().Calls
			for n := uint64(1); n <= calls; n++ {
				for what, set := range map[string]func(*sim.Device){
					"refused": func(d *sim.Device) { d.SetFaults(sim.Faults{FailAt: n}) },
					"invalid": func(d *sim.Device) { d.SetFaults(sim.Faults{FailAt: n, Err: device.ErrInvalidValue}) },
					"twice": func(d *sim.Device) {
						d.OnCall(func(k uint64, _ string, _ uint64) error {
							if k == n || k == n+1 {
								return device.ErrInvalidValue
							}
							return nil
						})
					},
					"thrice": func(d *sim.Device) {
						d.OnCall(func(k uint64, _ string, _ uint64) error {
							if n <= k && k <= n+2 {
								return device.ErrOutOfMemory
							}
							return nil
						})
					},
					"lost": func(d *sim.Device) { d.SetFaults(sim.Faults{LoseAt: n}) },
				} {
					where := fmt.Sprintf("call %d of %d %s", n, calls, what)
					dev := newSim(t, 30)
					a := newPool(t, dev, cfg)
					set(dev)
					failed := program(a)
					if err := a.Check(); err != nil {
						t.Fatalf("%s: %v", where, err)
					}
					held, _ := dev.Held()
					if s := a.Stats(); s.PoolBytes != held {
						t.Fatalf("%s: statistics say %d bytes, the device says %d", where, s.PoolBytes, held)
					}
					if what != "lost" && failed > plain+4 {
						t.Fatalf("%s: %d errors, %d without", where, failed, plain)
					}
					err := a.Close()
					held, _ = dev.Held()
					if s := a.Stats(); s.PoolBytes != held || err == nil && held != 0 {
						t.Fatalf("%s: after Close, which says %v, statistics say %d bytes, the device says %d", where, err, s.PoolBytes, held)
					}
					if h := dev.Hazards(); len(h) > 0 {
						t.Fatalf("%s: %v", where, h[0])
					}
				}
			}
		})
	}
}
