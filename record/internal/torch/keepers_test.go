package torch

import (
	"fmt"
	"strings"
	"testing"
)

// TestKeepers: a container keeps the last block at each of its addresses, whatever lay there
// before; what is wrong with the list is left out.
func TestKeepers(t *testing.T) {
	keeper := func(container any, device int, blocks ...any) *dict {
		for i, b := range blocks {
			if n, ok := b.(int); ok {
				blocks[i] = int64(n)
			}
		}
		return d("container", container, "line", "t.py:8", "device", device, "blocks", l(blocks...), "bytes", 7)
	}
	same := keeper("a", 0, 0x100)
	// Events 1 and 2 are older blocks, at 0x10 and 0x20. 3 makes 0x100 and 4 frees it, 5 makes it again; 6 makes
	// 0x200 and 7 frees it; 8 came after recording had ended.
	events := append([]any{ev("alloc", 0x100, 1)}, free(0x100, 1)...)
	events = append(events, ev("alloc", 0x100, 2), ev("alloc", 0x200, 3))
	events = append(events, free(0x200, 3)...)
	snapshot := func(keepers any) *dict {
		return d("segments", l(seg(0, blk(0x10, 1), blk(0x20, 1), blk(0x100, 2), blk(0x200, 5)), seg(1, blk(0x100, 9))), "device_traces", l(l(events...)), keepersKey, keepers)
	}
	for _, c := range []struct {
		name    string
		keepers any
		want    string // of cuda:0
	}{
		{"none", nil, ""},
		{"no list", "x", ""},
		{"the last at an address", l(keeper("a", 0, 0x100)), "5:a"},
		{"an older block", l(keeper("a", 0, 0x20)), "2:a"},
		{"one after the recording", l(keeper("a", 0, 0x200)), "8:a"},
		{"no block there", l(keeper("a", 0, 0x300, -1, uint64(1<<63))), ""},
		{"the first of two", l(keeper("a", 0, 0x100), keeper("b", 0, 0x10, 0x100)), "1:b 5:a"},
		{"of another device", l(keeper("a", 1, 0x100), keeper("b", 7, 0x10)), ""},
		{"one twice", l(same, same), "5:a"},
		{"no dict, no blocks, no name", l("x", d("container", "a"), keeper("", 0, 0x100), keeper(int64(3), 0, 0x100), keeper("\x1b\n", 0, 0x100)), ""},
		{"no address", l(keeper("a", 0, "x", nil, 0x100)), "5:a"},
		{"control characters", l(keeper("a\x1b[1m\n\xff\u202eb", 0, 0x100)), "5:a[1mb"},
		{"a long name", l(keeper(strings.Repeat("é", 300), 0, 0x100)), "5:" + strings.Repeat("é", 100) + "..."},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := played(snapshot(c.keepers))
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			var got []string
			for n := range tr.Pools[0].Events + 2 {
				if k, ok := tr.Pools[0].Keeper(n); ok {
					got = append(got, fmt.Sprintf("%d:%s", n, k.Container))
					if k.Line != "t.py:8" {
						t.Errorf("line %q", k.Line)
					}
				}
			}
			if list := strings.Join(got, " "); list != c.want {
				t.Errorf("%q, want %q", list, c.want)
			}
		})
	}
}
