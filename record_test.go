package gpumem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/device/sim"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

func recorded(t interface{ Fatal(...any) }, spec string, w io.Writer, o ...Option) *Pool {
	dev, err := sim.New(sim.Config{Total: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	out, err := trace.NewWriter(w)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := Open(dev, p, append(o, WithRecord(out), WithRetry(0))...)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func readBack(t interface{ Fatal(...any) }, file []byte) *trace.Trace {
	tr, err := formats.Read(context.Background(), bytes.NewReader(file), "run", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestRecord: what is read back is what was done, under every policy: each event with its
// size, in order, each refusal once, and what lives at the end.
func TestRecord(t *testing.T) {
	for _, spec := range []string{"jax", "jax:preallocate=false", "platform", "async", "vmm", "elastic"} {
		t.Run(spec, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var file bytes.Buffer
				p := recorded(t, spec, &file)
				type event struct {
					free    bool
					bytes   uint64
					refused bool
				}
				var want []event
				var live []Block
				sizes := map[uint64]uint64{}
				var inUse uint64
				for range rapid.IntRange(1, 60).Draw(t, "calls") {
					if len(live) > 0 && rapid.Bool().Draw(t, "free") {
						k := rapid.IntRange(0, len(live)-1).Draw(t, "which")
						b := live[k]
						live = append(live[:k], live[k+1:]...)
						free := func() error { return p.Free(b) }
						if rapid.Bool().Draw(t, "by address") {
							free = func() error { return p.FreeAddr(b.Addr) }
						}
						if err := free(); err != nil {
							t.Fatal(err)
						}
						if !errors.Is(p.Free(b), ErrDoubleFree) && spec != "platform" {
							t.Fatal("freed twice")
						}
						inUse -= sizes[b.Addr]
						want = append(want, event{free: true})
						continue
					}
					n := uint64(rapid.IntRange(0, 40<<20).Draw(t, "bytes"))
					b, err := p.TryAlloc(n)
					if rapid.Bool().Draw(t, "waits") && err != nil {
						want = append(want, event{bytes: n, refused: true})
						_, err = p.Alloc(t.Context(), n)
					}
					if err != nil {
						want = append(want, event{bytes: n, refused: true})
					} else if n > 0 {
						live, sizes[b.Addr] = append(live, b), n
						inUse += n
						want = append(want, event{bytes: n})
					}
				}
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				if len(want) == 0 {
					return // a recording of nothing is refused by its readers
				}
				tr := readBack(t, file.Bytes())
				defer tr.Close()
				got := make([]trace.Event, len(want)+1)
				n, err := tr.Pools[0].Cursor().Next(got)
				if err != nil || n != len(want) || len(tr.Pools) != 1 || !tr.Timed {
					t.Fatalf("%d events, want %d; %v", n, len(want), err)
				}
				for k, e := range got[:n] {
					if (e.Op == trace.Free) != want[k].free || e.Bytes != want[k].bytes || e.Refused != want[k].refused {
						t.Fatalf("event %d: %+v, want %+v", k, e, want[k])
					}
				}
				if tr.Pools[0].EndLive != inUse {
					t.Fatalf("%d bytes at the end, want %d", tr.Pools[0].EndLive, inUse)
				}
			})
		})
	}
}

// TestRecordSites: who asked is there, by the stack that reports have.
func TestRecordSites(t *testing.T) {
	var file bytes.Buffer
	p := recorded(t, "jax", &file, WithStacks(true))
	b, err := p.Alloc(context.Background(), 100)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSuffix(p.Live()[0].Stack, "\n")
	if err := errors.Join(p.Free(b), p.Close()); err != nil {
		t.Fatal(err)
	}
	tr := readBack(t, file.Bytes())
	defer tr.Close()
	var got [1]trace.Event
	if _, err := tr.Pools[0].Cursor().Next(got[:]); err != nil {
		t.Fatal(err)
	}
	if site := tr.Site(got[0].Site); site != want || !strings.Contains(site, "TestRecordSites") {
		t.Errorf("site %q, want %q", site, want)
	}
}

// TestRecordFails: a writer that fails ends the recording, and Close says so; the pool
// works on.
func TestRecordFails(t *testing.T) {
	disk := errors.New("the disk is full")
	for most := range 3 {
		w := &failing{left: most + 1, err: disk} // the first write is the head's
		p := recorded(t, "jax", w)
		for range 30000 { // several blocks of the file
			b, err := p.TryAlloc(1 << 10)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Free(b); err != nil {
				t.Fatal(err)
			}
		}
		err := p.Close()
		if !errors.Is(err, disk) || !strings.Contains(err.Error(), "the recording of pool") {
			t.Errorf("after %d writes: %v", most, err)
		}
		if err := p.Close(); err != ErrClosed {
			t.Errorf("closed twice: %v", err)
		}
	}
}

type failing struct {
	left int
	err  error
}

func (w *failing) Write(p []byte) (int, error) {
	if w.left == 0 {
		return 0, w.err
	}
	w.left--
	return len(p), nil
}

// BenchmarkRecord is an allocation and its free, recorded and not.
func BenchmarkRecord(b *testing.B) {
	for _, stacks := range []bool{false, true} {
		name := "plain"
		if stacks {
			name = "stacks"
		}
		run := func(b *testing.B, p *Pool) {
			for b.Loop() {
				x, err := p.TryAlloc(1 << 10)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.Free(x); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(name+"/recorded", func(b *testing.B) { run(b, recorded(b, "jax", io.Discard, WithStacks(stacks))) })
		b.Run(name+"/not", func(b *testing.B) {
			p := recorded(b, "jax", io.Discard, WithStacks(stacks))
			p.record = nil
			run(b, p)
		})
	}
}

// A program records its pool, and reads back what it did.
func ExampleWithRecord() {
	dev, _ := sim.New(sim.Config{Total: 1 << 30})
	defer dev.Close()
	var file bytes.Buffer // or an os.File
	w, err := trace.NewWriter(&file)
	if err != nil {
		fmt.Println(err)
		return
	}
	pool, err := Open(dev, frameworks.Default(), WithRecord(w))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		b, _ := pool.Alloc(context.Background(), 64<<20)
		_ = pool.Free(b)
	}
	if err := pool.Close(); err != nil {
		fmt.Println(err)
		return
	}
	t, err := formats.Read(context.Background(), &file, "run", trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(t.Events, "events, at most", t.PeakLive, "bytes live")
	// Output:
	// 6 events, at most 67108864 bytes live
}
