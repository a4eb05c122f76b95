package tape

// The encoding of events: it comes back as it went in, and
// damage is an error.

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/internal/spool"
)

// encoded puts events into one block, timed if one of them has a time.
func encoded(t testing.TB, evs []Event) []byte {
	var e encoder
	e.timed = hasTimes(evs)
	for _, ev := range evs {
		if e.full() {
			t.Fatal("the events do not fit one block")
		}
		e.put(ev)
	}
	data, n := e.seal()
	if int(n) != len(evs) {
		t.Fatalf("%d events sealed, want %d", n, len(evs))
	}
	return append([]byte(nil), data...)
}

func hasTimes(evs []Event) bool {
	return slices.ContainsFunc(evs, func(ev Event) bool { return ev.Time != 0 })
}

func TestEncodeSizes(t *testing.T) {
	for _, c := range []struct {
		name string
		evs  []Event
		want int // bytes without padding
	}{
		{"free of the slot before", []Event{{Op: Free}}, 2},
		{"nothing asked", []Event{{}}, 2},
		{"one byte each", []Event{{Bytes: 255, Slot: 100}}, 3},
		{"a step back", []Event{{Slot: 200, Op: Free}, {Slot: 199, Op: Free}}, 5},
		{"2 MiB", []Event{{Bytes: 2 << 20}}, 5},
		{"80 GiB", []Event{{Bytes: 80 << 30, Slot: 1}}, 7},
		{"upper", []Event{{Bytes: 1, Upper: true}}, 4},
		{"refused", []Event{{Bytes: 1, Refused: true}}, 4},
		{"site and stream", []Event{{Bytes: 1, Site: 300, Stream: 2}}, 7},
		{"longest", []Event{{Bytes: math.MaxUint64, Slot: 1 << 31, Site: math.MaxUint32, Stream: math.MaxUint32, Upper: true, Refused: true}}, maxEvent},
		{"at once", []Event{{Time: 1}, {Time: 1, Op: Free}}, 3 + 3},
		{"63 microseconds later", []Event{{Time: 63000}}, 3},
		{"64 microseconds later", []Event{{Time: 64000}}, 4},
		{"63 nanoseconds later", []Event{{Time: 63}}, 3},
		{"8191 nanoseconds later", []Event{{Time: 8191}}, 4},
		{"an hour later", []Event{{Time: 3600e9}}, 2 + 5},
		{"a day and a bit later", []Event{{Time: 86400e9 + 1}}, 2 + 7},
		{"292 years later", []Event{{Time: math.MaxInt64}}, 2 + maxTime},
		{"longest of all", []Event{{Time: math.MaxInt64, Bytes: math.MaxUint64, Slot: 1 << 31, Site: math.MaxUint32, Stream: math.MaxUint32, Upper: true, Refused: true}}, maxEvent + maxTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := encoded(t, c.evs)
			if got := len(data) - padBytes; got != c.want {
				t.Errorf("%d bytes, want %d", got, c.want)
			}
			dst := make([]Event, len(c.evs))
			used, _, err := decode(dst, data, prev{}, math.MaxUint32, hasTimes(c.evs))
			if err != nil || used != c.want {
				t.Fatalf("used %d, %v", used, err)
			}
			if d := cmp.Diff(c.evs, dst); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDecodeDamage(t *testing.T) {
	good := encoded(t, []Event{{Bytes: 5, Slot: 3}, {Slot: 3, Op: Free, Site: 1}})
	pad := make([]byte, padBytes)
	for _, c := range []struct {
		name  string
		data  []byte
		n     int
		timed bool
	}{
		{"empty", nil, 1, false},
		{"shorter than an event may be", make([]byte, maxEvent-1), 1, false},
		{"more events than bytes", good, 30, false},
		{"slot out of range", append([]byte{0, 200}, pad...), 1, false},
		{"size of 9 bytes", append([]byte{9 << 4, 0}, pad...), 1, false},
		{"size of 15 bytes", append([]byte{15 << 4, 0}, pad...), 1, false},
		{"stream of 5 bytes", append([]byte{tagExt, 0, 5 << 1}, pad...), 1, false},
		{"site of 5 bytes", append([]byte{tagExt, 0, 5 << 4}, pad...), 1, false},
		{"no room for a time", append([]byte{8 << 4, 0}, make([]byte, maxEvent-2)...), 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, _, err := decode(make([]Event, c.n), c.data, prev{}, 10, c.timed); !errors.Is(err, spool.ErrDamaged) {
				t.Errorf("got %v, want %v", err, spool.ErrDamaged)
			}
		})
	}
}

// FuzzEncode turns bytes into events, encodes them and decodes them again.
func FuzzEncode(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22})
	f.Fuzz(func(t *testing.T, in []byte) {
		var evs []Event
		var now uint64
		for len(in) >= 22 && len(evs) < blockBytes/(maxEvent+maxTime) {
			ev := Event{
				Op:     Op(in[0] & 1),
				Upper:  in[0]&2 != 0,
				Slot:   binary.LittleEndian.Uint32(in[1:]) >> (in[0] >> 3),
				Site:   binary.LittleEndian.Uint32(in[5:]) >> (in[9] & 31),
				Stream: binary.LittleEndian.Uint32(in[10:]) >> (in[9] >> 3),
				Bytes:  binary.LittleEndian.Uint64(in[14:]) >> (in[13] & 63),
				Time:   now,
			}
			if in[0]&4 != 0 { // a clock of nanoseconds, or of microseconds
				now += binary.LittleEndian.Uint64(in[10:]) >> (2 + in[13]&63)
			} else {
				now += binary.LittleEndian.Uint64(in[10:]) >> (14 + in[13]&31) * 1000
			}
			now = min(now, math.MaxInt64)
			if ev.Slot != math.MaxUint32 { // a slot is below Pool.Slots
				evs = append(evs, ev)
			}
			in = in[22:]
		}
		data, timed := encoded(t, evs), hasTimes(evs)
		got := make([]Event, len(evs))
		used, _, err := decode(got, data, prev{}, math.MaxUint32, timed)
		if err != nil || len(evs) > 0 && used != len(data)-padBytes {
			t.Fatalf("used %d of %d: %v", used, len(data), err)
		}
		for i := range evs {
			if got[i] != evs[i] {
				t.Fatalf("event %d: got %+v, want %+v", i, got[i], evs[i])
			}
		}
	})
}

