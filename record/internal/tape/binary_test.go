package tape

// Our own format: what is written is read, a file that ends
// early is read up to there, and damage is told.

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/size"
)

// saved writes a trace in our format.
func saved(t testing.TB, tr *Trace) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tr.Save(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// samples are recordings in our formats. Package formats saves those of others.
func samples() map[string][]byte {
	return map[string][]byte{
		"text":  []byte("a u1 5\na 2 0\nf u1\na 3 18446744073709551615\na 4 18446744073709551615\n"),
		"large": generated(100_000, decimalID),
	}
}

// TestBinarySample: the file in testdata, written out by hand, is read, and what
// Save writes of it is the same bytes.
func TestBinarySample(t *testing.T) {
	var file []byte
	for line := range strings.Lines(string(testdata(t, "gpumem.hex"))) {
		line, _, _ = strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
		if err != nil {
			t.Fatal(err)
		}
		file = append(file, b...)
	}
	tr := mustRead(t, file, Options{})
	const want = `gpu: 1 seeds, 1 streams, peak 1124, end 100 in 1
a 0 1024
a 1 100 site=1 at=3000
f 0 at=3005
host: 0 seeds, 3 streams, peak 7, end 0 in 0
a 0 7 upper stream=2
f 0 upper at=1000
`
	if d := cmp.Diff(want, Given.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	if tr.Site(1) != "step (a.py:7)\nmain (a.py:9)" || tr.PeakLive != 1131 || !tr.Timed {
		t.Errorf("site %q, peak %d, timed %v", tr.Site(1), tr.PeakLive, tr.Timed)
	}
	if d := cmp.Diff([]string{"note"}, tr.Notes); d != "" {
		t.Error(d)
	}
	if err := checkTrace(tr); err != nil {
		t.Error(err)
	}
	file[len(binaryMagic)] = binaryVersion // the file is in version 1
	if got := saved(t, tr); !bytes.Equal(got, file) {
		t.Errorf("saved\n% x\n% x", got, file)
	}
}

func TestSaved(t *testing.T) {
	for name, data := range samples() {
		t.Run(name, func(t *testing.T) {
			tr := mustRead(t, data, Options{})
			file := saved(t, tr)
			again := mustRead(t, file, Options{SpoolLimit: 1000, TempDir: t.TempDir()})
			if d := Given.Diff(tr, again); d != "" {
				t.Error(d)
			}
			if err := checkTrace(again); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(saved(t, again), file) {
				t.Error("the copy of the copy differs")
			}
		})
	}
}

// traceOf makes a trace of anything at random that the model can hold.
func traceOf(t *rapid.T) *Trace {
	b := testBuilder("torch", Options{})
	b.Settings(rapid.SampledFrom([]string{"", "expandable_segments:True"}).Draw(t, "settings"))
	sites := &b.trace.sites
	frames := rapid.IntRange(0, 20).Draw(t, "frames")
	for i := range frames {
		sites.frames = append(sites.frames, fmt.Sprintf("%s (/home/u/f.py:%d)", strings.Repeat("f", i*40), i))
	}
	for range rapid.IntRange(0, min(frames, 10)).Draw(t, "sites") {
		sites.sites = append(sites.sites, rapid.SliceOfN(rapid.Uint32Range(0, uint32(frames-1)), 1, MaxFrames).Draw(t, "site"))
	}
	for range rapid.IntRange(0, 3).Draw(t, "notes") {
		b.Note("%s", rapid.StringMatching("[a-zé ]{0,50}").Draw(t, "note"))
	}
	type block struct {
		pool *PoolBuilder
		slot uint32
	}
	var live []block
	timed := rapid.Bool().Draw(t, "timed")
	draw := func() (site, stream uint32) {
		return rapid.Uint32Range(0, sites.len()-1).Draw(t, "site"), uint32(rapid.Uint64Range(0, math.MaxUint32-1).Draw(t, "stream") >> rapid.IntRange(0, 32).Draw(t, "shift"))
	}
	alloc := func(p *PoolBuilder, addr uint64) {
		site, stream := draw()
		slot, err := p.Alloc(Event{Bytes: rapid.Uint64().Draw(t, "bytes"), Site: site, Stream: stream, Upper: rapid.Bool().Draw(t, "upper")}, addr)
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, block{p, slot})
		if rapid.IntRange(0, 9).Draw(t, "is kept") == 0 {
			if p.p.keepers == nil {
				p.p.keepers = map[uint64]Keeper{}
			}
			p.p.keepers[p.p.Events] = Keeper{rapid.SampledFrom([]string{"list `hist`", "dict `d`"}).Draw(t, "container"), rapid.SampledFrom([]string{"", "t.py:8"}).Draw(t, "line")}
		}
	}
	var pools []*PoolBuilder
	for i := range rapid.IntRange(1, 3).Draw(t, "pools") {
		p := b.Pool(fmt.Sprint("pool", i))
		pools = append(pools, p)
		for range rapid.IntRange(0, 3).Draw(t, "seeds") {
			alloc(p, 0)
			p.p.Seeds++
		}
		if rapid.Bool().Draw(t, "reserved") {
			p.Reserved(rapid.Uint64().Draw(t, "bytes"))
		}
	}
	alloc(pools[0], 0) // one event at least
	now := rapid.Uint64Range(0, 1e18).Draw(t, "origin")
	for range rapid.IntRange(0, 100).Draw(t, "events") {
		if timed {
			now += rapid.SampledFrom([]uint64{0, 1, 999, 1000, 70_000, 1e9, 1e12 + 1}).Draw(t, "step")
			b.At(now)
		}
		p := rapid.SampledFrom(pools).Draw(t, "pool")
		var slots []uint32
		for _, b := range live {
			if b.pool == p {
				slots = append(slots, b.slot)
			}
		}
		besides(t, p, slots)
		switch k := rapid.IntRange(0, 10).Draw(t, "op"); {
		case k < 5:
			alloc(p, rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64()).Draw(t, "addr"))
		case k == 10:
			site, stream := draw()
			if _, err := p.Alloc(Event{Bytes: rapid.Uint64().Draw(t, "bytes"), Site: site, Stream: stream, Upper: rapid.Bool().Draw(t, "upper"), Refused: true}, 0); err != nil {
				t.Fatal(err)
			}
		case k == 9:
			site, stream := draw()
			if isMarked(p.p) { // nothing is known of such a pool but its events
				continue
			}
			if err := p.freeOlder(rapid.Uint64().Draw(t, "addr"), Event{Bytes: rapid.Uint64().Draw(t, "bytes"), Site: site, Stream: stream}); err != nil {
				t.Fatal(err)
			}
		case len(live) > 0:
			i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			site, stream := draw()
			if err := live[i].pool.release(live[i].slot, site, stream, rapid.Bool().Draw(t, "upper")); err != nil {
				t.Fatal(err)
			}
			live = slices.Delete(live, i, i+1)
		}
	}
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	for _, p := range b.trace.Pools {
		p.segments, p.granted, p.final = segmentsOf(t, int(p.Seeds), 0), segmentsOf(t, 0, 0), segmentsOf(t, -1, sites.len())
	}
	return b.trace
}

