package shim_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device"
	"gpumem/node/ledger"
	"gpumem/preload/internal/shim"
)

// TestJoin: a process joins the ledger of its GPU, however the UUID is written, with the
// parts of that ledger.
func TestJoin(t *testing.T) {
	const first, second = "GPU-0a1b2c3d-0000-0000-0000-00000000000A", "MIG-ffffffff-0000-0000-0000-000000000001"
	files := make([]string, 2)
	for i, uuid := range []string{first, second} {
		files[i] = filepath.Join(t.TempDir(), "ledger")
		if err := ledger.Create(files[i], ledger.Header{Limit: uint64(i+1) << 30, Total: 4 << 30, UUID: uuid}); err != nil {
			t.Fatal(err)
		}
	}
	parts := ledger.FormatParts([][]ledger.Part{{{ID: 7, Limit: 100 << 20}}, {{ID: 8, Limit: 200 << 20}}})
	for _, tc := range []struct {
		name, parts, uuid string
		limit             uint64 // 0: refused
	}{
		{"the first", "", first, 1 << 30},
		{"the second", "", second, 2 << 30},
		{"in other letters", "", strings.ToUpper(strings.TrimPrefix(first, "GPU-")), 1 << 30},
		{"without dashes", "", strings.ReplaceAll(strings.TrimPrefix(second, "MIG-"), "-", ""), 2 << 30},
		{"a part of the first", parts, first, 100 << 20},
		{"a part of the second", parts, second, 200 << 20},
		{"another GPU", "", "GPU-11111111-0000-0000-0000-000000000000", 0},
		{"damaged parts", "7=", first, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := descriptors(t)
			l, err := shim.Join(strings.Join(files, ":"), tc.parts, tc.uuid, nil)
			if tc.limit == 0 {
				if err == nil {
					t.Fatal("joined")
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				if limit, left := l.Limit(); limit != tc.limit || left != tc.limit {
					t.Errorf("limit %d, left %d; want %d", limit, left, tc.limit)
				}
				if n := descriptors(t); n != before+1 {
					t.Errorf("%d descriptors more", n-before)
				}
				if err := l.Leave(); err != nil {
					t.Fatal(err)
				}
			}
			if n := descriptors(t); n != before {
				t.Errorf("%d descriptors are left", n-before)
			}
		})
	}
}

// TestLedgerWithoutAUUIDIsTheFirstGPUs: it is for whatever GPU asks.
func TestLedgerWithoutAUUIDIsTheFirstGPUs(t *testing.T) {
	l := lease(t, filepath.Join(t.TempDir(), "ledger"), true)
	if limit, _ := l.Limit(); limit != 10<<20 {
		t.Errorf("limit %d", limit)
	}
}

// TestLedgersWithoutAUUIDAreOfOneGPUEach: several GPUs without a UUID join one each, and a GPU that
// has a ledger by its UUID joins no other. Without, all GPUs joined the first one.
func TestLedgersWithoutAUUIDAreOfOneGPUEach(t *testing.T) {
	const named, none = "GPU-0a1b2c3d-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-000000000000"
	var files []string
	for i, uuid := range []string{"", named, ""} {
		files = append(files, filepath.Join(t.TempDir(), "ledger"))
		if err := ledger.Create(files[i], ledger.Header{Limit: uint64(i+1) << 30, Total: 4 << 30, UUID: uuid}); err != nil {
			t.Fatal(err)
		}
	}
	before, taken := descriptors(t), map[string]bool{}
	for i, tc := range []struct {
		uuid  string
		limit uint64 // 0: refused
	}{{named, 2 << 30}, {none, 1 << 30}, {none, 3 << 30}, {named, 2 << 30}, {none, 0}} {
		l, err := shim.Join(strings.Join(files, ":"), "", tc.uuid, taken)
		if (err != nil) != (tc.limit == 0) {
			t.Fatalf("GPU %d: %v", i, err)
		}
		if err != nil {
			continue
		}
		if limit, _ := l.Limit(); limit != tc.limit {
			t.Errorf("GPU %d joins the ledger of %d bytes, want %d", i, limit, tc.limit)
		}
		if err := l.Leave(); err != nil {
			t.Fatal(err)
		}
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors are left", n-before)
	}
}

