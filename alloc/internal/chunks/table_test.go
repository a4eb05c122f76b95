// Tests of the table against a map, and of how evenly it spreads its entries.
package chunks

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// tableModel is a table together with what it should hold.
type tableModel struct {
	st   Store
	t    *Table
	at   map[uint64]H
	addr []uint64 // of every entry, to choose from
}

func newTableModel() *tableModel {
	m := &tableModel{at: map[uint64]H{}}
	m.t = NewTable(&m.st, minOrder)
	return m
}

func (m *tableModel) insert(addr uint64) {
	if m.at[addr] != 0 {
		return
	}
	h, c := m.st.New()
	c.Addr = addr
	m.t.Insert(h, addr)
	m.at[addr] = h
	m.addr = append(m.addr, addr)
}

// remove takes the i-th address out, by its address or by its chunk.
func (m *tableModel) remove(t testing.TB, i int, byChunk bool) {
	t.Helper()
	addr := m.addr[i]
	m.addr[i] = m.addr[len(m.addr)-1]
	m.addr = m.addr[:len(m.addr)-1]
	h := m.at[addr]
	delete(m.at, addr)
	if byChunk {
		m.t.RemoveChunk(h, addr)
	} else if got := m.t.Remove(addr); got != h {
		t.Fatalf("Remove(%#x) = %d, want %d", addr, got, h)
	}
	m.st.Drop(h)
	m.missing(t, addr)
}

// missing checks an address that is not in the table.
func (m *tableModel) missing(t testing.TB, addr uint64) {
	t.Helper()
	if got := m.t.Find(addr); got != 0 {
		t.Fatalf("Find(%#x) = %d, but it is not in", addr, got)
	}
	if got := m.t.Remove(addr); got != 0 {
		t.Fatalf("Remove(%#x) = %d, but it is not in", addr, got)
	}
}

func (m *tableModel) check(t testing.TB) {
	t.Helper()
	if err := m.t.wellFormed(); err != nil {
		t.Fatal(err)
	}
	if m.t.Len() != len(m.at) {
		t.Fatalf("Len() = %d, want %d", m.t.Len(), len(m.at))
	}
	for addr, h := range m.at {
		if got := m.t.Find(addr); got != h {
			t.Fatalf("Find(%#x) = %d, want %d", addr, got, h)
		}
		// The neighbours of an entry and its doubles 2^40 bytes away.
		for _, other := range []uint64{addr + unit, addr - unit, addr + 1<<40, addr - 1<<40} {
			if got := m.t.Find(other); got != m.at[other] {
				t.Fatalf("Find(%#x) = %d, want %d", other, got, m.at[other])
			}
		}
	}
}

// wellFormed checks what the table relies on: at most half of the slots are
// taken, no empty slot lies between an entry and its home, and what was drained
// is empty.
func (t *Table) wellFormed() error {
	n := 0
	for _, part := range []struct {
		slots []entry
		shift uint8
	}{{t.slots, t.shift}, {t.old, t.oldShift}} {
		mask := uint32(len(part.slots) - 1)
		if part.slots != nil && len(part.slots) != 1<<(64-part.shift) {
			return fmt.Errorf("%d slots with shift %d", len(part.slots), part.shift)
		}
		for i, e := range part.slots {
			if e.h == 0 {
				continue
			}
			n++
			for j := home(e.key, part.shift) & mask; j != uint32(i); j = (j + 1) & mask {
				if part.slots[j].h == 0 {
					return fmt.Errorf("slot %d is empty, between chunk %d in slot %d and its home", j, e.h, i)
				}
			}
		}
	}
	for i := range t.old[:min(t.drained, len(t.old))] {
		if t.old[i].h != 0 {
			return fmt.Errorf("slot %d of the old table is not empty after %d were drained", i, t.drained)
		}
	}
	if n != t.count || 2*n > len(t.slots) {
		return fmt.Errorf("count is %d; %d entries in %d slots", t.count, n, len(t.slots))
	}
	return nil
}

