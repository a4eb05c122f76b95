package chunks

import (
	"errors"
	"strings"
	"testing"

	"gpumem/alloc"
)

// set makes a set with blocks at the given addresses, of 4,096 bytes each.
func set(t *testing.T, addrs ...uint64) (*Blocks, []alloc.Block) {
	t.Helper()
	b := new(Blocks)
	b.Init(1 << 20)
	var blocks []alloc.Block
	for _, addr := range addrs {
		_, block := b.Add(alloc.Request{Bytes: 4000}, addr, 4096)
		blocks = append(blocks, block)
	}
	return b, blocks
}

// TestBlocksNamesWhatIsNotLive: a block that was freed is told from one that is not of this
// set, by its value and by its address.
func TestBlocksNamesWhatIsNotLive(t *testing.T) {
	b, blocks := set(t, 0x1000, 0x2000)
	h, c, err := b.Find("free", blocks[0])
	if err != nil || c.Addr != 0x1000 {
		t.Fatalf("%v, %v", c, err)
	}
	b.Drop(h, c)
	_, others := set(t, 0x1000, 0x2000, 0x3000)
	for name, tc := range map[string]struct {
		err  error
		want error
		text string
	}{
		"freed":           {b.Live(blocks[0]), alloc.ErrDoubleFree, "use of"},
		"live":            {b.Live(blocks[1]), nil, ""},
		"zero":            {b.Live(alloc.Block{}), nil, ""},
		"of another":      {b.Live(others[2]), alloc.ErrNotAllocated, "it is not of this pool"},
		"outside of it":   {b.Store.NotLive("free", blocks[1], false), alloc.ErrNotAllocated, "it is not of this pool"},
		"address freed":   {second(b.FindAddr(0x1000)), alloc.ErrNotAllocated, "no live block starts there"},
		"address live":    {second(b.FindAddr(0x2000)), nil, ""},
		"address inside":  {second(b.FindAddr(0x2100)), alloc.ErrNotAllocated, "no live block starts there"},
		"address of zero": {second(b.FindAddr(0)), nil, ""},
	} {
		if !errors.Is(tc.err, tc.want) || tc.err != nil && !strings.Contains(tc.err.Error(), tc.text) {
			t.Errorf("%s: %v, want %v with %q", name, tc.err, tc.want, tc.text)
		}
	}
	b.Closed = true
	if err := b.Live(blocks[1]); !errors.Is(err, alloc.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func second(_ H, _ *Chunk, err error) error { return err }

// TestBlocksCheckFinds breaks a set in each way that Check looks for.
func TestBlocksCheckFinds(t *testing.T) {
	for want, harm := range map[string]func(b *Blocks){
		"":                       func(*Blocks) {},
		"begins inside":          func(b *Blocks) { b.Store.At(1).Size += 4096; b.Count.BytesInUse += 4096 },
		"statistics say":         func(b *Blocks) { b.Count.BytesInUse++ },
		"the store has 3 blocks": func(b *Blocks) { b.Store.New() },
		"is not in the table":    func(b *Blocks) { b.byAddr().Remove(0x1000) },
		"the table has 2": func(b *Blocks) {
			b.byAddr()
			b.Store.At(2).State = Stuck
			b.Count.BytesInUse -= 4096
			b.Store.free = 0
			b.Store.used = 1
		},
	} {
		b, _ := set(t, 0x1000, 0x2000)
		b.byAddr()
		harm(b)
		err := b.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestBlocksHeldKeepsThePeak: what was granted at most is kept when the device has some back.
func TestBlocksHeldKeepsThePeak(t *testing.T) {
	b, _ := set(t)
	b.Held(5000)
	b.Count.PoolBytes -= 3000
	b.Held(1000)
	if b.Count.PoolBytes != 3000 || b.Count.PeakPoolBytes != 5000 {
		t.Errorf("%d bytes, at most %d; want 3000 and 5000", b.Count.PoolBytes, b.Count.PeakPoolBytes)
	}
}
