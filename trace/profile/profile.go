// Package profile reads device memory profiles of JAX
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
package profile

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
	"gpumem/internal/wire"
	"gpumem/size"
	"gpumem/trace"
)

// Format is a device memory profile of JAX.
var Format = trace.Format{Name: "pprof", What: "a device memory profile of JAX", Looks: looksPprof, Read: readPprof}

// looksPprof: a profile begins with a sample type, two numbers of small strings.
func looksPprof(head []byte) bool {
	return len(head) > 4 && head[0] == 1<<3|2 && head[1] <= 8 && head[2] == 1<<3 && head[4] == 2<<3
}

// maxText is how much is kept of a text, in bytes, and maxPools bounds what a damaged
// profile can ask for: a pool has buffers.
const (
	maxText  = 400
	maxPools = 256
)

// maxProfileBlocks is how many blocks a profile may list. JAX itself has an
// object of Python for each; a damaged count could ask for any number.
const maxProfileBlocks = 1 << 24

// reader reads one profile.
type reader struct {
	*wire.Stream
	b         *trace.Builder
	types     [][2]int64 // type and unit, of each value
	samples   []sample
	locations map[uint64][]line
	functions map[uint64]function
	strings   []string
}

type sample struct {
	at     int64    // where it is in the file
	stack  []uint64 // locations, MaxFrames at most
	values []int64
	labels []label
}

type label struct{ key, str, num int64 }

type line struct {
	function uint64
	line     int64
}

type function struct{ name, file int64 }

// readPprof reads a whole profile into b.
func readPprof(in *input.Reader, b *trace.Builder) error {
	r := &reader{
		Stream:    wire.NewStream(in, looksPprof),
		b:         b,
		locations: make(map[uint64][]line),
		functions: make(map[uint64]function),
	}
	err := r.Fields(func(field protowire.Number) error {
		switch field {
		case 1, 2, 4, 5:
			return r.entry(field)
		case 6:
			s, err := r.Take("a text")
			r.strings = append(r.strings, input.Cut(string(s), maxText))
			r.Hold(32 + min(len(s), maxText))
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.play()
}

// entry reads a sample type, a sample, a location or a function.
func (r *reader) entry(field protowire.Number) error {
	at := r.At()
	data, err := r.Take("an entry")
	if err != nil {
		return err
	}
	m := wire.NewMessage(data)
	switch field {
	case 1:
		t := numbers(&m)
		r.types = append(r.types, [2]int64{t[1], t[2]})
	case 2:
		r.sample(&m, at)
	case 4:
		r.location(&m)
	case 5:
		f := numbers(&m)
		r.functions[uint64(f[1])] = function{name: f[2], file: f[4]}
		r.Hold(80)
	}
	if m.Bad {
		return r.Fail(at, "damaged: field %d does not end where it should", field)
	}
	return nil
}

// numbers reads a message of numbers, fields 1 to 4.
func numbers(m *wire.Message) (n [5]int64) {
	for m.Next() {
		if m.Num < 5 {
			n[m.Num] = int64(m.Value)
		}
	}
	return n
}

// within reads the current field of m as a message of numbers.
func within(m *wire.Message) [5]int64 {
	inner := wire.NewMessage(m.Data)
	n := numbers(&inner)
	m.Bad = m.Bad || inner.Bad
	return n
}

func (r *reader) sample(m *wire.Message, at int64) {
	s := sample{at: at}
	for m.Next() {
		switch m.Num {
		case 1:
			m.Numbers(func(v uint64) {
				if len(s.stack) < trace.MaxFrames {
					s.stack = append(s.stack, v)
				}
			})
		case 2:
			m.Numbers(func(v uint64) { s.values = append(s.values, int64(v)) })
		case 3:
			l := within(m)
			s.labels = append(s.labels, label{key: l[1], str: l[2], num: l[3]})
		}
	}
	r.samples = append(r.samples, s)
	r.Hold(200 + 16*(len(s.stack)+len(s.values)) + 32*len(s.labels))
}

func (r *reader) location(m *wire.Message) {
	var id uint64
	var lines []line
	for m.Next() {
		switch m.Num {
		case 1:
			id = m.Value
		case 4:
			if l := within(m); len(lines) < trace.MaxFrames {
				lines = append(lines, line{function: uint64(l[1]), line: l[2]})
			}
		}
	}
	r.locations[id] = lines
	r.Hold(100 + 32*len(lines))
}

// text is an entry of the string table; "" if there is none.
func (r *reader) text(i int64) string {
	if i < 0 || i >= int64(len(r.strings)) {
		return ""
	}
	return r.strings[i]
}

// A pool is one device, or the executables.
type pool struct {
	name    string
	device  bool
	samples []group
	blocks  int64
	bytes   uint64
	noSize  int64 // blocks whose size is not known
}

// A group is n blocks with their bytes in all.
type group struct {
	n, bytes uint64
	site     uint32
}

// play allocates the blocks of every sample.
func (r *reader) play() error {
	counts, space, err := r.columns()
	if err != nil {
		return err
	}
	pools := make(map[string]*pool)
	var blocks int64
	for i := range r.samples {
		s := &r.samples[i]
		if len(s.values) != len(r.types) {
			return r.Fail(s.at, "damaged: a sample of %s where the profile has %d", size.Count(len(s.values), "value"), len(r.types))
		}
		n, bytes := s.values[counts], s.values[space]
		if n < 0 || n > maxProfileBlocks-blocks {
			return r.Fail(s.at, "damaged: a sample counts %d blocks; a profile has %d at most", n, maxProfileBlocks)
		}
		blocks += n
		name, device := r.owner(s)
		p := pools[name]
		if p == nil {
			if len(pools) == maxPools {
				return r.Fail(s.at, "damaged: the profile has more than %d devices", maxPools)
			}
			p = &pool{name: name, device: device}
			pools[name] = p
		}
		if bytes < 0 {
			p.noSize += n
			bytes = 0
		}
		p.blocks += n
		p.bytes = size.Add(p.bytes, uint64(bytes))
		p.samples = append(p.samples, group{uint64(n), uint64(bytes), r.site(s)})
	}
	if blocks == 0 {
		return r.Refuse("the profile has no live buffers")
	}
	// Devices by name, cuda:2 before cuda:10, then the executables.
	sorted := make([]*pool, 0, len(pools))
	for _, p := range pools {
		sorted = append(sorted, p)
	}
	rank := func(p *pool) int {
		if p.device {
			return len(p.name)
		}
		return math.MaxInt
	}
	slices.SortFunc(sorted, func(x, y *pool) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.name, y.name))
	})
	r.b.Note("a device memory profile is one instant: every live block is allocated, in no known order, and nothing is freed")
	for _, p := range sorted {
		if err := p.play(r.b); err != nil {
			return err
		}
	}
	return nil
}