// longestProbe is how many slots the longest successful search reads.
func (t *Table) longestProbe() (longest uint32) {
	mask := uint32(len(t.slots) - 1)
	for i, e := range t.slots {
		if e.h != 0 {
			longest = max(longest, (uint32(i)-home(e.key, t.shift))&mask+1)
		}
	}
	return longest
}

// TestTableGrowth inserts across several growths and looks at everything after
// each insertion, so also in every state of draining.
func TestTableGrowth(t *testing.T) {
	m := newTableModel()
	draining := 0
	for i := range uint64(8 * tableMin) {
		m.insert(0x7f0000000000 + i*4096)
		m.check(t)
		if m.t.old != nil {
			draining++
		}
	}
	if draining == 0 {
		t.Error("the table was never draining")
	}
	if want := 8 * (len(m.t.slots) + len(m.t.old)); m.t.Cap() != want || len(m.t.slots) != 16*tableMin {
		t.Errorf("Cap() = %d with %d slots, want %d with %d", m.t.Cap(), len(m.t.slots), want, 16*tableMin)
	}
}

// TestTableDrainEnds: an old table is gone before the next growth, which does
// not look for one. See drainStep.
func TestTableDrainEnds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m := newTableModel()
	began, length := 0, 0
	for i := range 1 << 16 {
		draining := m.t.old != nil
		m.insert(r.Uint64() &^ (unit - 1))
		switch {
		case m.t.old == nil:
		case len(m.t.slots) > length:
			if draining {
				t.Fatalf("insertion %d: a second growth while the first was draining", i)
			}
			began, length = i, len(m.t.slots)
		case i-began > length/2*3/8:
			t.Fatalf("%d insertions after growing to %d slots the old table is still there", i-began, length)
		}
	}
	m.check(t)
}

// TestTableRemoveWhileDraining stops right after a growth and removes entries
// from both tables, in three orders and both ways.
func TestTableRemoveWhileDraining(t *testing.T) {
	for _, byChunk := range []bool{false, true} {
		for _, order := range []string{"oldest", "newest", "random"} {
			for _, more := range []int{1, 5, 20, 40} {
				t.Run(fmt.Sprintf("byChunk=%v/%s/%d", byChunk, order, more), func(t *testing.T) {
					r := rand.New(rand.NewPCG(2, uint64(more)))
					m := newTableModel()
					for i := range 4*tableMin + more {
						m.insert(uint64(i) * 512)
					}
					if m.t.old == nil {
						t.Fatal("the table is not draining")
					}
					for n := len(m.addr); n > 0; n-- {
						i := map[string]int{"oldest": 0, "newest": n - 1, "random": r.IntN(n)}[order]
						m.remove(t, i, byChunk)
						m.check(t)
					}
					m.insert(512) // an empty old table drains, too
					m.check(t)
				})
			}
		}
	}
}

// TestTableWrap: a cluster that runs over the end of the slots, emptied from
// each of its entries on.
func TestTableWrap(t *testing.T) {
	// Keys whose home is one of the last two slots.
	var keys []uint64
	for key := uint64(0); len(keys) < 8; key++ {
		if i := home(uint32(key), 64-6) & (tableMin - 1); i >= tableMin-2 {
			keys = append(keys, key)
		}
	}
	for first := range keys {
		m := newTableModel()
		for _, key := range keys {
			m.insert(key * unit)
		}
		m.insert(3 * unit) // and one that is not concerned
		if m.t.slots[0].h == 0 || m.t.slots[tableMin-1].h == 0 {
			t.Fatal("the cluster does not wrap")
		}
		m.remove(t, first, false)
		m.check(t)
		// Growing drains a wrapped cluster.
		for i := range uint64(tableMin) {
			m.insert(1<<30 + i*unit)
			m.check(t)
		}
	}
}