// lease joins a ledger of 10 MiB for any GPU, which it makes first if it is to.
func lease(t *testing.T, file string, create bool) *shim.Lease {
	t.Helper()
	if create {
		if err := ledger.Create(file, ledger.Header{Limit: 10 << 20, Total: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	l, err := shim.Join(file, "", "GPU-11111111-0000-0000-0000-000000000000", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Leave() })
	return l
}

// TestLeaseCounts: a full lease is a device without memory. The ledger has a figure for each
// part and for what the pool publishes; the peak of what is held is the ledger's.
func TestLeaseCounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	l := lease(t, file, true)
	for k, n := range []uint64{shim.Held: 1 << 20, shim.Charged: 2 << 20, shim.Outside: 3 << 20} {
		if err := l.Take(shim.Part(k), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Take(shim.Held, 4<<20+1); !errors.Is(err, device.ErrOutOfMemory) || !errors.Is(err, ledger.ErrFull) {
		t.Errorf("Take beyond the lease = %v", err)
	}
	l.Give(shim.Charged, 1<<20)
	l.Publish(shim.Figures{InUse: 1, PeakHeld: 2, PeakInUse: 3, Refused: 4, DriverCalls: 5, Held: 6, Charged: 7})
	book, err := ledger.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	got := book.Members()[0]
	got.PID, got.Start = 0, 0
	want := ledger.Figures{
		Held: 1 << 20, Charged: 1 << 20, Outside: 3 << 20, PeakHeld: 1 << 20,
		InUse: 1, PeakInUse: 3, Refused: 4, DriverCalls: 5, Changes: 4,
	}
	if got != want {
		t.Errorf("the ledger has %+v, want %+v", got, want)
	}
}

// TestLedgerThatFailsLeavesNothingUncounted: what the driver granted or released while the ledger
// could not be written is counted when it can be again, before anything else is taken. The error
// is said once. Without, 3 MiB that the driver had granted were never counted.
func TestLedgerThatFailsLeavesNothingUncounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	l := lease(t, file, true)
	var said []error
	l.Say = func(err error) { said = append(said, err) }
	if err := l.Take(shim.Held, 2<<20); err != nil {
		t.Fatal(err)
	}
	if err := l.Take(shim.Held, 9<<20); !errors.Is(err, device.ErrOutOfMemory) || len(said) > 0 {
		t.Fatalf("Take beyond the lease = %v, said %v", err, said)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	l.Count(shim.Charged, 4<<20)
	l.Give(shim.Charged, 1<<20)
	l.Give(shim.Held, 1<<20)
	for range 2 {
		if err := l.Take(shim.Held, 1); !errors.Is(err, shim.ErrAccount) || errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("Take from a ledger without its file = %v", err)
		}
		if _, left := l.Limit(); left != 0 || !l.Unusable() {
			t.Errorf("%d bytes are left of a ledger without its file, unusable %v", left, l.Unusable())
		}
	}
	if len(said) != 1 || !errors.Is(said[0], ledger.ErrDamaged) {
		t.Errorf("said: %v", said)
	}
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, left := l.Limit(); left != 6<<20 { // and what was owed is counted
		t.Errorf("%d bytes are left", left)
	}
	if err := l.Take(shim.Outside, 6<<20+1); !errors.Is(err, device.ErrOutOfMemory) || l.Unusable() {
		t.Errorf("Take of a byte more than is left = %v", err)
	}
	book, err := ledger.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if m := book.Members()[0]; m.Held != 1<<20 || m.Charged != 3<<20 || m.Outside != 0 {
		t.Errorf("the ledger has %+v", m)
	}
	l.Give(shim.Outside, 1) // never taken: a fault, and the ledger stays as it is
	l.Count(shim.Outside, 2)
	if m := book.Members()[0]; m.Outside != 2 {
		t.Errorf("%d bytes are outside, want 2", m.Outside)
	}
	if len(said) != 1 {
		t.Errorf("said: %v", said)
	}
}

// TestRefusalForADamagedLedgerSaysSo: nobody knows what is left. Without, "256 MiB are left of the
// lease of 256 MiB" stood there.
func TestRefusalForADamagedLedgerSaysSo(t *testing.T) {
	for _, text := range []string{"", strings.Repeat("\x00", 135168), strings.Repeat("\xff", 135168)} {
		file := filepath.Join(t.TempDir(), "ledger")
		var said []string
		p, _ := open(t, 1<<30, shim.Config{Account: lease(t, file, true), Say: func(s string) { said = append(said, s) }})
		if _, err := p.Alloc(2 << 20); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Alloc(2 << 20); err == nil {
			t.Fatal("memory is served")
		}
		want := "GPU 0: out of memory: a request of 2 MiB, and the ledger of the lease cannot be used; the pool of this process holds 2 MiB, of which 2 MiB are in use"
		if len(said) != 1 || said[0] != want {
			t.Errorf("said %q, want %q", said, want)
		}
		if free, _, err := p.Info(); free != 0 || err != nil {
			t.Errorf("%d bytes are free, %v", free, err)
		}
	}
}

// TestUncertainIsToldOnce: it stays so, and each time would read the file.
func TestUncertainIsToldOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	l := lease(t, file, true)
	l.Uncertain()
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	l.Uncertain()
	book, err := ledger.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	now, err := os.ReadFile(file)
	if err != nil || string(now) != string(whole) || !book.Members()[0].Uncertain {
		t.Errorf("the ledger has %+v, %v", book.Members()[0], err)
	}
}

// TestLeaseWantsOfOthers: a lone process is refused at once, and one beside another hears of
// what that waits for. A pool asks for 0 bytes to learn whether there may be others at all.
func TestLeaseWantsOfOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	l := lease(t, file, true)
	if err := l.Want(0); err != nil {
		t.Errorf("Want of nothing, alone = %v", err)
	}
	before, _ := l.Wanted()
	if err := l.Want(1); !errors.Is(err, device.ErrNotSupported) {
		t.Errorf("Want, alone = %v", err)
	}
	if n, _ := l.Wanted(); n != before {
		t.Error("a lone process has announced what it wants")
	}
	other := lease(t, file, false)
	if err := l.Want(5); err != nil {
		t.Errorf("Want beside another = %v", err)
	}
	if n, bytes := other.Wanted(); n == before || bytes != 5 {
		t.Errorf("the other hears of %d bytes, number %d", bytes, n)
	}
}

// descriptors counts the open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd")
	}
	return len(list)
}