func (p *pool) play(b *trace.Builder) error {
	out := b.Pool(p.name)
	for _, s := range p.samples {
		for i := range s.n {
			n := s.bytes / s.n
			if i == 0 {
				n += s.bytes % s.n
			}
			if _, err := out.Alloc(trace.Event{Bytes: n, Site: s.site}, 0); err != nil {
				return err
			}
		}
	}
	if p.name == executables {
		b.Note("the pool %s is the code of %s (%d bytes), which lies outside of the devices' pools",
			p.name, size.Count(int(p.blocks), "program"), p.bytes)
	}
	if n := p.noSize; n > 0 {
		b.Note("%s: %s without a size; counted as 0 bytes", p.name, size.Count(int(n), "block"))
	}
	return nil
}

// columns returns which values are the count and the bytes.
func (r *reader) columns() (counts, bytes int, err error) {
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
		return 0, 0, r.Refuse("is a pprof profile of %s, and not of allocations/count and space/bytes, which jax.profiler.save_device_memory_profile writes",
			input.Quote(input.And(have)))
	}
	return counts, bytes, nil
}

// executables is the pool of what has no device, by the label that it has.
const executables = "executable"

// owner returns the pool that a sample belongs to: its device, else its kind.
// Until 2022 the device was a bare number.
func (r *reader) owner(s *sample) (name string, device bool) {
	for _, l := range s.labels {
		switch r.text(l.key) {
		case "device":
			if t := r.text(l.str); t != "" {
				return input.Printable(t), true
			}
			return strconv.FormatInt(l.num, 10), true
		case "kind":
			name = input.Printable(r.text(l.str))
		}
	}
	return name, false
}

// site returns the site of a sample's stack.
func (r *reader) site(s *sample) uint32 {
	var frames []uint32
	for _, loc := range s.stack {
		for _, l := range r.locations[loc] {
			if len(frames) == trace.MaxFrames {
				return r.b.Stack(frames)
			}
			f := r.functions[l.function]
			frames = append(frames, r.b.Frame(r.text(f.name), r.text(f.file), l.line))
		}
	}
	return r.b.Stack(frames)
}
