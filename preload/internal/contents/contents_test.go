package contents_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"gpumem/preload/internal/contents"
)

// model is contents as they would be with a map of bytes, and without limit.
type model struct {
	bytes   map[uint64]byte
	written map[uint64]uint64 // by the program, after so many launches
}

func (m *model) set(addr uint64, b byte) {
	delete(m.bytes, addr)
	delete(m.written, addr)
	if b != 0 {
		m.bytes[addr] = b
	}
}

func (m *model) write(launches, addr uint64, b byte) {
	m.set(addr, b)
	m.written[addr] = launches
}

func (m *model) read(addr, n uint64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = m.bytes[addr+uint64(i)]
	}
	return p
}

func (m *model) readNumber(launches, addr, n uint64) []byte {
	p := m.read(addr, n)
	for i := range p {
		if of, is := m.written[addr+uint64(i)]; !is || of != launches {
			p[i] = 0
		}
	}
	return p
}

func (m *model) copy(launches, to, from, n uint64) {
	if to == from {
		return
	}
	for i := range n {
		of, is := m.written[from+i]
		if m.set(to+i, m.bytes[from+i]); is && of == launches {
			m.written[to+i] = of
		}
	}
}

// pair does the same with contents and their model.
type pair struct {
	*contents.Memory
	model    model
	rand     *rand.Rand
	launches uint64
}

// submitted is how many launches there were when something was submitted that is done now: mostly all.
func (p *pair) submitted() uint64 {
	if p.rand.IntN(4) > 0 {
		return p.launches
	}
	return p.launches - min(p.launches, p.rand.Uint64N(3))
}

// bases are where the test works: pages side by side, and others that are far away.
var bases = []uint64{3 * contents.Page, 1<<51 + 1<<40, 1 << 63}

// place is an address at or near the edges of words and pages, and n bytes from it, few or many.
func (p *pair) place() (addr, n uint64) {
	near := []uint64{0, 8, 64, 4096, contents.Page / 2, contents.Page, 2 * contents.Page}
	addr = bases[p.rand.IntN(len(bases))] + near[p.rand.IntN(len(near))]
	if p.rand.IntN(4) > 0 {
		addr = addr - 16 + p.rand.Uint64N(32)
	}
	switch odds := p.rand.IntN(1000); {
	case odds < 5:
		return addr &^ (contents.Page - 1), contents.Page
	case odds < 8:
		return addr, p.rand.Uint64N(3 * contents.Page)
	case odds < 150:
		return addr, p.rand.Uint64N(300)
	}
	return addr, 1 + p.rand.Uint64N(8)
}

func (p *pair) write() {
	addr, n := p.place()
	launches := p.submitted()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(p.rand.Uint32())
		p.model.write(launches, addr+uint64(i), data[i])
	}
	p.Write(launches, addr, data)
}

func (p *pair) fill() {
	addr, n := p.place()
	launches := p.submitted()
	width := uint64(1) << p.rand.IntN(3)
	addr &^= width - 1
	n &^= width - 1
	pattern := binary.LittleEndian.AppendUint32(nil, p.rand.Uint32()>>(8*p.rand.IntN(5)))[:width]
	for i := range n {
		p.model.write(launches, addr+i, pattern[i%width])
	}
	p.Fill(launches, addr, n, pattern)
}

func (p *pair) copy() {
	from, n := p.place()
	to, _ := p.place()
	if to != from && to < from+n && from < to+n {
		return // no driver allows it
	}
	launches := p.submitted()
	p.model.copy(launches, to, from, n)
	p.Copy(launches, to, from, n)
}

func (p *pair) drop() {
	addr, n := p.place()
	for i := range n {
		p.model.set(addr+i, 0)
	}
	p.Drop(addr, n)
}

func (p *pair) launch() { p.launches++ }

// check returns what is wrong about one read of each kind. A number that is read as of before a launch may be 0
// in any byte.
func (p *pair) check() error {
	addr, n := p.place()
	got := bytes.Repeat([]byte{9}, int(n))
	if p.Read(addr, got); !bytes.Equal(got, p.model.read(addr, n)) {
		return fmt.Errorf("Read(%#x, %d bytes) is not what the model has", addr, n)
	}
	n = 1 + n%8
	got = bytes.Repeat([]byte{9}, int(n))
	launches := p.submitted()
	want := p.model.readNumber(launches, addr, n)
	p.ReadNumber(launches, addr, got)
	for i := range got {
		if got[i] != want[i] && (launches == p.launches || got[i] != 0) {
			return fmt.Errorf("ReadNumber(%d of %d, %#x) = %x, want %x", launches, p.launches, addr, got, want)
		}
	}
	return nil
}