// besides draws what happens to a pool between two of its events, of which these slots are live.
func besides(t *rapid.T, p *PoolBuilder, live []uint32) {
	switch rapid.IntRange(0, 20).Draw(t, "beside") {
	case 0:
		p.Trim()
	case 1:
		p.Private(rapid.Uint32().Draw(t, "private"), rapid.Bool().Draw(t, "ended"))
	case 2:
		if p.p.reserved != nil {
			p.Reserved(rapid.Uint64().Draw(t, "bytes"))
		}
	case 3:
		if len(live) > 0 {
			w := Wait{Slot: rapid.SampledFrom(live).Draw(t, "waits"), From: p.p.Events}
			if rapid.Bool().Draw(t, "freed") {
				w.To = w.From + rapid.Uint64Range(1, 1000).Draw(t, "later")
			}
			p.p.waits = append(p.p.waits, w)
		}
	}
}

// isMarked reports whether something of the pool is known by the numbers of its events, which
// blocks that turn out to be older would move on.
func isMarked(p *Pool) bool {
	return p.trims != nil || p.privates != nil || p.waits != nil || p.keepers != nil
}

// segmentsOf draws segments with so many blocks, or with any if that is negative; nil sometimes.
func segmentsOf(t *rapid.T, blocks int, sites uint32) (list []Segment) {
	if rapid.Bool().Draw(t, "unknown") {
		return nil
	}
	list = []Segment{}
	addr := uint64(0)
	if blocks < 0 {
		blocks = rapid.IntRange(0, 4).Draw(t, "blocks")
	}
	for blocks > 0 || rapid.Bool().Draw(t, "another") {
		n := rapid.IntRange(0, blocks).Draw(t, "of it")
		s := Segment{
			Addr: addr, Bytes: 100 + uint64(n)*10, Stream: rapid.Uint32Range(0, 9).Draw(t, "stream"), Small: rapid.Bool().Draw(t, "small"),
			Private: rapid.Uint32Range(0, 9).Draw(t, "private"), Base: rapid.Uint64().Draw(t, "base"),
		}
		for k := range n {
			b := SegmentBlock{Addr: addr + uint64(k)*10, Bytes: rapid.Uint64Range(0, 10).Draw(t, "bytes"), Requested: rapid.Uint64().Draw(t, "requested")}
			if sites > 0 {
				b.Site = rapid.Uint32Range(0, sites-1).Draw(t, "site")
			}
			s.Blocks = append(s.Blocks, b)
		}
		blocks -= n
		addr += s.Bytes + uint64(rapid.SampledFrom([]int{0, 1, 1 << 40}).Draw(t, "hole"))
		list = append(list, s)
	}
	return list
}

