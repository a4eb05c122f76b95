// Package tracetest has what the tests of recordings share: listing events, a slow model
// of a recording to compare with, and protocol buffers made by hand.
package tracetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/record/internal/tape"
)

// MustRead reads a recording, which is closed at the end of the test.
func MustRead(t testing.TB, formats tape.Formats, data []byte, opt tape.Options) *tape.Trace {
	t.Helper()
	tr, err := formats.Read(context.Background(), bytes.NewReader(data), "in", opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// Sample returns a file of record/trace/testdata, without its gzip.
func Sample(t testing.TB, name string) []byte {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	data, err := os.ReadFile(filepath.Join(filepath.Dir(file), "..", "..", "..", "trace", "testdata", name))
	if err == nil && data[0] == 0x1f && data[1] == 0x8b {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
			data, err = io.ReadAll(z)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Samples lists the recordings of record/trace/testdata.
func Samples(t testing.TB) (names []string) {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	list, err := os.ReadDir(filepath.Join(filepath.Dir(file), "..", "..", "..", "trace", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if ext := filepath.Ext(e.Name()); ext != ".py" && ext != ".md" {
			names = append(names, e.Name())
		}
	}
	return names
}

// Events reads a whole pool, batch events at a time.
func Events(t testing.TB, p *tape.Pool, batch int) []tape.Event {
	t.Helper()
	all, err := EventsOf(p, batch)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// EventsOf is Events with an error.
func EventsOf(p *tape.Pool, batch int) ([]tape.Event, error) {
	c := p.Cursor()
	var all []tape.Event
	dst := make([]tape.Event, batch)
	for {
		n, err := c.Next(dst)
		all = append(all, dst[:n]...)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// PlacesOf reads the address of each event of a pool, 0 where there is none.
func PlacesOf(p *tape.Pool, evs []tape.Event) ([]uint64, error) {
	var all []uint64
	places := p.Places()
	for i := range evs {
		addr, err := places.Of(&evs[i])
		if err != nil {
			return nil, err
		}
		all = append(all, addr)
	}
	return all, nil
}

// ListEvents writes events as lines: a SLOT BYTES or f SLOT, and what is not zero.
func ListEvents(evs []tape.Event) string {
	var out strings.Builder
	for _, e := range evs {
		if e.Op == tape.Alloc {
			fmt.Fprintf(&out, "a %d %d", e.Slot, e.Bytes)
		} else {
			fmt.Fprintf(&out, "f %d", e.Slot)
		}
		if e.Upper {
			out.WriteString(" upper")
		}
		if e.Refused {
			out.WriteString(" refused")
		}
		if e.Stream != 0 {
			fmt.Fprintf(&out, " stream=%d", e.Stream)
		}
		if e.Site != 0 {
			fmt.Fprintf(&out, " site=%d", e.Site)
		}
		if e.Time != 0 {
			fmt.Fprintf(&out, " at=%d", e.Time)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// checkPool replays a pool's events naively: slots are used as promised, and
// every sum of the pool is what the events say.
func checkPool(tr *tape.Trace, p *tape.Pool) error {
	evs, err := EventsOf(p, 100)
	if err != nil {
		return err
	}
	size := map[uint32]uint64{}
	live, live256 := new(big.Int), new(big.Int)
	peak, peak256 := new(big.Int), new(big.Int)
	var allocs, largest, refused uint64
	var most int
	rounded := func(n uint64) *big.Int {
		b := new(big.Int).SetUint64(n)
		b.Add(b, big.NewInt(255)).Rsh(b, 8)
		return b.Lsh(b, 8)
	}
	for i, e := range evs {
		n, isLive := size[e.Slot]
		before := evs[max(i, 1)-1].Time
		switch {
		case e.Time < before, e.Time != 0 && (!tr.Timed || uint64(i) < p.Seeds), e.Time > math.MaxInt64:
			return fmt.Errorf("event %d: at %d, the one before at %d", i, e.Time, before)
		case e.Slot >= p.Slots:
			return fmt.Errorf("event %d: slot %d of %d", i, e.Slot, p.Slots)
		case isLive != (e.Op == tape.Free):
			return fmt.Errorf("event %d: %v of slot %d, live %v", i, e.Op, e.Slot, isLive)
		case e.Stream >= p.Streams || e.Site >= tr.Sites():
			return fmt.Errorf("event %d: stream %d of %d, site %d of %d", i, e.Stream, p.Streams, e.Site, tr.Sites())
		case e.Op == tape.Free && e.Bytes != 0:
			return fmt.Errorf("event %d: a free of %d bytes", i, e.Bytes)
		case e.Op == tape.Free:
			delete(size, e.Slot)
			live.Sub(live, new(big.Int).SetUint64(n))
			live256.Sub(live256, rounded(n))
			continue
		}
		allocs++
		largest = max(largest, e.Bytes)
		size[e.Slot] = e.Bytes
		most = max(most, len(size))
		live.Add(live, new(big.Int).SetUint64(e.Bytes))
		live256.Add(live256, rounded(e.Bytes))
		if live.Cmp(peak) > 0 {
			peak.Set(live)
		}
		if live256.Cmp(peak256) > 0 {
			peak256.Set(live256)
		}
		if e.Refused {
			refused++
			delete(size, e.Slot)
			live.Sub(live, new(big.Int).SetUint64(e.Bytes))
			live256.Sub(live256, rounded(e.Bytes))
		}
	}
	capped := func(b *big.Int) uint64 {
		if !b.IsUint64() {
			return math.MaxUint64
		}
		return b.Uint64()
	}
	got := []uint64{p.Events, p.Allocs, p.LargestAlloc, uint64(p.Slots), p.PeakLive, p.PeakLive256, p.EndLive, p.EndBlocks, p.Refused}
	want := []uint64{uint64(len(evs)), allocs, largest, uint64(most), capped(peak), capped(peak256), capped(live), uint64(len(size)), refused}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("events, allocs, largest, slots, peak, peak256, end bytes, end blocks, refused:\n got %d\nwant %d", got, want)
		}
	}
	var placed uint64
	places := p.Places()
	for i := range evs {
		e := &evs[i]
		addr, err := places.Of(e)
		if err != nil {
			return err
		}
		if addr == 0 {
			continue
		}
		if placed++; e.Op == tape.Free || e.Refused || uint64(i) < p.Seeds {
			return fmt.Errorf("event %d: %+v at %#x", i, e, addr)
		}
	}
	if placed != p.Placed {
		return fmt.Errorf("%d places, want %d", placed, p.Placed)
	}
	return nil
}

// CheckTrace checks every pool and the sums over them.
func CheckTrace(tr *tape.Trace) error {
	var evs, allocs uint64
	for _, p := range tr.Pools {
		if err := checkPool(tr, p); err != nil {
			return fmt.Errorf("pool %q: %w", p.Name, err)
		}
		evs += p.Events
		allocs += p.Allocs
		if p.PeakLive > tr.PeakLive {
			return fmt.Errorf("pool %q: peak %d above the trace's %d", p.Name, p.PeakLive, tr.PeakLive)
		}
	}
	if evs != tr.Events || allocs != tr.Allocs || evs == 0 {
		return fmt.Errorf("trace has %d events, %d allocs; pools %d, %d", tr.Events, tr.Allocs, evs, allocs)
	}
	return nil
}

// WantInputError checks that err is an *Error with this text.
func WantInputError(t testing.TB, err error, want string) {
	t.Helper()
	var e *tape.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want an *Error", err, err)
	}
	if err.Error() != want {
		t.Errorf("\n got %s\nwant %s", err, want)
	}
}

// Zipped returns data packed by gzip.
func Zipped(data []byte) []byte {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(data)
	w.Close()
	return z.Bytes()
}

// ShowPools writes the pools of a trace with their events.
func ShowPools(t testing.TB, tr *tape.Trace) string {
	var out strings.Builder
	for _, p := range tr.Pools {
		fmt.Fprintf(&out, "%s: %d seeds, %d streams, peak %d, end %d in %d\n%s",
			p.Name, p.Seeds, p.Streams, p.PeakLive, p.EndLive, p.EndBlocks, ListEvents(Events(t, p, 2)))
	}
	return out.String()
}

// ShowBlocks lists a pool of a trace, its blocks by the number of their allocation.
func ShowBlocks(tr *tape.Trace, p *tape.Pool) (string, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %d seeds\n", p.Name, p.Seeds)
	evs, err := EventsOf(p, 100)
	block := map[uint32]int{}
	n := 0
	for _, e := range evs {
		if e.Op == tape.Alloc {
			block[e.Slot] = n
			n++
			fmt.Fprintf(&out, "a %d %d %s\n", block[e.Slot], e.Bytes, tr.Site(e.Site))
		} else {
			fmt.Fprintf(&out, "f %d %s\n", block[e.Slot], tr.Site(e.Site))
		}
	}
	return out.String(), err
}

// Diff compares all but the source and the slots.
func Diff(want, got *tape.Trace) string {
	sums := cmpopts.IgnoreUnexported(tape.Trace{}, tape.Pool{})
	rest := cmpopts.IgnoreFields(tape.Trace{}, "Source")
	if d := cmp.Diff(want, got, sums, rest); d != "" {
		return d
	}
	if want.Origin() != got.Origin() {
		return fmt.Sprintf("the first event is at %d, want %d", got.Origin(), want.Origin())
	}
	if want.Sites() != got.Sites() {
		return fmt.Sprintf("%d sites, want %d", got.Sites(), want.Sites())
	}
	for i := range want.Sites() {
		if want.FullSite(i) != got.FullSite(i) {
			return fmt.Sprintf("site %d is %q, want %q", i, got.FullSite(i), want.FullSite(i))
		}
	}
	for i, p := range want.Pools {
		x, errX := EventsOf(p, 100)
		y, errY := EventsOf(got.Pools[i], 100)
		if err := errors.Join(errX, errY); err != nil {
			return err.Error()
		}
		waits := slices.Clone(p.Waits())
		slots := make([]uint32, p.Slots)
		next := 0
		for k := range x {
			for ; next < len(waits) && waits[next].From <= uint64(k); next++ {
				waits[next].Slot = slots[waits[next].Slot]
			}
			if x[k].Op == tape.Alloc {
				slots[x[k].Slot] = y[k].Slot
			}
			x[k].Slot = slots[x[k].Slot]
		}
		for ; next < len(waits); next++ {
			waits[next].Slot = slots[waits[next].Slot]
		}
		if d := cmp.Diff(x, y); d != "" {
			return d
		}
		if d := cmp.Diff(besideEvents(p, waits), besideEvents(got.Pools[i], got.Pools[i].Waits())); d != "" {
			return d
		}
		a, errA := PlacesOf(p, x)
		b, errB := PlacesOf(got.Pools[i], y)
		if err := errors.Join(errA, errB); err != nil {
			return err.Error()
		}
		if d := cmp.Diff(a, b); d != "" {
			return d
		}
	}
	return ""
}

// besideEvents returns what a pool has beside its events.
func besideEvents(p *tape.Pool, waits []tape.Wait) []any {
	keepers := map[uint64]tape.Keeper{}
	for n := range p.Events {
		if k, ok := p.Keeper(n + 1); ok {
			keepers[n+1] = k
		}
	}
	return []any{p.Segments(), p.Granted(), p.Final(), p.Reserved(), p.Trims(), p.Privates(), waits, keepers}
}

// IsInput reports whether err is bad input.
func IsInput(err error) bool {
	var e *tape.Error
	return errors.As(err, &e)
}

// FuzzRead reads any bytes as a format, or as what they look like: a consistent
// trace, or an *Error of one line.
func FuzzRead(t *testing.T, formats tape.Formats, in []byte, format string) {
	tr, err := formats.Read(context.Background(), bytes.NewReader(in), "in", tape.Options{Format: format})
	if err != nil {
		if !IsInput(err) {
			t.Fatalf("%v is not an *Error", err)
		}
		if strings.ContainsAny(err.Error(), "\n\x00") {
			t.Fatalf("the message has more than one line: %q", err)
		}
		return
	}
	defer tr.Close()
	if err := CheckTrace(tr); err != nil {
		t.Fatal(err)
	}
}

// Left lists what is in a folder.
func Left(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// PB is a message that is being made. Each method returns a longer one and leaves
// its own as it is.
type PB []byte

// Num adds a number.
func (m PB) Num(field protowire.Number, v uint64) PB {
	return protowire.AppendVarint(protowire.AppendTag(slices.Clip(m), field, protowire.VarintType), v)
}

// Bytes adds bytes or a message.
func (m PB) Bytes(field protowire.Number, b []byte) PB {
	return protowire.AppendBytes(protowire.AppendTag(slices.Clip(m), field, protowire.BytesType), b)
}

// Text adds a text.
func (m PB) Text(field protowire.Number, s string) PB { return m.Bytes(field, []byte(s)) }

// Fixed adds a number of 64 bits.
func (m PB) Fixed(field protowire.Number, v uint64) PB {
	return protowire.AppendFixed64(protowire.AppendTag(slices.Clip(m), field, protowire.Fixed64Type), v)
}

// TakenForText is what becomes of data where a tool takes it for UTF-8.
func TakenForText(data []byte) []byte {
	var out []byte
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		out = utf8.AppendRune(out, r)
		data = data[n:]
	}
	return out
}

// Others returns the files that match a pattern in ../shared/data beside the checkout,
// which are other people's and never committed; without any the test is skipped.
func Others(t testing.TB, pattern ...string) []string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
	pattern = append([]string{root, "..", "shared", "data"}, pattern...)
	files, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skipf("recordings of other people are not beside the checkout: %s", filepath.Join(pattern[2:]...))
	}
	return files
}