// TestDifferential compares contents with the model after each of many operations.
func TestDifferential(t *testing.T) {
	for seed := range uint64(2) {
		p := &pair{contents.New(1 << 30), model{map[uint64]byte{}, map[uint64]uint64{}}, rand.New(rand.NewPCG(seed, 1)), 0}
		steps := []struct {
			name string
			do   func()
		}{{"write", p.write}, {"write", p.write}, {"write", p.write}, {"fill", p.fill}, {"copy", p.copy}, {"copy", p.copy}, {"drop", p.drop}, {"launch", p.launch}}
		for i := range 2000 {
			step := steps[p.rand.IntN(len(steps))]
			step.do()
			for range 3 {
				if err := p.check(); err != nil {
					t.Fatalf("seed %d, operation %d, after %s: %v", seed, i, step.name, err)
				}
			}
		}
	}
}

// number reads a number of 4 bytes.
func number(m *contents.Memory, launches, addr uint64) uint32 {
	var p [4]byte
	m.ReadNumber(launches, addr, p[:])
	return binary.LittleEndian.Uint32(p[:])
}

func write(m *contents.Memory, launches, addr uint64, n uint32) {
	m.Write(launches, addr, binary.LittleEndian.AppendUint32(nil, n))
}

// TestNumbersAreReadBackHoweverManyThereAre: each in a block of its own, as PyTorch's allocator has them.
func TestNumbersAreReadBackHoweverManyThereAre(t *testing.T) {
	m := contents.New(256 << 20)
	const block, most = 512, 100000
	for i := range uint64(most) {
		write(m, 1, i*block, uint32(i+1))
	}
	for i := range uint64(most) {
		if got := number(m, 1, i*block); got != uint32(i+1) {
			t.Fatalf("number %d is %d", i+1, got)
		}
	}
	for i := range uint64(most) {
		if got := number(m, 2, i*block); got != 0 {
			t.Fatalf("number %d is %d after a kernel", i+1, got)
		}
	}
}

// TestNumbersOfCopies: a copy is the program's as far as the source is, wherever the pages of both end.
func TestNumbersOfCopies(t *testing.T) {
	const page = contents.Page
	whole := bytes.Repeat([]byte{1}, page)
	for _, tc := range []struct {
		name string
		do   func(m *contents.Memory) // up to a kernel, and what was submitted after it
		at   uint64
		want uint32
	}{
		{"across two pages, written", func(m *contents.Memory) {
			write(m, 1, 200, 7)
			m.Copy(1, 3*page-100, 100, 200)
		}, 3 * page, 7},
		{"across two pages, not written", func(m *contents.Memory) {
			m.Write(0, 0, whole)
			write(m, 1, 100, 7)
			m.Copy(1, 3*page-100, 100, 200)
		}, 3 * page, 0},
		{"a page before a kernel, over a part", func(m *contents.Memory) {
			m.Write(0, 0, whole)
			write(m, 1, 3*page+8, 7)
			m.Copy(1, 3*page, 0, 16)
		}, 3*page + 8, 0},
		{"a page before a kernel, beside a part", func(m *contents.Memory) {
			m.Write(0, 0, whole)
			write(m, 1, 3*page+32, 7)
			m.Copy(1, 3*page, 0, 16)
		}, 3*page + 32, 7},
	} {
		m := contents.New(1 << 20)
		if tc.do(m); number(m, 1, tc.at) != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, number(m, 1, tc.at), tc.want)
		}
	}
}

