package tape_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpumem/record/formats"
	"gpumem/record/internal/tape"
)

// TestAtPeak: what is live when most is, in the order of its allocation.
func TestAtPeak(t *testing.T) {
	for _, tc := range []struct{ name, events, want string }{
		{"before the end", "a w 100\na x 30\nf x\na y 20\na z 30\nf y\nf z\n", "100 20 30"},
		{"a slot that is used again", "a w 100\na x 30\nf w\na y 101\n", "30 101"},
		{"the first of two", "a w 100\nf w\na x 60\na y 40\n", "100"},
		{"more than 2^64", "a w 18446744073709551615\na x 5\nf w\nf x\n", "18446744073709551615"},
		{"nothing", "a w 0\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr, err := formats.Read(t.Context(), strings.NewReader(tc.events), "run.txt", tape.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if got, err := sizesAtPeak(t.Context(), tr.Pools[0]); err != nil || got != tc.want {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func sizesAtPeak(ctx context.Context, p *tape.Pool) (string, error) {
	list, err := p.AtPeak(ctx)
	var words []string
	for _, e := range list {
		words = append(words, fmt.Sprint(e.Bytes))
	}
	return strings.Join(words, " "), err
}

// TestAtPeakOfRefused: a request that the program was refused is the last, and in the sum.
func TestAtPeakOfRefused(t *testing.T) {
	tr, err := formats.Open(t.Context(), "../../trace/testdata/torch2150.pickle", tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	p := tr.Pools[0]
	list, err := p.AtPeak(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sum := uint64(0)
	for _, e := range list {
		sum += e.Bytes
	}
	if last := list[len(list)-1]; sum != p.PeakLive || !last.Refused || last.Bytes != 5368709120 {
		t.Errorf("%d of %d, the last is %+v", sum, p.PeakLive, last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.AtPeak(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestWalk: a free has the bytes of its block.
func TestWalk(t *testing.T) {
	tr, err := formats.Read(t.Context(), strings.NewReader("a w 100\na x 30\nf w\na y 7\n"), "run.txt", tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	w := tr.Pools[0].Walk()
	var got []string
	for {
		e, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			break
		}
		got = append(got, fmt.Sprint(e.Op, " ", e.Bytes, " ", len(w.Live())))
	}
	if want := fmt.Sprintf("%v 100 1, %v 30 2, %v 100 1, %v 7 2", tape.Alloc, tape.Alloc, tape.Free, tape.Alloc); strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestWalkKeepsNoRefusedRequest: it is live at its event, and counted apart.
func TestWalkKeepsNoRefusedRequest(t *testing.T) {
	log := "Thread,Time,Action,Pointer,Size,Stream\n" +
		"1,12:00:00,allocate,0x100,100,0\n1,12:00:01,allocate failure,(nil),70,0\n1,12:00:02,allocate,0x200,30,0\n1,12:00:03,free,0x100,100,0\n1,12:00:04,allocate failure,(nil),7,0\n"
	tr, err := formats.Read(t.Context(), strings.NewReader(log), "log.csv", tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	const want = "100/1 100/1 1; 170/2 100/1 1; 130/2 130/2 2; 30/1 30/1 1; 37/2 30/1 1; "
	show := func(w *tape.Walk) string {
		kept, blocks := w.Kept()
		keeps := 0
		for i := range w.Slots {
			if w.Keeps(&w.Slots[i]) {
				keeps++
			}
		}
		return fmt.Sprintf("%d/%d %d/%d %d; ", w.Bytes.Cap(), w.Blocks, kept.Cap(), blocks, keeps)
	}
	each, next := tr.Pools[0].Walk(), tr.Pools[0].Walk()
	var gotEach, gotNext strings.Builder
	if err := each.Each(t.Context(), nil, func(*tape.Event, *tape.Block) { gotEach.WriteString(show(each)) }); err != nil {
		t.Fatal(err)
	}
	for {
		e, err := next.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			break
		}
		gotNext.WriteString(show(next))
	}
	if gotEach.String() != want || gotNext.String() != want {
		t.Errorf("%q and %q, want %q", gotEach.String(), gotNext.String(), want)
	}
	for _, w := range []*tape.Walk{each, next} {
		if w.Bytes.Cap() != 30 || w.Blocks != 1 {
			t.Errorf("%d bytes in %d blocks at the end", w.Bytes.Cap(), w.Blocks)
		}
	}
}