// TestSavedModel: any trace comes back.
func TestSavedModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := traceOf(t)
		defer tr.Close()
		var out bytes.Buffer
		if err := tr.Save(context.Background(), &out); err != nil {
			t.Fatal(err)
		}
		again, err := Read(context.Background(), &out, "in", Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if d := Given.Diff(tr, again); d != "" {
			t.Fatal(d)
		}
	})
}

// blockStarts are the offsets of a file's blocks, and its length.
func blockStarts(file []byte) []int {
	var out []int
	for i := binaryHead; i < len(file); i += frameBytes + int(binary.LittleEndian.Uint32(file[i:])) {
		out = append(out, i)
	}
	return append(out, len(file))
}

// TestTorn: a file that ends anywhere is read up to the last whole block, with
// zeros behind it or not.
func TestTorn(t *testing.T) {
	tr := mustRead(t, generated(45_000, decimalID), Options{})
	file := saved(t, tr)
	want := events(t, tr.Pools[0], 1000)
	starts := blockStarts(file)
	if len(starts) < 4 {
		t.Fatalf("%d blocks", len(starts)-1)
	}
	for _, start := range starts[1:] {
		for _, n := range []int{0, 1, 4, 11, 12, 13, 5000} {
			for _, zeros := range []int{0, 11, 5000} {
				cut := min(start+n, len(file))
				data := append(slices.Clone(file[:cut]), make([]byte, zeros)...)
				got := mustRead(t, data, Options{})
				last, _ := slices.BinarySearch(starts, cut+1)
				lost := len(data) - starts[last-1]
				var notes []string
				if lost > 0 {
					notes = []string{fmt.Sprintf("the file ends within a block, as when the program that wrote it was killed: the last %s of it %s left out", size.Count(lost, "byte"), size.Are(lost))}
				}
				if d := cmp.Diff(notes, got.Notes); d != "" {
					t.Fatalf("cut to %d of %d: %s", cut, len(file), d)
				}
				evs := events(t, got.Pools[0], 1000)
				if !slices.Equal(evs, want[:len(evs)]) || got.Events != uint64(len(evs)) {
					t.Fatalf("cut to %d of %d: the events differ", cut, len(file))
				}
				if cut == len(file) && len(evs) != len(want) {
					t.Fatalf("%d events of %d", len(evs), len(want))
				}
			}
		}
	}
}

// TestDamagedMiddle changes bytes of a file: before the last block each is an
// error that names the block.
func TestDamagedMiddle(t *testing.T) {
	file := saved(t, mustRead(t, generated(45_000, decimalID), Options{}))
	starts := blockStarts(file)
	for _, start := range starts[:len(starts)-2] {
		for _, n := range []int{0, 1, 2, 3, 4, 7, 8, 11, 12, 13, 1000, 65_000} {
			bad := slices.Clone(file)
			bad[start+n] ^= 1 << (n % 8)
			_, err := Read(context.Background(), bytes.NewReader(bad), "in", Options{})
			what := "the block"
			if n < frameBytes { // the frame has a sum of its own
				what = "the length of the block"
			}
			wantInputError(t, err, fmt.Sprintf("in: byte %d: %s is damaged (its checksum is wrong); copy the file again, or keep what is before with head -c %[1]d", start, what))
		}
	}
}

// inBlock is a file of one block with these records.
func inBlock(records ...string) []byte {
	payload := strings.Join(records, "")
	out := append([]byte(binaryMagic+"\x01"), make([]byte, frameBytes)...)
	out = append(out, payload...)
	putFrame(out[binaryHead:], []byte(payload))
	return out
}