// TestNumbersAreOfWhenTheyWereSubmitted: one kernel is launched in each case, before or after what is done.
func TestNumbersAreOfWhenTheyWereSubmitted(t *testing.T) {
	const page, before, after = contents.Page, 4, 5
	whole := bytes.Repeat([]byte{1}, page)
	for _, tc := range []struct {
		name string
		do   func(m *contents.Memory)
		of   uint64 // the read
		want uint32
	}{
		{"write and read before", func(m *contents.Memory) { write(m, before, 8, 7) }, before, 7},
		{"write before, read after", func(m *contents.Memory) { write(m, before, 8, 7) }, after, 0},
		{"read before, write after", func(m *contents.Memory) { write(m, after, 8, 7) }, before, 0},
		{"write done late, over one from after", func(m *contents.Memory) {
			write(m, after, 8, 6)
			write(m, before, 8, 7)
		}, after, 0},
		{"write done late, beside one from after", func(m *contents.Memory) {
			write(m, before, 16, 6)
			write(m, after, 8, 7)
			write(m, before, 12, 6)
		}, after, 7},
		{"page written late, over one from after", func(m *contents.Memory) {
			write(m, after, 8, 6)
			m.Write(before, 0, whole)
		}, after, 0},
		{"page written late, and read as of then", func(m *contents.Memory) {
			write(m, after, 8, 6)
			m.Write(before, 0, whole)
		}, before, 0x01010101},
		{"part written late, over a page from after", func(m *contents.Memory) {
			m.Write(after, 0, whole)
			write(m, before, 8, 7)
		}, after, 0},
		{"part written late, beside a part of a page from after", func(m *contents.Memory) {
			m.Write(after, 0, whole)
			write(m, before, 12, 7)
		}, after, 0x01010101},
	} {
		m := contents.New(1 << 20)
		if tc.do(m); number(m, tc.of, 8) != tc.want {
			t.Errorf("%s: %#x, want %#x", tc.name, number(m, tc.of, 8), tc.want)
		}
	}
}

// TestLargeDataLeavesRoomToNumbers: weights beyond the room are not kept, and what is written after them is.
func TestLargeDataLeavesRoomToNumbers(t *testing.T) {
	const room = 64 * contents.Page
	weights := bytes.Repeat([]byte{1}, 2*room)
	for _, tc := range []struct {
		name string
		take func(m *contents.Memory)
	}{
		{"written", func(m *contents.Memory) { m.Write(0, 0, weights) }},
		{"in parts", func(m *contents.Memory) {
			for i := range uint64(room / contents.Page) {
				m.Write(0, 2*contents.Page*i, weights[:2*contents.Page])
			}
		}},
		{"filled", func(m *contents.Memory) { m.Fill(0, 0, 2*room, []byte{1}) }},
		{"copied", func(m *contents.Memory) {
			m.Write(0, 0, weights[:room])
			m.Copy(0, 2*room, 0, room)
		}},
	} {
		m := contents.New(room)
		tc.take(m)
		for i := range uint64(100) {
			write(m, 0, 1<<40+i*512, uint32(i+1))
		}
		for i := range uint64(100) {
			if got := number(m, 0, 1<<40+i*512); got != uint32(i+1) {
				t.Fatalf("%s: number %d is %d", tc.name, i+1, got)
			}
		}
		got := make([]byte, len(weights))
		m.Read(0, got)
		if kept := bytes.Count(got, []byte{1}); kept != room-room/8 {
			t.Errorf("%s: %d bytes are kept, want %d", tc.name, kept, room-room/8)
		}
	}
}

// TestRoomIsTheMost: small writes take all of the room and no more, and what is dropped is room again.
func TestRoomIsTheMost(t *testing.T) {
	const pages = 8
	m := contents.New(pages*contents.Page + contents.Page - 1)
	kept := func() (n int) {
		for i := range uint64(2 * pages) {
			if number(m, 0, i*contents.Page) == 7 {
				n++
			}
		}
		return n
	}
	fill := func() {
		for i := range uint64(2 * pages) {
			write(m, 0, i*contents.Page, 7)
		}
	}
	if fill(); kept() != pages {
		t.Errorf("%d pages are kept, want %d", kept(), pages)
	}
	m.Drop(0, 3*contents.Page)
	if kept() != pages-3 {
		t.Errorf("%d pages are kept after three were dropped", kept())
	}
	const elsewhere = 1 << 40
	for i := range uint64(pages) {
		write(m, 0, elsewhere+i*contents.Page, uint32(i+1))
	}
	if number(m, 0, elsewhere+2*contents.Page) != 3 || number(m, 0, elsewhere+3*contents.Page) != 0 {
		t.Error("what was dropped is not the room that is left")
	}
}
