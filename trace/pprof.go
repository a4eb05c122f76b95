package trace

// This file is for device memory profiles of JAX
// (jax.profiler.save_device_memory_profile): a gzip-compressed profile of pprof,
// which jaxlib's HeapProfile makes of the live buffers and executables of one
// instant (jaxlib/py_client.cc). Fields (pprof's proto/profile.proto):
//
//	Profile    sample_type 1, sample 2, location 4, function 5, string_table 6
//	ValueType  type 1, unit 2
//	Sample     location_id 1 (innermost first), value 2, label 3
//	Label      key 1, str 2, num 3
//	Location   id 1, line 4 (innermost first)
//	Line       function_id 1, line 2
//	Function   id 1, name 2, filename 4
//
// The values of a sample are a count and bytes: so many blocks of one size, one
// stack and one device. An executable has no device and lies outside of the
// devices' pools, so the executables are a pool of their own. Strings come last
// in the file, so all samples are in memory until then; they are as many as the
// sites.

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
)

// maxProfileBlocks is how many blocks a profile may list. JAX itself has an
// object of Python for each; a damaged count could ask for any number.
const maxProfileBlocks = 1 << 24

// pprofReader reads one profile.
type pprofReader struct {
	*wire
	b         *builder
	types     [][2]int64 // type and unit, of each value
	samples   []pprofSample
	locations map[uint64][]pprofLine
	functions map[uint64]pprofFunction
	strings   []string
	held      int // bytes of memory, as far as they are not counted yet
}

type pprofSample struct {
	at     int64    // where it is in the file
	stack  []uint64 // locations, maxFrames at most
	values []int64
	labels []pprofLabel
}

type pprofLabel struct{ key, str, num int64 }

type pprofLine struct {
	function uint64
	line     int64
}

type pprofFunction struct{ name, file int64 }

// readPprof reads a whole profile into b.
func readPprof(ctx context.Context, in *bufio.Reader, b *builder) error {
	r := &pprofReader{
		wire:      newWire(in, b.trace.Source, looksPprof),
		b:         b,
		locations: make(map[uint64][]pprofLine),
		functions: make(map[uint64]pprofFunction),
	}
	for {
		ok, err := r.next(toEOF)
		if err != nil {
			return err
		}
		if !ok {
			return r.play(ctx)
		}
		if r.held >= 64<<10 {
			if err := b.hold(r.held); err != nil {
				return err
			}
			r.held = 0
		}
		switch r.num {
		case 1, 2, 4, 5:
			err = r.entry()
		case 6:
			var s []byte
			s, err = r.take("a text")
			r.strings = append(r.strings, cutName(string(s), maxFileBytes))
			r.held += 32 + min(len(s), maxFileBytes)
		default:
			err = r.skip()
		}
		if err != nil {
			return err
		}
	}
}

// entry reads a sample type, a sample, a location or a function.
func (r *pprofReader) entry() error {
	at, kind := r.at, r.num
	data, err := r.take("an entry")
	if err != nil {
		return err
	}
	m := message{b: data}
	switch kind {
	case 1:
		var t [2]int64
		for m.next() {
			if m.num == 1 || m.num == 2 {
				t[m.num-1] = int64(m.v)
			}
		}
		r.types = append(r.types, t)
	case 2:
		r.sample(&m, at)
	case 4:
		r.location(&m)
	case 5:
		var id uint64
		var f pprofFunction
		for m.next() {
			switch m.num {
			case 1:
				id = m.v
			case 2:
				f.name = int64(m.v)
			case 4:
				f.file = int64(m.v)
			}
		}
		r.functions[id] = f
		r.held += 80
	}
	if m.bad {
		return r.fail(at, "damaged: field %d does not end where it should", kind)
	}
	return nil
}

func (r *pprofReader) sample(m *message, at int64) {
	s := pprofSample{at: at}
	for m.next() {
		switch m.num {
		case 1:
			m.numbers(func(v uint64) {
				if len(s.stack) < maxFrames {
					s.stack = append(s.stack, v)
				}
			})
		case 2:
			m.numbers(func(v uint64) { s.values = append(s.values, int64(v)) })
		case 3:
			var l pprofLabel
			lm := message{b: m.data}
			for lm.next() {
				switch lm.num {
				case 1:
					l.key = int64(lm.v)
				case 2:
					l.str = int64(lm.v)
				case 3:
					l.num = int64(lm.v)
				}
			}
			m.bad = m.bad || lm.bad
			s.labels = append(s.labels, l)
		}
	}
	r.samples = append(r.samples, s)
	r.held += 200 + 16*(len(s.stack)+len(s.values)) + 32*len(s.labels)
}

func (r *pprofReader) location(m *message) {
	var id uint64
	var lines []pprofLine
	for m.next() {
		switch m.num {
		case 1:
			id = m.v
		case 4:
			var l pprofLine
			lm := message{b: m.data}
			for lm.next() {
				switch lm.num {
				case 1:
					l.function = lm.v
				case 2:
					l.line = int64(lm.v)
				}
			}
			m.bad = m.bad || lm.bad
			if len(lines) < maxFrames {
				lines = append(lines, l)
			}
		}
	}
	r.locations[id] = lines
	r.held += 100 + 32*len(lines)
}

