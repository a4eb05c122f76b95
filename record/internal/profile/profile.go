// Package profile reads device memory profiles of JAX
// (jax.profiler.save_device_memory_profile): a gzip-compressed profile of pprof,
// which jaxlib's HeapProfile makes of the live buffers and executables of one
// instant (jaxlib/py_client.cc).
//
// A sample has a stack, labels and two values, a count and bytes:
//
//	allocations 3  space 300  device=cuda:0  kind=buffer      train (step.py:7)
//	allocations 1  space  96                 kind=executable
//
// This is a recording with the pools cuda:0, in which three blocks of 100 bytes are
// allocated, and executable. An executable has no device: it lies outside of the
// devices' pools.
package profile

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/google/pprof/profile"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/wire"
	"gpumem/size"
)

// Format is a device memory profile of JAX.
var Format = tape.Format{Name: "pprof", What: "a device memory profile of JAX", Looks: looksPprof, Read: readPprof}

// looksPprof: a profile begins with a sample type, two numbers of small strings.
func looksPprof(head []byte) bool {
	return len(head) > 4 && head[0] == 1<<3|2 && head[1] <= 8 && head[2] == 1<<3 && head[4] == 2<<3
}

const (
	// maxText is how much is kept of a text, in bytes.
	maxText = 400
	// maxPools and maxBlocks bound what a damaged profile can ask for: a pool has
	// buffers, and a count may be any number. JAX has an object of Python for each block.
	maxPools  = 256
	maxBlocks = 1 << 24
)

// entryBytes is what the parser needs for a sample (2) with two labels, a location (4), a
// function (5) and a text (6), and partBytes for a byte within one of them.
var entryBytes = [...]int64{2: 400, 4: 150, 5: 120, 6: 48}

const partBytes = 4

// A pool is one device, or the executables.
type pool struct {
	name    string
	device  bool
	samples []group
	blocks  int64
	bytes   uint64
	noSize  int64 // blocks whose size is unknown
}

// A group is n blocks with their bytes in all.
type group struct {
	n, bytes uint64
	site     uint32
}

// readPprof reads a whole profile into b.
func readPprof(in *input.Reader, b *tape.Builder) error {
	w, m, err := wire.Read(in, looksPprof)
	if err != nil {
		return err
	}
	held := int64(len(w.Data)) * partBytes
	for m.Next() {
		if int(m.Num) < len(entryBytes) {
			held += entryBytes[m.Num]
		}
	}
	if err := in.Take(held); err != nil {
		return err
	}
	p, err := profile.ParseUncompressed(w.Data)
	if err != nil {
		return w.Fail(0, "damaged: %v", err)
	}
	counts, space := column(p, "allocations", "count"), column(p, "space", "bytes")
	if counts < 0 || space < 0 {
		var have []string
		for _, t := range p.SampleType {
			have = append(have, t.Type+"/"+t.Unit)
		}
		if column(p, "inuse_space", "bytes") >= 0 {
			return w.Refuse("a heap profile of a Go program, not of JAX (jax.profiler.save_device_memory_profile writes those); go tool pprof reads it")
		}
		return w.Refuse("is a pprof profile of %s, and not of allocations/count and space/bytes, which jax.profiler.save_device_memory_profile writes",
			input.Quote(input.And(have)))
	}
	pools := make(map[string]*pool)
	var blocks int64
	for i, s := range p.Sample {
		if len(s.Value) != len(p.SampleType) {
			return w.Fail(0, "damaged: sample %d has %s, and the profile %d", i+1, size.Count(len(s.Value), "value"), len(p.SampleType))
		}
		n, bytes := s.Value[counts], s.Value[space]
		if n < 0 || n > maxBlocks-blocks {
			return w.Fail(0, "damaged: sample %d counts %d blocks; a profile has %d at most", i+1, n, maxBlocks)
		}
		blocks += n
		name, device := owner(s)
		to := pools[name]
		if to == nil {
			if len(pools) == maxPools {
				return w.Fail(0, "damaged: the profile has more than %d devices", maxPools)
			}
			to = &pool{name: name, device: device}
			pools[name] = to
		}
		if bytes < 0 {
			to.noSize += n
			bytes = 0
		}
		to.blocks += n
		to.bytes = size.Add(to.bytes, uint64(bytes))
		to.samples = append(to.samples, group{uint64(n), uint64(bytes), site(s, b)})
	}
	if blocks == 0 {
		return w.Refuse("the profile has no live buffers")
	}
	return play(pools, b)
}

// column returns the index of a value of the samples, -1 if they have no such value.
func column(p *profile.Profile, typ, unit string) int {
	return slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == typ && t.Unit == unit })
}

// executables is the pool of what has no device, by the label that it has.
const executables = "executable"

// owner returns the pool that a sample belongs to: its device, else its kind.
// Until 2022 the device was a bare number, of which the parser leaves out 0.
func owner(s *profile.Sample) (name string, device bool) {
	if l := s.Label["device"]; len(l) > 0 {
		return input.Printable(input.Cut(l[0], maxText)), true
	}
	if l := s.NumLabel["device"]; len(l) > 0 {
		return strconv.FormatInt(l[0], 10), true
	}
	if l := s.Label["kind"]; len(l) > 0 {
		name = input.Printable(input.Cut(l[0], maxText))
	}
	if name == "buffer" {
		return "0", true
	}
	return name, false
}

// site returns the site of a sample's stack.
func site(s *profile.Sample, b *tape.Builder) uint32 {
	var frames []uint32
	for _, loc := range s.Location {
		if loc == nil { // it is not in the profile
			continue
		}
		for _, l := range loc.Line {
			if len(frames) == tape.MaxFrames {
				return b.Stack(frames)
			}
			var f profile.Function
			if l.Function != nil {
				f = *l.Function
			}
			frames = append(frames, b.Frame(f.Name, f.Filename, l.Line))
		}
	}
	return b.Stack(frames)
}

// play allocates the blocks of the pools: devices by name, cuda:2 before cuda:10, then
// the executables.
func play(pools map[string]*pool, b *tape.Builder) error {
	rank := func(p *pool) int {
		if p.device {
			return len(p.name)
		}
		return math.MaxInt
	}
	sorted := slices.SortedFunc(maps.Values(pools), func(x, y *pool) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.name, y.name))
	})
	b.Note("a device memory profile is one instant: every live block is allocated, in no known order, and nothing is freed")
	for _, p := range sorted {
		out := b.Pool(p.name)
		for _, s := range p.samples {
			for i := range s.n {
				n := s.bytes / s.n
				if i == 0 {
					n += s.bytes % s.n
				}
				if _, err := out.Alloc(tape.Event{Bytes: n, Site: s.site}, 0); err != nil {
					return err
				}
			}
		}
		if p.name == executables {
			b.Note("the pool %s is the code of %s (%s), which lies outside of the devices' pools",
				p.name, size.Count(int(p.blocks), "program"), size.Format(p.bytes))
		}
		if n := p.noSize; n > 0 {
			b.Note("%s: %s without a size; counted as 0 bytes", p.name, size.Count(int(n), "block"))
		}
	}
	return nil
}
