package xplane

// The reader of one event and its stats.

import (
	"strconv"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/wire"
)

// stat is one of the stats that are read; 0 is any other. The names are those of
// tsl/profiler/utils/xplane_schema.cc.
type stat uint8

const (
	statAllocator stat = 1 + iota
	statOrdinal
	statIndex
	statHeld
	statRequested
	statAllocated
	statAddress
	statOp
	statRegion
	statType
	statShape
)

var statNames = map[string]stat{
	"allocator_name":   statAllocator,
	"device_ordinal":   statOrdinal,
	"index_on_host":    statIndex,
	"bytes_allocated":  statHeld,
	"requested_bytes":  statRequested,
	"allocation_bytes": statAllocated,
	"addr":             statAddress,
	"tf_op":            statOp,
	"region_type":      statRegion,
	"data_type":        statType,
	"shape":            statShape,
}

// memEvent is one allocation or free, in 64 bytes.
type memEvent struct {
	ns        uint64 // time in nanoseconds, and
	ps        uint16 // picoseconds on top of it
	op        tape.Op
	has       uint8 // which of the sizes are given
	pool      uint32
	site      uint32
	number    uint32 // of the event in the file
	offset    int64  // picoseconds since the time of its line
	addr      uint64
	requested uint64 // bytes asked for
	allocated uint64 // bytes of the block
	held      uint64 // bytes of all blocks of the pool after the event
}

// memEventBytes is what a memory event needs in memory, in a list that grows.
const memEventBytes = 2 * 64

// Bits of memEvent.has.
const (
	hasRequested = 1 << iota
	hasAllocated
	hasHeld
)

// value is what a stat holds.
type value struct {
	n    int64
	text string // "" if it is a number
}

// event reads an event, which begins at byte at of the file; ok is false if it is not one of
// memory, or has no address. Its time is still the offset.
func (x *reader) event(p *plane, data []byte, at int64) (ev memEvent, ok bool, err error) {
	var stats [statShape + 1]value
	var given [statShape + 1]bool
	m := wire.NewMessage(data)
	for m.Next() {
		switch m.Num {
		case 1:
			if ev.op, ok = p.ops[m.Value]; !ok {
				return ev, false, nil // as most are
			}
		case 2:
			ev.offset = int64(m.Value)
		case 4:
			s, v, err := p.stat(m.Data)
			if err != nil {
				return ev, false, x.file.Fail(at, "damaged: an event with a stat that does not end where it should")
			}
			stats[s], given[s] = v, true
		}
	}
	if m.Err() != nil {
		return ev, false, x.file.Fail(at, "damaged: an event that does not end where it should")
	}
	if !ok {
		ev.op, ok = p.ops[0]
	}
	if !ok {
		return ev, false, nil
	}
	if !given[statAddress] {
		x.play.noAddress++
		return ev, false, nil
	}
	ev.addr = uint64(stats[statAddress].n)
	size := func(s stat, to *uint64, bit uint8) {
		if v := stats[s]; given[s] && v.n >= 0 && v.text == "" {
			*to = uint64(v.n)
			ev.has |= bit
		}
	}
	size(statRequested, &ev.requested, hasRequested)
	size(statAllocated, &ev.allocated, hasAllocated)
	size(statHeld, &ev.held, hasHeld)

	// The pool has the name of its allocator, else the number of its device,
	// which is what XProf calls it as well.
	name := stats[statAllocator].text
	switch {
	case name != "":
	case given[statOrdinal]:
		name = strconv.FormatInt(stats[statOrdinal].n, 10)
	case given[statIndex]:
		name = strconv.FormatInt(stats[statIndex].n, 10)
	}
	pool, ok := x.play.pool(name)
	if !ok {
		return ev, false, x.file.Refuse("the profile has more than %d allocators; it is damaged", maxPools)
	}
	ev.pool = pool
	ev.site = x.site(stats[statOp].text, stats[statType], stats[statShape].text, stats[statRegion].text)
	return ev, true, nil
}

// stat reads a stat. A text may be in the stat itself or be the name of another.
func (p *plane) stat(data []byte) (s stat, v value, err error) {
	m := wire.NewMessage(data)
	for m.Next() {
		switch m.Num {
		case 1:
			s = p.stats[m.Value]
		case 3, 4:
			v = value{n: int64(m.Value)}
		case 5:
			v = value{text: textOf(m.Data)}
		case 7:
			v = value{text: textOf(p.refs[m.Value])}
		}
	}
	return s, v, m.Err()
}

// textOf returns the text of a stat, cut to maxText bytes.
func textOf(b []byte) string { return input.Cut(string(b[:min(len(b), maxText+1)]), maxText) }

// xplaneTime returns when an event on a line with a timestamp (nanoseconds) and at an
// offset (picoseconds, which may be before the line's beginning) happened. A time
// before 0 is damage; it becomes 0.
func xplaneTime(timestamp, offset int64) (ns uint64, ps uint16) {
	sub := offset % 1000
	whole := offset / 1000
	if sub < 0 {
		sub += 1000
		whole--
	}
	sum := timestamp + whole
	if sum < 0 {
		return 0, 0
	}
	return uint64(sum), uint16(sub)
}

// site returns "op (type[shape], region)", with less where less is known.
func (x *reader) site(op string, typ value, shape, region string) uint32 {
	t := x.text[:0]
	t = append(t, op...)
	what := typ.text
	if what == "" && typ.n > 0 && typ.n < int64(len(dataTypes)) {
		what = dataTypes[typ.n]
	}
	if what != "" || shape != "" || region != "" {
		if len(t) > 0 {
			t = append(t, ' ')
		}
		t = append(t, '(')
		t = append(t, what...)
		t = append(t, shape...)
		if region != "" {
			if what != "" || shape != "" {
				t = append(t, ", "...)
			}
			t = append(t, region...)
		}
		t = append(t, ')')
	}
	x.text = t
	return x.b.Site(t)
}

// dataTypes are the values of TensorFlow's DataType
// (tensorflow/core/framework/types.proto), in the words of its Python. 0 is
// none: XLA's allocators write it, whatever the type.
var dataTypes = [...]string{
	1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
	10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
	18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
	25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz",
	29: "int4", 30: "uint4", 31: "int2", 32: "uint2",
}

// size returns the requested bytes if they are known. Some allocators write 0 for a
// free.
func (e *memEvent) size() (uint64, bool) {
	if e.has&hasRequested != 0 && (e.requested > 0 || e.op == tape.Alloc) {
		return e.requested, true
	}
	return e.allocated, e.has&hasAllocated != 0
}
