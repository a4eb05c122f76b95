package shim_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
	"gpumem/preload/internal/shim"
)

// TestChargeIsWhatTheDriverGranted: memory with an address counts by the driver's blocks that
// it lies in, once for all that lie in one; handles and arrays by blocks of their own.
// Without, 50 pitched grants of 1.1 MB, for which a GPU gave 2 MiB each, counted as 52 MiB; with
// whole blocks for each, 200 grants of 1 KiB that a driver placed in one block counted as 400.
func TestChargeIsWhatTheDriverGranted(t *testing.T) {
	plain := func(at uint64) shim.Key { return shim.Key{Kind: shim.Plain, Value: at} }
	for _, tc := range []struct {
		name  string
		block uint64
		keys  []shim.Key
		bytes []uint64
		want  uint64
	}{
		{"less than a block", 0, []shim.Key{plain(4 * mib)}, []uint64{1}, 2 * mib},
		{"a whole block", 0, []shim.Key{plain(4 * mib)}, []uint64{2 * mib}, 2 * mib},
		{"a byte more", 0, []shim.Key{plain(4 * mib)}, []uint64{2*mib + 1}, 4 * mib},
		{"each in a block, as the simulated GPU places them", 0, []shim.Key{plain(4 * mib), plain(6 * mib)}, []uint64{1024, 1024}, 4 * mib},
		{"in one block, as a driver places them", 0, []shim.Key{plain(4 * mib), plain(4*mib + 512), plain(6*mib - 512)}, []uint64{512, 512, 512}, 2 * mib},
		{"across two blocks", 0, []shim.Key{plain(5 * mib)}, []uint64{2 * mib}, 4 * mib},
		{"behind one that ends inside of a block", 0, []shim.Key{plain(4 * mib), plain(7 * mib)}, []uint64{3 * mib, mib}, 4 * mib},
		{"a driver with larger blocks", 4 * mib, []shim.Key{plain(8 * mib)}, []uint64{1}, 4 * mib},
		{"no bytes", 0, []shim.Key{plain(5 * mib)}, []uint64{0}, 0},
		{"arrays", 0, []shim.Key{{Kind: shim.Array, Value: 1}, {Kind: shim.Array, Value: 2}}, []uint64{100, 3 * mib}, 6 * mib},
		{"a handle", 0, []shim.Key{{Kind: shim.Handle, Value: 1}}, []uint64{6 * mib}, 6 * mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			account := newAccount(t, 100*mib)
			c, err := shim.NewCharges(account, shim.Process{Block: tc.block})
			if err != nil {
				t.Fatal(err)
			}
			counted := func(when string, want uint64) {
				t.Helper()
				if _, charged, _ := account.counts(); charged != want || c.Bytes() != want {
					t.Errorf("%s: %d bytes are counted, %d shown; want %d", when, charged, c.Bytes(), want)
				}
			}
			for i, k := range tc.keys {
				if err := c.Take(tc.bytes[i]); err != nil {
					t.Fatal(err)
				}
				c.Done(k, tc.bytes[i], 0)
			}
			counted("taken", tc.want)
			for _, k := range tc.keys {
				c.Removed(c.Remove(k), false) // the driver has not released it
			}
			counted("not released", tc.want)
			for _, k := range tc.keys {
				release(c, k)
			}
			counted("released", 0)
		})
	}
}

// TestChargesOfRandomGrants: against a list of every block of each grant.
func TestChargesOfRandomGrants(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	account := newAccount(t, 1<<40)
	c, err := shim.NewCharges(account, shim.Process{})
	if err != nil {
		t.Fatal(err)
	}
	live := map[uint64]uint64{} // ends by address; grants do not overlap
	for range 20000 {
		at := uint64(1<<30) + r.Uint64N(256)*mib/4
		bytes := 1 + r.Uint64N(mib/4)
		if r.IntN(4) == 0 {
			bytes *= 12
		}
		free := true
		for a, end := range live {
			if at < end && a < at+bytes {
				free = false
				if r.IntN(2) == 0 {
					release(c, shim.Key{Kind: shim.Plain, Value: a})
					delete(live, a)
				}
			}
		}
		if free {
			if err := c.Take(bytes); err != nil {
				t.Fatal(err)
			}
			c.Done(shim.Key{Kind: shim.Plain, Value: at}, bytes, 0)
			live[at] = at + bytes
		}
		used := map[uint64]bool{}
		for a, end := range live {
			for b := a / (2 * mib); b <= (end-1)/(2*mib); b++ {
				used[b] = true
			}
		}
		if _, charged, _ := account.counts(); charged != uint64(len(used))*2*mib {
			t.Fatalf("%d bytes are counted for %d blocks", charged, len(used))
		}
	}
}