// FuzzDecode: any bytes give events in range or spool.ErrDamaged.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, uint16(1), uint32(1), false)
	f.Add(encoded(f, []Event{{Bytes: 5, Slot: 3}, {Slot: 3, Op: Free, Site: 1, Upper: true}}), uint16(2), uint32(4), false)
	f.Add(encoded(f, []Event{{Bytes: 5, Slot: 3, Time: 7}, {Slot: 3, Op: Free, Time: 1 << 60}}), uint16(2), uint32(4), true)
	f.Fuzz(func(t *testing.T, data []byte, n uint16, slots uint32, timed bool) {
		dst := make([]Event, n)
		used, _, err := decode(dst, data, prev{}, slots, timed)
		if used > len(data) {
			t.Fatalf("used %d of %d bytes", used, len(data))
		}
		if err != nil {
			return
		}
		for i, ev := range dst {
			if ev.Slot >= slots || ev.Op > Free {
				t.Fatalf("event %d: %+v with %d slots", i, ev, slots)
			}
		}
	})
}

// A time of any length comes back, in the bytes that the comment of putTime says: 7 bits
// of the number in each, at most eight, then nine.
func TestTimesOfEveryLength(t *testing.T) {
	for _, c := range []struct {
		d uint64
		n int
	}{
		{0, 1}, {1, 1}, {63, 1}, {64, 2}, {1000, 1}, {63_000, 1}, {64_000, 2},
		{1<<13 - 1, 2}, {1<<13 + 1, 3}, {1<<55 - 1, 8}, {1<<55 + 1, 9}, {1<<62 + 1, 9}, {1<<63 - 1, 9},
	} {
		var b [maxTime]byte
		n := putTime(b[:], c.d)
		d, used := takeTime(b[:])
		if n != c.n || used != n || d != c.d {
			t.Errorf("%d takes %d bytes, want %d; read as %d from %d", c.d, n, c.n, d, used)
		}
	}
}
