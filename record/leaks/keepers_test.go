package leaks

import (
	"reflect"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// TestKeeper: a leak has the container that keeps more than half of what grew evenly, whatever
// the first steps keep at the same line, and none if none keeps so much.
func TestKeeper(t *testing.T) {
	hist, cache := trace.Keeper{Container: "list `hist`", Line: "rec.py:8"}, trace.Keeper{Container: "dict `cache`"}
	for _, c := range []struct {
		name   string
		first  uint64                              // bytes of a block of the first step at the line that leaks
		keeper func(step int) (trace.Keeper, bool) // of the block of a step
		frees  bool                                // the program frees all at its end
		want   *trace.Keeper
	}{
		{"unknown", 0, func(int) (k trace.Keeper, ok bool) { return }, false, nil},
		{"all", 0, func(int) (trace.Keeper, bool) { return hist, true }, false, &hist},
		{"all of a program that frees all at its end", 0, func(int) (trace.Keeper, bool) { return hist, true }, true, &hist},
		{"two of three", 0, func(step int) (trace.Keeper, bool) { return hist, step%3 > 0 }, false, &hist},
		{"two of five", 0, func(step int) (trace.Keeper, bool) { return hist, step%5 > 2 }, false, nil},
		{"two that share it", 0, func(step int) (trace.Keeper, bool) {
			if step%5 > 2 {
				return hist, true
			}
			return cache, step%5 > 0
		}, false, nil},
		{"beside a workspace", 1 << 30, func(int) (trace.Keeper, bool) { return cache, true }, false, &cache},
	} {
		t.Run(c.name, func(t *testing.T) {
			keepers := map[uint64]trace.Keeper{}
			read := func(_ *input.Reader, b *tape.Builder) error {
				p := b.Pool("cuda:0")
				keeps, batch := b.Site([]byte("keep (rec.py:8)")), b.Site([]byte("batch (rec.py:6)"))
				var slots []uint32
				alloc := func(site uint32, bytes uint64) {
					slot, err := p.Alloc(tape.Event{Site: site, Bytes: bytes}, 0)
					if err != nil {
						t.Fatal(err)
					}
					slots = append(slots, slot)
				}
				free := func() {
					if err := p.Free(tape.Event{Slot: slots[len(slots)-1]}); err != nil {
						t.Fatal(err)
					}
					slots = slots[:len(slots)-1]
				}
				if c.first > 0 {
					alloc(keeps, c.first)
				}
				for step := range 120 {
					alloc(keeps, 1000)
					if k, ok := c.keeper(step); ok {
						keepers[p.Events()] = k
					}
					alloc(batch, 5000)
					free()
				}
				for c.frees && len(slots) > 0 {
					free()
				}
				p.Keepers(keepers)
				return nil
			}
			format := trace.Format{Name: "run", Looks: func([]byte) bool { return true }, Read: read}
			tr, err := trace.Formats{format}.Read(t.Context(), strings.NewReader("run"), "run", trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			// Of what is live at the end the workspace is the most, and nothing is where all is freed.
			live, err := Live(t.Context(), tr, Config{})
			if err != nil || len(live) != 1 && !c.frees {
				t.Fatalf("%+v, %v", live, err)
			}
			want := c.want
			if c.first > 0 { // the workspace is more than half
				want = nil
			}
			if !c.frees && !reflect.DeepEqual(live[0].Keeper, want) {
				t.Errorf("live: %v, want %v", live[0].Keeper, want)
			}
			rep, err := Find(t.Context(), tr, Config{})
			if err != nil || len(rep.Leaks) != 1 {
				t.Fatalf("%+v, %v", rep, err)
			}
			if got := rep.Leaks[0].Keeper; !reflect.DeepEqual(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// TestKeeperOfLiveBlocks: what a container kept and is freed does not count.
func TestKeeperOfLiveBlocks(t *testing.T) {
	cache := trace.Keeper{Container: "dict `cache`"}
	for freed, want := range map[bool]*trace.Keeper{false: &cache, true: nil} {
		read := func(_ *input.Reader, b *tape.Builder) error {
			p := b.Pool("cuda:0")
			line := b.Site([]byte("keep (rec.py:8)"))
			if _, err := p.Alloc(tape.Event{Site: line, Bytes: 1000}, 0); err != nil {
				return err
			}
			slot, err := p.Alloc(tape.Event{Site: line, Bytes: 3000}, 0)
			p.Keepers(map[uint64]trace.Keeper{p.Events(): cache})
			if err == nil && freed {
				err = p.Free(tape.Event{Slot: slot})
			}
			return err
		}
		format := trace.Format{Name: "run", Looks: func([]byte) bool { return true }, Read: read}
		tr, err := trace.Formats{format}.Read(t.Context(), strings.NewReader("run"), "run", trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		live, err := Live(t.Context(), tr, Config{})
		if err != nil || len(live) != 1 || !reflect.DeepEqual(live[0].Keeper, want) {
			t.Errorf("freed %v: %+v, %v, want %v", freed, live, err, want)
		}
	}
}

// TestAddJoinsKeepers: of places of one name it is the container that keeps more than half of both.
func TestAddJoinsKeepers(t *testing.T) {
	a, b := trace.Keeper{Container: "a"}, trace.Keeper{Container: "b"}
	place := func(k trace.Keeper, kept, bytes uint64) Place {
		p := Place{Site: "f", Bytes: bytes, even: bytes, keepers: map[trace.Keeper]uint64{k: kept}}
		p.nameKeeper()
		return p
	}
	if list := add(add(nil, place(a, 9, 10)), place(b, 20, 20)); list[0].Keeper == nil || *list[0].Keeper != b {
		t.Errorf("%v, want b", list[0].Keeper)
	}
	if list := add(add(nil, place(a, 9, 10)), place(b, 10, 10)); list[0].Keeper != nil {
		t.Errorf("%v, want none", list[0].Keeper)
	}
}