func TestBinaryErrors(t *testing.T) {
	const pool = "\x80\x01p\x00" // one letter, no seeds
	const not = "; the file was not written by gpumem"
	many := strings.Repeat(pool, maxPools+1)
	for _, c := range []struct {
		name string
		in   []byte
		want string
	}{
		{"nothing behind the magic", []byte(binaryMagic), "in: ends within its first 8 bytes: no events"},
		{"newer", []byte(binaryMagic + "\x04???"), "in: is in version 4 of the format, and this gpumem reads versions 1 to 3; read it with the gpumem that wrote it, or a newer one"},
		{"no block", []byte(binaryMagic + "\x01"), "in: the recording has no events"},
		{"no events", inBlock(pool), "in: the recording has no events"},
		{"kind", inBlock("\xff"), "in: byte 20: there is no record of kind 0xff" + not},
		{"text too long", inBlock(pool, "\x83\x7fabc"), "in: byte 24: a record ends after its block" + not},
		{"text longer than any", inBlock(pool, "\x83\x81\x20"+strings.Repeat("x", 4097)), "in: byte 24: a record ends after its block" + not},
		{"number not whole", inBlock(pool, "\x84\xff"), "in: byte 24: a record ends after its block" + not},
		{"event not whole", inBlock(pool, "\x00"), "in: byte 24: an event ends after its block" + not},
		{"no pool", inBlock("\x00\x05"), "in: byte 20: an event is of a pool that is not known" + not},
		{"another pool", inBlock(pool, "\x20\x01\x05"), "in: byte 24: an event is of a pool that is not known" + not},
		{"site", inBlock(pool, "\x08\x05\x01"), "in: byte 24: an event is of a site that is not known" + not},
		{"frame", inBlock("\x82\x01\x00"), "in: byte 20: a stack has a frame that is not known" + not},
		{"no frames", inBlock("\x82\x00"), "in: byte 20: a stack has no frames, or too many" + not},
		{"too many frames", inBlock("\x82\x41"), "in: byte 20: a stack has no frames, or too many" + not},
		{"a refusal that is freed", inBlock(pool, "\x00\x05", "\x87", "\x01\x00"), "in: byte 27: no allocation follows a record about one" + not},
		{"a place at the end of a block", inBlock(pool, "\x00\x05", "\x86\x08"), "in: byte 26: no allocation follows a record about one" + not},
		{"a place before a note", inBlock(pool, "\x86\x08", "\x83\x00"), "in: byte 26: no allocation follows a record about one" + not},
		{"a refusal with a place", inBlock(pool, "\x86\x08", "\x87", "\x00\x05"), "in: byte 26: no allocation follows a record about one" + not},
		{"an older block with a place", inBlock("\x80\x01p\x01", "\x86\x08", "\x00\x05"), "in: byte 26: a block older than the recording has an address, or was refused" + not},
		{"stream", inBlock(pool, "\x10\x05\xff\xff\xff\xff\x0f"), "in: byte 24: an event is of stream 4294967295 or above" + not},
		{"free", inBlock(pool, "\x00\x05", "\x01\x00", "\x01\x00"), "in: byte 28: a block is freed that is not live" + not},
		{"free of a slot out of reach", inBlock(pool, "\x00\x05", "\x01\x02"), "in: byte 26: a block is freed that is not live" + not},
		{"slot", inBlock(pool, "\x00\x05", "\x01\xff\xff\xff\xff\x7f"), "in: byte 26: a slot is out of range" + not},
		{"time that was not announced", inBlock(pool, "\x02\x05\x05"), "in: byte 24: an event has a time that cannot be" + not},
		{"too late", inBlock(pool, "\x85", "\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x05"), "in: byte 25: an event has a time that cannot be" + not},
		{"too late in microseconds", inBlock(pool, "\x85", "\x06\xff\xff\xff\xff\xff\xff\xff\x7f\x05"), "in: byte 25: an event is later than 292 years" + not},
		{"seed with a time", inBlock("\x80\x01p\x01\x85", "\x02\x01\x05"), "in: byte 25: a block older than the recording has a time" + not},
		{"seed freed", inBlock("\x80\x01p\x02", "\x00\x05", "\x01\x00"), "in: byte 26: a block older than the recording is freed before all of them are there" + not},
		{"pools", inBlock(many), "in: byte 4116: there are more than 1024 pools" + not},
		{"a keeper that is not known", inBlock(pool, "\x8b\x00", "\x00\x05"), "in: byte 24: a block has a keeper that is not known" + not},
		{"a keeper of nothing", inBlock(pool, "\x8a\x01l\x00", "\x8b\x00"), "in: byte 28: no allocation follows a record about one" + not},
		{"a keeper of a refusal", inBlock(pool, "\x8a\x01l\x00", "\x8b\x00", "\x87", "\x00\x05"), "in: byte 30: no allocation follows a record about one" + not},
		{"a cache of no pool", inBlock("\x90\x00"), "in: byte 20: something is of a pool that is not known" + not},
		{"segments of no list", inBlock(pool, "\x8c\x00\x03"), "in: byte 24: segments are of a list that is not known" + not},
		{"a segment of no list", inBlock(pool, "\x8d\x00\x05\x00\x00\x00\x00"), "in: byte 24: a segment is of no list" + not},
		{"a segment neither small nor large", inBlock(pool, "\x8c\x00\x01", "\x8d\x00\x05\x00\x00\x00\x02"), "in: byte 27: a segment has numbers that cannot be" + not},
		{"a block of no segment", inBlock(pool, "\x8c\x00\x02", "\x8e\x00\x05\x05\x00"), "in: byte 27: a block is of no segment" + not},
		{"a block behind its segment", inBlock(pool, "\x8c\x00\x02", "\x8d\x00\x05\x00\x00\x00\x00", "\x8e\x01\x05\x05\x00"),
			"in: byte 34: a block does not fit its segment" + not},
		{"a block of a site that is not known", inBlock(pool, "\x8c\x00\x02", "\x8d\x00\x05\x00\x00\x00\x00", "\x8e\x00\x05\x05\x01"),
			"in: byte 34: a block does not fit its segment" + not},
		{"segments that overlap", inBlock(pool, "\x8c\x00\x02", "\x8d\x00\x05\x00\x00\x00\x00", "\x8d\x04\x05\x00\x00\x00\x00", "\x00\x05"),
			`in: byte 43: the segments of pool "p" cannot be` + not},
		{"a segment's block that is no seed", inBlock(pool, "\x8c\x00\x00", "\x8d\x00\x05\x00\x00\x00\x00", "\x8e\x00\x05\x05\x00", "\x00\x05"),
			`in: byte 41: the segments of pool "p" cannot be` + not},
		{"a private pool that ends twice", inBlock(pool, "\x91\x00\x01\x02"), "in: byte 24: a private pool has a number that cannot be" + not},
		{"a block that waits and never was", inBlock(pool, "\x92\x00\x00\x01"), "in: byte 24: a block waits that is not known" + not},
		{"peak too low", inBlock(pool, "\x00\x05", "\x84\x04"), "in: byte 28: the peak of all pools is 4, and by the events from 5 to 5" + not},
		{"peak too high", inBlock(pool, "\x00\x05", "\x84\x06"), "in: byte 28: the peak of all pools is 6, and by the events from 5 to 5" + not},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(context.Background(), bytes.NewReader(c.in), "in", Options{Format: "gpumem"})
			wantInputError(t, err, c.want)
		})
	}
	_, err := Read(context.Background(), strings.NewReader("what?\n"), "in", Options{Format: "gpumem"})
	wantInputError(t, err, "in: does not begin as a recording that --save wrote")
}