// TestPoolsOfTheDriverCountByWhatTheyReserve: not by what the program asked for, and what
// they grow by is refused before where it is certain.
func TestPoolsOfTheDriverCountByWhatTheyReserve(t *testing.T) {
	account := newAccount(t, 80*mib)
	c, err := shim.NewCharges(account, shim.Process{})
	if err != nil {
		t.Fatal(err)
	}
	counted := func(want uint64) {
		t.Helper()
		if _, charged, _ := account.counts(); charged != want || c.Bytes() != want {
			t.Errorf("%d bytes are counted, %d shown; want %d", charged, c.Bytes(), want)
		}
	}
	if n, err := c.TakePooled(1024, 2*mib, 2*mib, 3*mib); err != nil || n != 2*mib {
		t.Errorf("a request of a pool of 3 MiB that has 2: %d bytes are counted before, %v", n, err)
	}
	c.Failed(2 * mib)
	n, err := c.TakePooled(1024, 0, 0, 0)
	if err != nil || n != 32*mib {
		t.Fatalf("a first request: %d bytes are counted before, %v", n, err)
	}
	if err := c.ReservedPooled(7, 32*mib, n); err != nil {
		t.Fatal(err)
	}
	counted(32 * mib)
	if n, err = c.TakePooled(40*mib, 32*mib, 1024, 0); err == nil {
		t.Errorf("40 MiB more, of which the pool grows by 64: %d bytes are counted before", n)
	}
	if n, err = c.TakePooled(mib, 32*mib, 1024, 0); err != nil || n != 32*mib {
		t.Errorf("a request that seems to fit: %d bytes are counted before, %v", n, err)
	}
	if err := c.ReservedPooled(7, 32*mib, n); err != nil {
		t.Error(err)
	}
	counted(32 * mib)
	if err := c.ReservedPooled(7, 96*mib, 0); err == nil { // the driver has granted it all the same
		t.Error("a pool that has grown beyond the lease is no error")
	}
	counted(96 * mib)
	if err := c.ReservedPooled(7, 0, 0); err != nil {
		t.Error(err)
	}
	counted(0)
}

// TestPoolOfWhichTheDriverSaysNothingStaysCounted: also the policy's own.
func TestPoolOfWhichTheDriverSaysNothingStaysCounted(t *testing.T) {
	a := newAccount(t, 100*mib)
	c := newCharges(t, a)
	n, err := c.TakePooled(1024, 0, 0, 0)
	if err := errors.Join(err, c.ReservedPooled(7, shim.Unknown, n)); err != nil {
		t.Fatal(err)
	}
	if _, charged, _ := a.counts(); charged != 32*mib || c.Bytes() != charged {
		t.Errorf("%d bytes are counted, %d shown", charged, c.Bytes())
	}
	if err := c.ReservedPooled(7, 0, 0); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, sim.Config{Total: 1 << 30})
	own, err := d.DefaultPool()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ReservedPooled(uint64(own), 32*mib, 0); err != nil {
		t.Fatal(err)
	}
	unknown := device.ErrInvalidValue
	d.count(failing("cuMemPoolGetAttribute", unknown))
	p := openOn(t, d, "async", shim.Config{Account: a, Charges: c}) // whose the pool is from now on
	if held, charged, _ := a.counts(); held != 32*mib || charged != 0 {
		t.Errorf("%d bytes are the pool's, and %d charged", held, charged)
	}
	if err := c.Take(16 * mib); err != nil {
		t.Fatal(err)
	}
	if err := c.ReservedPooled(uint64(own), shim.Unknown, 16*mib); err != nil {
		t.Error(err)
	}
	if held, charged, _ := a.counts(); held != 48*mib || charged != 0 {
		t.Errorf("%d bytes are the pool's, and %d charged", held, charged)
	}
	d.OnCall(nil)
	if _, err := p.Alloc(mib); err != nil { // the driver says that the pool has less
		t.Error(err)
	}
	if held, _, _ := a.counts(); held != 32*mib {
		t.Errorf("%d bytes are the pool's", held)
	}
}

// TestPoolIsNotCountedByABrokenAccount: what is refused for another reason than a full lease
// is refused, also where the pool seems to have room.
func TestPoolIsNotCountedByABrokenAccount(t *testing.T) {
	a := newAccount(t, 100*mib)
	c := newCharges(t, a)
	a.broken = errors.New("no ledger")
	if n, err := c.TakePooled(1024, 32*mib, 0, 0); n != 0 || !errors.Is(err, a.broken) {
		t.Errorf("%d bytes are counted before, %v", n, err)
	}
}