// text is an entry of the string table; "" if there is none.
func (r *pprofReader) text(i int64) string {
	if i < 0 || i >= int64(len(r.strings)) {
		return ""
	}
	return r.strings[i]
}

// pprofPool is one device, or the executables.
type pprofPool struct {
	name    string
	device  bool
	samples []pprofBlocks
	blocks  int64
	bytes   sum
	noSize  int64 // blocks whose size is not known
}

// pprofBlocks is n blocks with so many bytes in all.
type pprofBlocks struct {
	n, bytes uint64
	site     uint32
}

// play allocates the blocks of every sample.
func (r *pprofReader) play(ctx context.Context) error {
	counts, bytes, err := r.columns()
	if err != nil {
		return err
	}
	pools := make(map[string]*pprofPool)
	var blocks int64
	for i := range r.samples {
		s := &r.samples[i]
		if len(s.values) != len(r.types) {
			return r.fail(s.at, "damaged: a sample of %s where the profile has %d", count(len(s.values), "value"), len(r.types))
		}
		n, size := s.values[counts], s.values[bytes]
		if n < 0 || n > maxProfileBlocks-blocks {
			return r.fail(s.at, "damaged: a sample counts %d blocks; a profile has %d at most", n, maxProfileBlocks)
		}
		blocks += n
		name, device := r.owner(s)
		p := pools[name]
		if p == nil {
			if len(pools) == maxDevices {
				return r.fail(s.at, "damaged: the profile has more than %d devices", maxDevices)
			}
			p = &pprofPool{name: name, device: device}
			pools[name] = p
		}
		if size < 0 {
			p.noSize += n
			size = 0
		}
		p.blocks += n
		p.bytes.add(uint64(size))
		p.samples = append(p.samples, pprofBlocks{uint64(n), uint64(size), r.site(s)})
	}
	if blocks == 0 {
		return r.whole("the profile has no live buffers")
	}
	// Devices by name, cuda:2 before cuda:10, then the executables.
	sorted := make([]*pprofPool, 0, len(pools))
	for _, p := range pools {
		sorted = append(sorted, p)
	}
	rank := func(p *pprofPool) int {
		if p.device {
			return len(p.name)
		}
		return maxTake
	}
	slices.SortFunc(sorted, func(x, y *pprofPool) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.name, y.name))
	})
	r.b.note("a device memory profile is one instant: every live block is allocated, in no known order, and nothing is freed")
	for _, p := range sorted {
		if err := p.play(ctx, r.b); err != nil {
			return err
		}
	}
	return nil
}

func (p *pprofPool) play(ctx context.Context, b *builder) error {
	out := b.pool(p.name)
	for _, s := range p.samples {
		if ctx.Err() != nil {
			return stopped(ctx, b.trace.Source)
		}
		for i := range s.n {
			n := s.bytes / s.n
			if i == 0 {
				n += s.bytes % s.n
			}
			if _, err := out.alloc(n, s.site, 0, false); err != nil {
				return err
			}
		}
	}
	if p.name == executables {
		b.note(fmt.Sprintf("the pool %s is the code of %s (%d bytes), which lies outside of the devices' pools",
			p.name, count(int(p.blocks), "program"), p.bytes.cap()))
	}
	if n := p.noSize; n > 0 {
		b.note(fmt.Sprintf("%s: %s without a size; counted as 0 bytes", p.name, count(int(n), "block")))
	}
	return nil
}

// columns returns which values are the count and the bytes.
func (r *pprofReader) columns() (counts, bytes int, err error) {
	counts, bytes = -1, -1
	var have []string
	for i, t := range r.types {
		name := r.text(t[0]) + "/" + r.text(t[1])
		have = append(have, name)
		switch name {
		case "allocations/count":
			counts = i
		case "space/bytes":
			bytes = i
		}
	}
	if counts < 0 || bytes < 0 {
		return 0, 0, r.whole(fmt.Sprintf("is a pprof profile of %s, and not of allocations/count and space/bytes, which jax.profiler.save_device_memory_profile writes",
			quote(and(have))))
	}
	return counts, bytes, nil
}

// executables is the pool of what has no device, by the label that it has.
const executables = "executable"

// owner returns the pool that a sample belongs to: its device, else its kind.
// Until 2022 the device was a bare number.
func (r *pprofReader) owner(s *pprofSample) (name string, device bool) {
	for _, l := range s.labels {
		switch r.text(l.key) {
		case "device":
			if t := r.text(l.str); t != "" {
				return printable(t), true
			}
			return strconv.FormatInt(l.num, 10), true
		case "kind":
			name = printable(r.text(l.str))
		}
	}
	return name, false
}

// site returns the site of a sample's stack.
func (r *pprofReader) site(s *pprofSample) uint32 {
	var frames []uint32
	for _, loc := range s.stack {
		for _, l := range r.locations[loc] {
			if len(frames) == maxFrames {
				return r.b.sites.intern(frames)
			}
			f := r.functions[l.function]
			frames = append(frames, r.b.sites.frame(r.b.sites.frameText(r.text(f.name), r.text(f.file), l.line)))
		}
	}
	return r.b.sites.intern(frames)
}
