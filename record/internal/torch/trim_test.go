package torch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTrims: segments that the program releases, not an allocation, are an emptied cache.
func TestTrims(t *testing.T) {
	const at, other, size = 0x1000000, 0x2000000, 20 << 20
	stack := func(line int64) *list { return l(d("name", "f", "filename", "train.py", "line", line)) }
	by := func(stack *list, e *dict) *dict {
		e.items = append(e.items, d("frames", stack).items...)
		return e
	}
	one, two := stack(1), stack(2)
	freed := func(stack *list) *dict { return by(stack, ev("segment_free", at, size)) }
	taken := func(stack *list) *dict { return by(stack, ev("segment_alloc", other, size)) }
	alloc := func(stack *list) *dict { return by(stack, ev("alloc", other, size)) }
	larger := func(stack *list) *dict { return by(stack, ev("alloc", other, size+1)) }
	refused := func(stack *list) *dict {
		return by(stack, d("action", "oom", "size", int64(size), "device_free", int64(1)))
	}
	for _, tc := range []struct {
		name    string
		retries any
		events  []any // behind an allocation and its free
		want    []uint64
	}{
		{"another stack than the allocation's", nil, []any{freed(one), taken(two), alloc(two)}, []uint64{2}},
		{"the allocation's stack", nil, []any{freed(two), taken(two), larger(two)}, nil},
		{"several, of which one is not the allocation's", nil, []any{freed(two), freed(one), taken(two), larger(two)}, []uint64{2}},
		{"no stacks", nil, []any{freed(l()), taken(l()), larger(l())}, nil},
		{"no stacks, and what was released could serve the request", nil, []any{freed(l()), taken(l()), alloc(l())}, []uint64{2}},
		{"a refusal", nil, []any{freed(two), refused(two)}, nil},
		{"emptied before a refusal", nil, []any{freed(one), refused(two)}, []uint64{2}},
		{"an allocation that takes no segment", nil, []any{freed(two), alloc(two)}, []uint64{2}},
		{"at the end", nil, []any{freed(one)}, nil},
		{"twice", nil, []any{freed(one), alloc(two), free(other, size)[0], free(other, size)[1], by(one, ev("segment_unmap", at, size)), taken(two), alloc(two)}, []uint64{2, 4}},
		{"no request was repeated", int64(0), []any{freed(two), taken(two), alloc(two)}, []uint64{2}},
		{"one was", int64(1), []any{freed(two), taken(two), larger(two)}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			events := append([]any{by(one, ev("alloc", at, size))}, free(at, size)...)
			tree := d("segments", l(), "device_traces", l(l(append(events, tc.events...)...)))
			if tc.retries != nil {
				tree.items = append(tree.items, d("num_alloc_retries", tc.retries).items...)
			}
			tr, err := played(tree)
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if diff := cmp.Diff(tc.want, tr.Pools[0].Trims()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTrimWithoutStacksWhereTheDeviceHadRoom: as much was held before, so no request was
// refused, and it is the program that released the segment.
func TestTrimWithoutStacksWhereTheDeviceHadRoom(t *testing.T) {
	const first, second, third, size = 0x1000000, 0x4000000, 0x7000000, 20 << 20
	events := func(last int) []any {
		list := []any{ev("segment_alloc", first, size), ev("alloc", first, size)}
		list = append(list, free(first, size)...)
		list = append(list, ev("segment_alloc", second, 2*size), ev("alloc", second, 2*size))
		list = append(list, free(second, 2*size)...)
		list = append(list, ev("segment_free", second, 2*size), ev("alloc", first, size))
		list = append(list, free(first, size)...)
		return append(list, ev("segment_free", first, size), ev("segment_alloc", third, last), ev("alloc", third, last))
	}
	for _, c := range []struct {
		last int
		want []uint64
	}{{2 * size, []uint64{4, 6}}, {2*size + 2<<20, []uint64{4}}} {
		tr, err := played(d("segments", l(held(third, c.last, blk(third, c.last))), "device_traces", l(l(events(c.last)...))))
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if diff := cmp.Diff(c.want, tr.Pools[0].Trims()); diff != "" {
			t.Errorf("%d bytes: %s", c.last, diff)
		}
	}
}
