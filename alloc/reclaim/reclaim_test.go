package reclaim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gpumem/alloc/reclaim"
	"gpumem/device"
	"gpumem/device/sim"
)

// idle is a member with idle memory.
type idle struct{ bytes uint64 }

func (i *idle) Release(n uint64) uint64 {
	n = min(n, i.bytes)
	i.bytes -= n
	return n
}

func gpu(t testing.TB) *sim.Device {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func TestAskTakesFromOthersOnSameDeviceUntilEnough(t *testing.T) {
	dev, other := gpu(t), gpu(t)
	a, b, c, far := &idle{100}, &idle{50}, &idle{50}, &idle{1000}
	var leave []func()
	for _, m := range []*idle{a, b, c} {
		leave = append(leave, reclaim.Join(dev, m))
	}
	defer reclaim.Join(other, far)()
	if n := reclaim.Ask(dev, 70, a); n != 70 || a.bytes != 100 || b.bytes != 0 || c.bytes != 30 {
		t.Errorf("released %d: %d, %d, %d are left", n, a.bytes, b.bytes, c.bytes)
	}
	leave[2]()
	if n := reclaim.Ask(dev, 200, nil); n != 100 || c.bytes != 30 || far.bytes != 1000 {
		t.Errorf("released %d; %d are left of a member that had gone, %d on another device", n, c.bytes, far.bytes)
	}
	leave[0]()
	leave[1]()
	if n := reclaim.Ask(dev, 1, nil); n != 0 {
		t.Errorf("released %d with no member", n)
	}
}

// uncomparable is a device that cannot be told from others.
type uncomparable struct {
	*sim.Device
	_ []int
}

func TestDeviceThatCannotBeComparedHasNoOthers(t *testing.T) {
	dev := uncomparable{Device: gpu(t)}
	m := &idle{100}
	leave := reclaim.Join(dev, m)
	if n := reclaim.Ask(dev, 10, nil); n != 0 {
		t.Errorf("released %d", n)
	}
	leave()
}

func TestSharingByLease(t *testing.T) {
	dev := gpu(t)
	t.Setenv(reclaim.EnvLease, "")
	if s := reclaim.Sharing(dev); s != nil {
		t.Errorf("a private device outside of a lease is shared by %v", s)
	}
	path := filepath.Join(t.TempDir(), "lease")
	t.Setenv(reclaim.EnvLease, path)
	if s := reclaim.Sharing(dev); s != nil {
		t.Errorf("a lease without a record is %v", s)
	}
	if err := os.WriteFile(path, []byte("record"), 0o600); err != nil {
		t.Fatal(err)
	}
	waits, holds := reclaim.Sharing(dev), reclaim.Sharing(dev)
	before, _ := holds.Wanted()
	if err := waits.Want(1); err != nil {
		t.Fatal(err)
	}
	if number, bytes := holds.Wanted(); number == before || bytes == 0 {
		t.Errorf("announcement %d of %d bytes, before %d", number, bytes, before)
	}
	if text, err := os.ReadFile(path); string(text) != "record" || err != nil {
		t.Errorf("the record is %q, %v", text, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if number, _ := holds.Wanted(); number != 0 || waits.Want(1) == nil {
		t.Errorf("announcement %d without a record", number)
	}
}

var _ device.Sharing = (*sim.Device)(nil)

func Example() {
	dev, _ := sim.New(sim.Config{Total: 1 << 30})
	pool := &idle{300} // keeps 300 bytes that nothing lives in
	leave := reclaim.Join(dev, pool)
	defer leave()
	fmt.Println(reclaim.Ask(dev, 200, nil), "released,", pool.bytes, "kept")
	// Output: 200 released, 100 kept
}
