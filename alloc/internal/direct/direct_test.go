package direct_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/direct"
	"gpumem/device"
	"gpumem/device/sim"
)

// The contract is checked by package alloctest; here is what is direct's own.

func TestOneGrantABlock(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a := direct.New(dev, 0)
	var blocks []alloc.Block
	for i := range 5 {
		b, err := a.Alloc(alloc.Request{Bytes: 1, Site: alloc.Site(i)})
		if err != nil {
			t.Fatal(err)
		}
		if b.Size != 2<<20 {
			t.Errorf("1 byte gives %d, want the device's granularity", b.Size)
		}
		blocks = append(blocks, b)
	}
	if n := dev.Counters().Calls; n != 5 {
		t.Errorf("%d driver calls for 5 blocks", n)
	}
	for _, b := range blocks {
		if err := a.Free(b); err != nil {
			t.Fatal(err)
		}
	}
	if held, _ := dev.Held(); held != 0 || dev.Counters().Calls != 10 {
		t.Errorf("%d bytes held, %d calls; want 0, 10", held, dev.Counters().Calls)
	}
}

func TestLimit(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a := direct.New(dev, 8<<20)
	if _, err := a.Alloc(alloc.Request{Bytes: 6 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: 3 << 20}); !errors.Is(err, alloc.ErrNoMemory) || errors.Is(err, alloc.ErrNever) {
		t.Errorf("over the limit now: %v, want ErrNoMemory", err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: 9 << 20}); !errors.Is(err, alloc.ErrNever) {
		t.Errorf("over the limit for ever: %v, want ErrNever", err)
	}
}

// TestFreeFails: a block that the device does not take back stays live, and
// can be freed later.
func TestFreeFails(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a := direct.New(dev, 0)
	b, err := a.Alloc(alloc.Request{Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	dev.SetFaults(sim.Faults{FailAt: 2, Err: device.ErrInvalidValue})
	if err := a.Free(b); !errors.Is(err, device.ErrInvalidValue) {
		t.Fatalf("%v, want the device's error", err)
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	if err := a.Free(b); err != nil {
		t.Fatal(err)
	}
}

func TestReport(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	got := direct.New(dev, 0).Report(alloc.Request{Bytes: 184549376}).String()
	want := "E [0] Failed to allocate device memory of 176.00MiB (184549376 bytes): CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWhy: the account of a refusal says what rounding wastes, not what holes
// there are.
func TestWhy(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a := direct.New(dev, 0)
	for range 3 { // 512 KiB asked for, 2 MiB taken
		if _, err := a.Alloc(alloc.Request{Bytes: 512 << 10}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		ask       uint64
		splitting bool
	}{{3 << 20, true}, {7 << 20, false}} {
		r := alloc.Request{Bytes: tc.ask}
		if _, err := a.Alloc(r); !errors.Is(err, alloc.ErrNoMemory) {
			t.Fatal(err)
		}
		c := alloc.Explain(a, r, 2<<20)
		if !c.PassThrough || c.Waste != 3*(1536<<10) || c.Splitting() != tc.splitting {
			t.Errorf("%d bytes: %+v, splitting %v", tc.ask, c, c.Splitting())
		}
		want := fmt.Sprintf("Would a pool, in which blocks share grants, have served it: %s.\n", map[bool]string{true: "yes", false: "no"}[tc.splitting])
		if text := c.Text(nil); !strings.HasSuffix(text, want) || strings.Contains(text, "hole") {
			t.Errorf("%d bytes:\n%s", tc.ask, text)
		}
	}
	c := alloc.Explain(a, alloc.Request{Bytes: 9 << 20}, -1)
	if text := c.Text(nil); !strings.Contains(text, "more than the limit of 8 MiB") || !strings.Contains(text, "an unknown amount free") {
		t.Error(text)
	}
}

func Example() {
	dev, _ := sim.New(sim.Config{Total: 64 << 20})
	a := direct.New(dev, 0)
	b, _ := a.Alloc(alloc.Request{Bytes: 3 << 20})
	held, _ := dev.Held()
	fmt.Println(b.Size>>20, held>>20)
	fmt.Println(a.Free(b))
	held, _ = dev.Held()
	fmt.Println(held)
	// Output:
	// 4 4
	// <nil>
	// 0
}