// TestCountIsOfWhatTheDriverGranted: of pitched memory the driver says how much it is.
func TestCountIsOfWhatTheDriverGranted(t *testing.T) {
	for _, tc := range []struct {
		granted uint64 // for 3 MiB
		refused bool
		want    uint64
	}{{3 * mib, false, 4 * mib}, {1 * mib, false, 2 * mib}, {9 * mib, false, 10 * mib}, {11 * mib, true, 0}} {
		a := newAccount(t, 10*mib)
		c := newCharges(t, a)
		if err := c.Take(3 * mib); err != nil {
			t.Fatal(err)
		}
		if err := c.Resize(3*mib, tc.granted); errors.Is(err, device.ErrOutOfMemory) != tc.refused {
			t.Errorf("%d MiB: %v", tc.granted/mib, err)
		}
		if tc.refused {
			c.Failed(3 * mib)
		} else {
			c.Done(shim.Key{Value: 4 * mib}, tc.granted, 0)
		}
		if _, charged, _ := a.counts(); charged != tc.want || (len(a.refused) == 1) != tc.refused {
			t.Errorf("%d MiB: %d bytes are counted, refused %d", tc.granted/mib, charged, a.refused)
		}
	}
}

// placing is a driver that places grants of plain memory where it is told to.
type placing struct {
	*driver
	at   uint64
	live map[uint64]uint64
	fail bool // a free fails
}

func (d *placing) Alloc(bytes uint64) (device.Range, error) {
	d.live[d.at] = bytes
	return device.Range{Addr: d.at, Bytes: bytes}, nil
}

func (d *placing) Free(addr uint64) error {
	if d.fail {
		return device.ErrInvalidValue
	}
	delete(d.live, addr)
	return nil
}

// TestBlockOfPoolAndProgramCountsOnce: grants of the pool and of the program lie in the blocks of
// one process. A block counts for whoever opened it until the last has left, whatever order they
// leave in and whichever release fails. Without, each of the two had counted it.
func TestBlockOfPoolAndProgramCountsOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	a := newAccount(t, 1<<40)
	c := newCharges(t, a)
	d := &placing{driver: newDriver(t, sim.Config{Total: 1 << 30}), live: map[uint64]uint64{}}
	pol, err := frameworks.Parse("platform")
	if err != nil {
		t.Fatal(err)
	}
	p, err := shim.Open(d, shim.Config{Policy: pol, Account: a, Charges: c, Ordered: true})
	if err != nil {
		t.Fatal(err)
	}
	charged := map[uint64]uint64{} // bytes by address, as d.live has them
	both := false                  // a block was shared by the two
	for i := range 20000 {
		at := uint64(1<<30) + r.Uint64N(64)*mib/2
		bytes := 1 + r.Uint64N(mib/2)
		if r.IntN(4) == 0 {
			bytes *= 9
		}
		fails := r.IntN(4) == 0
		free := true
		for _, live := range []map[uint64]uint64{d.live, charged} {
			for addr, n := range live {
				if at >= addr+n || addr >= at+bytes {
					continue
				}
				free = false
				key := shim.Key{Value: addr}
				if _, ok := charged[addr]; ok && r.IntN(2) == 0 {
					c.Removed(c.Remove(key), !fails)
					if !fails {
						delete(charged, addr)
					}
				} else if !ok && r.IntN(2) == 0 {
					d.fail = fails
					if err := p.Free(addr); (err != nil) != fails {
						t.Fatal(err)
					}
				}
			}
		}
		switch {
		case !free:
		case r.IntN(2) == 0:
			if err := c.Take(bytes); err != nil {
				t.Fatal(err)
			}
			c.Done(shim.Key{Value: at}, bytes, 0)
			charged[at] = bytes
		default:
			d.at = at
			if _, err := p.Alloc(bytes); err != nil {
				t.Fatal(err)
			}
		}
		used := map[uint64]int{}
		for who, live := range []map[uint64]uint64{d.live, charged} {
			for addr, n := range live {
				for b := addr / (2 * mib); b <= (addr+n-1)/(2*mib); b++ {
					used[b] |= 1 << who
					both = both || used[b] == 3
				}
			}
		}
		held, past, _ := a.counts()
		if want := uint64(len(used)) * 2 * mib; held+past != want || c.Bytes() != past {
			t.Fatalf("step %d: %d bytes are held and %d charged, %d shown; want %d for %d blocks", i, held, past, c.Bytes(), want, len(used))
		}
	}
	if !both {
		t.Error("no block was ever shared")
	}
}

// TestUnitIsTheGPUs: a GPU may take memory in larger blocks than the driver says.
func TestUnitIsTheGPUs(t *testing.T) {
	a := newAccount(t, 100*mib)
	p := openOn(t, newDriver(t, sim.Config{Total: 1 << 30, Granularity: 4 * mib}), "platform", shim.Config{Account: a})
	if _, err := p.Alloc(1); err != nil {
		t.Fatal(err)
	}
	if held, _, _ := a.counts(); held != 4*mib {
		t.Errorf("%d bytes are held", held)
	}
}
