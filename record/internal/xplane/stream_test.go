package xplane

// Long profiles.

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// wide is a number in 10 bytes, whatever it is.
func wide(v uint64) []byte {
	var b [10]byte
	for i := range b {
		b[i] = byte(v)&0x7f | 0x80
		v >>= 7
	}
	b[9] &= 0x7f
	return b[:]
}

// xpStream is a profile of two threads that take turns: a block of 1000 bytes
// comes on one and goes on the other, on top of one that stays. It is made while
// it is read.
type xpStream struct {
	perLine int // events of each thread
	part    int // of the file: 0 head, 1 and 2 lines, 3 names, 4 end
	next    int // event of the line
	rest    []byte
}

// event is event i of thread 0 or 1.
func (x *xpStream) event(thread, i int) []byte {
	number := func(stat uint64, v uint64) []byte {
		return append(tracetest.PB{}.Num(1, stat).Num(4, 0)[:3], wide(v)...)
	}
	held := uint64(1000)
	if thread == 0 {
		held = 2000
	}
	m := append(tracetest.PB{}.Num(1, uint64(1+thread)).Num(2, 0)[:3], wide(uint64(2*i+thread)*1_000_000)...)
	m = tracetest.PB(m).Bytes(4, tracetest.PB{}.Num(1, 1).Text(5, "GPU_0_bfc")).Bytes(4, number(2, held)).Bytes(4, number(3, 1000)).Bytes(4, number(4, 1000)).
		Bytes(4, number(5, uint64(1+i%1000)<<8)).Bytes(4, tracetest.PB{}.Num(1, 6).Text(5, "some/operation/of/a/model"))
	return protowire.AppendBytes([]byte{4<<3 | 2}, m)
}

func (x *xpStream) size() int64 { return 2 * int64(x.perLine) * int64(len(x.event(0, 0))) }

func (x *xpStream) Read(dst []byte) (int, error) {
	if len(x.rest) == 0 {
		x.rest = x.rest[:0]
		line := uint64(x.perLine * len(x.event(0, 0)))
		lineHead := append([]byte{3<<3 | 2}, wide(line)...)
		var names []byte
		for i, name := range []string{"allocator_name", "bytes_allocated", "requested_bytes", "allocation_bytes", "addr", "tf_op"} {
			names = tracetest.PB(names).Bytes(5, tracetest.PB{}.Num(1, uint64(i+1)).Bytes(2, tracetest.PB{}.Text(2, name)))
		}
		names = tracetest.PB(names).Bytes(4, tracetest.PB{}.Num(1, 1).Bytes(2, tracetest.PB{}.Text(2, "MemoryAllocation"))).Bytes(4, tracetest.PB{}.Num(1, 2).Bytes(2, tracetest.PB{}.Text(2, "MemoryDeallocation")))
		switch name := (tracetest.PB{}).Text(2, "/host:CPU"); x.part {
		case 0:
			x.rest = append(append([]byte{1<<3 | 2}, wide(uint64(len(name))+2*(line+uint64(len(lineHead)))+uint64(len(names)))...), name...)
			x.part++
		case 1, 2:
			if x.next == 0 {
				x.rest = append(x.rest, lineHead...)
			}
			for range min(100, x.perLine-x.next) {
				x.rest = append(x.rest, x.event(x.part-1, x.next)...)
				x.next++
			}
			if x.next == x.perLine {
				x.next = 0
				x.part++
			}
		case 3:
			x.rest = names
			x.part++
		case 4:
			return 0, io.EOF
		}
	}
	n := copy(dst, x.rest)
	x.rest = x.rest[n:]
	return n, nil
}

// TestXPlaneMemory: a profile takes no more memory than twice its size while it is read,
// and the recording next to nothing.
func TestXPlaneMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short; it reads 250,000 events for each line, which takes seconds")
	}
	x := &xpStream{perLine: 250_000}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	start, most := heap(), uint64(0)
	steps := 0
	tr, err := formats.Read(context.Background(), x, "in", tape.Options{SpoolLimit: -1, TempDir: t.TempDir(), Progress: func(read, _ int64) {
		if steps++; steps%16 == 0 || read >= x.size() {
			most = max(most, heap())
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	p := tr.Pools[0]
	if tr.Events != 2*uint64(x.perLine)+1 || p.Seeds != 1 || p.Slots != 2 || p.PeakLive != 2000 || p.EndLive != 1000 || len(tr.Notes) != 1 {
		t.Errorf("%+v, notes %q", p, tr.Notes)
	}
	if n := uint64(x.size()); most > start+2*n {
		t.Errorf("the heap grew from %d to %d bytes for %d", start, most, n)
	}
	if end := heap(); end > start+1<<20 {
		t.Errorf("the heap has %d bytes in the end, and had %d", end, start)
	}
}

// TestCancel: the end of the context ends the reading, also between the reading of a
// file and the end of Open, and nothing is left behind.
func TestCancel(t *testing.T) {
	x := &xpStream{perLine: 20_000}
	for _, after := range []int64{1, x.size() / 2, x.size()} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		x := &xpStream{perLine: x.perLine}
		tr, err := formats.Read(ctx, x, "in", tape.Options{SpoolLimit: -1, TempDir: dir, Progress: func(read, _ int64) {
			if read >= after {
				cancel()
			}
		}})
		cancel()
		if err == nil { // the last word on progress comes when all is done
			tr.Close()
		} else if !errors.Is(err, context.Canceled) || tracetest.IsInput(err) {
			t.Errorf("after %d bytes: %v", after, err)
		}
		if after < x.size() && err == nil {
			t.Errorf("after %d of %d bytes: no error", after, x.size())
		}
		if got := tracetest.Left(t, dir); len(got) > 0 {
			t.Errorf("left behind: %v", got)
		}
	}
	// While the events are played.
	for _, n := range []int{1, 4, 6} { // of about 10 looks
		ctx, cancel := context.WithCancel(context.Background())
		after := &endsAfter{Context: ctx, cancel: cancel}
		l := make([]memEvent, 20_000)
		for i := range l {
			l[i] = memEvent{ns: uint64(i), op: tape.Op(i % 2), addr: 1}
		}
		_, err := tape.Formats{{Name: "x", Looks: func([]byte) bool { return true }, Read: func(in *input.Reader, b *tape.Builder) error {
			p := &player{in: in, b: b}
			p.pool("p")
			after.left = n
			return p.run(l)
		}}}.Read(after, strings.NewReader("x"), "in", tape.Options{})
		cancel()
		if !errors.Is(err, context.Canceled) || tracetest.IsInput(err) {
			t.Errorf("at event %d: %v", n, err)
		}
	}
}

// endsAfter is a context that ends when it has been asked some times.
type endsAfter struct {
	context.Context
	cancel context.CancelFunc
	left   int
}

func (e *endsAfter) Err() error {
	if e.left--; e.left == 0 {
		e.cancel()
	}
	return e.Context.Err()
}