// TestTableSharedKey: addresses 2^40 bytes apart share a key and thus a home.
func TestTableSharedKey(t *testing.T) {
	m := newTableModel()
	for i := range uint64(40) {
		m.insert(4096 + i<<40)
		m.check(t)
	}
	m.missing(t, 4096+40<<40)
	for i := 0; len(m.addr) > 0; i++ {
		m.remove(t, (i*7)%len(m.addr), i%2 == 0)
		m.check(t)
	}
}

// TestTableWorkload is a long run of random operations.
func TestTableWorkload(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	m := newTableModel()
	for step := range 50_000 {
		// Waves, so that the table fills and empties more than once.
		if n := len(m.addr); n > 0 && r.IntN(100) < 25+50*(step/10_000%2) {
			m.remove(t, r.IntN(n), r.IntN(2) == 0)
		} else {
			m.insert(r.Uint64N(1<<20)*unit + r.Uint64N(3)<<40)
		}
		if step%2000 == 0 {
			m.check(t)
		}
	}
	m.check(t)
}

// TestTableProbes: no layout makes long searches. At half load, the worst, the
// longest of a random table's is some 20 to 60 slots. With one multiplication
// as its hash, 1000 addresses 6765 units apart were one cluster.
func TestTableProbes(t *testing.T) {
	const limit = 100
	steps := []uint64{1, 2, 3, 16, 89, 269, 521, 901, 987, 1449, 2898, 3864, 4096, 6765, 8192, 11648, 17711, 1 << 17, 1 << 23}
	for _, n := range []uint64{500, 8191, 32000} {
		for _, step := range steps {
			if n*step > 1<<32 {
				continue // past 1 TiB keys repeat
			}
			m := newTableModel()
			for i := range n {
				m.insert(0x7f0000000000 + i*step*unit)
			}
			if got := m.t.longestProbe(); m.t.old == nil && got > limit {
				t.Errorf("%d addresses %d units apart: a search reads %d slots, want at most %d", n, step, got, limit)
			}
		}
		r := rand.New(rand.NewPCG(4, n))
		m := newTableModel()
		for range n {
			m.insert(r.Uint64() &^ (unit - 1))
		}
		if got := m.t.longestProbe(); got > limit {
			t.Errorf("%d random addresses: a search reads %d slots, want at most %d", n, got, limit)
		}
	}
}

func TestTableAllocatesNothing(t *testing.T) {
	m := newTableModel()
	for i := range uint64(4*tableMin + 5) {
		m.insert(i * 512)
	}
	for _, state := range []string{"draining", "quiet"} {
		if (m.t.old != nil) != (state == "draining") {
			t.Fatalf("the table is not %s", state)
		}
		h := m.at[512]
		if n := testing.AllocsPerRun(1000, func() {
			benchSink = m.t.Find(1024)
			benchSink = m.t.Find(1025 * 512)
			m.t.Remove(512)
			m.t.Insert(h, 512)
			m.t.RemoveChunk(h, 512)
			m.t.Insert(h, 512)
		}); n != 0 {
			t.Errorf("%s: find, remove and insert made %v allocations", state, n)
		}
	}
}

// FuzzTable decodes bytes to operations: each three are an operation and an
// address, out of few, so that they meet.
func FuzzTable(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0, 1, 3, 5, 0, 0, 7, 1, 3})
	r := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{10, 100, 500, 3000} {
		var b []byte
		for range n {
			b = binary.LittleEndian.AppendUint32(b, r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := newTableModel()
		for steps := 1; len(b) >= 3; steps++ {
			op, x, y := b[0], uint64(b[1]), uint64(b[2])
			b = b[3:]
			addr := (x<<4|y&15)*unit + y>>6<<40 // 4096 starts in four ranges with the same keys
			switch n := len(m.addr); {
			case op%8 < 5 || n == 0:
				m.insert(addr)
			default:
				m.remove(t, int(x<<8|y)%n, op%8 == 5)
			}
			if got := m.t.Find(addr); got != m.at[addr] {
				t.Fatalf("Find(%#x) = %d, want %d", addr, got, m.at[addr])
			}
			if steps%64 == 0 {
				m.check(t)
			}
		}
		m.check(t)
	})
}