func TestSaveFails(t *testing.T) {
	tr := mustRead(t, generated(60_000, decimalID), Options{})
	for _, room := range []int{0, 10, 70_000} {
		err := tr.Save(context.Background(), &fullDisk{room})
		if !errors.Is(err, errFull) {
			t.Errorf("room for %d bytes: %v", room, err)
		}
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	if err := tr.Save(ctx, &bytes.Buffer{}); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

var errFull = errors.New("the disk is full")

type fullDisk struct{ room int }

func (d *fullDisk) Write(b []byte) (int, error) {
	if len(b) > d.room {
		return 0, errFull
	}
	d.room -= len(b)
	return len(b), nil
}

// FuzzBinary: the bytes are a file as it is, and the payload of a block whose
// sums are right.
func FuzzBinary(f *testing.F) {
	for name, data := range samples() {
		if name == "large" {
			continue
		}
		tr, err := Read(context.Background(), bytes.NewReader(data), "in", Options{})
		if err != nil {
			f.Fatal(err)
		}
		file := saved(f, tr)
		f.Add(file)
		f.Add(file[binaryHead+frameBytes:])
		tr.Close()
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		fuzzRead(t, in, "gpumem")
		if len(in) > 0 && len(in) <= maxPayload {
			fuzzRead(t, inBlock(string(in)), "gpumem")
		}
	})
}
