package trace

// This file is for what the tests share: reading from strings, listing events,
// and a slow model of a recording to compare with.

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"
	"testing"
)

func readString(s string) (*Trace, error) {
	return Read(context.Background(), strings.NewReader(s), "in", Options{})
}

func mustRead(t testing.TB, data []byte, opt Options) *Trace {
	t.Helper()
	tr, err := Read(context.Background(), bytes.NewReader(data), "in", opt)
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

// events reads a whole pool, batch events at a time.
func events(t testing.TB, p *Pool, batch int) []Event {
	t.Helper()
	all, err := eventsOf(p, batch)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func eventsOf(p *Pool, batch int) ([]Event, error) {
	c := p.Cursor()
	defer c.Close()
	var all []Event
	dst := make([]Event, batch)
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

// placesOf reads the address of each event of a pool, 0 where there is none.
func placesOf(p *Pool, evs []Event) ([]uint64, error) {
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

// list writes events as lines: a SLOT BYTES or f SLOT, and what is not zero.
func listEvents(evs []Event) string {
	var out strings.Builder
	for _, e := range evs {
		if e.Op == Alloc {
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
func checkPool(p *Pool) error {
	evs, err := eventsOf(p, 100)
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
		case e.Time < before, e.Time != 0 && (!p.trace.Timed || uint64(i) < p.Seeds), e.Time > math.MaxInt64:
			return fmt.Errorf("event %d: at %d, the one before at %d", i, e.Time, before)
		case e.Slot >= p.Slots:
			return fmt.Errorf("event %d: slot %d of %d", i, e.Slot, p.Slots)
		case isLive != (e.Op == Free):
			return fmt.Errorf("event %d: %v of slot %d, live %v", i, e.Op, e.Slot, isLive)
		case e.Stream >= p.Streams || e.Site >= p.trace.Sites():
			return fmt.Errorf("event %d: stream %d of %d, site %d of %d", i, e.Stream, p.Streams, e.Site, p.trace.Sites())
		case e.Op == Free && e.Bytes != 0:
			return fmt.Errorf("event %d: a free of %d bytes", i, e.Bytes)
		case e.Op == Free:
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
		if placed++; e.Op == Free || e.Refused || uint64(i) < p.Seeds {
			return fmt.Errorf("event %d: %+v at %#x", i, e, addr)
		}
	}
	if placed != p.Placed {
		return fmt.Errorf("%d places, want %d", placed, p.Placed)
	}
	return nil
}

// checkTrace checks every pool and the sums over them.
func checkTrace(tr *Trace) error {
	var evs, allocs uint64
	for _, p := range tr.Pools {
		if err := checkPool(p); err != nil {
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

// wantInputError checks that err is an *Error with this text.
func wantInputError(t *testing.T, err error, want string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want an *Error", err, err)
	}
	if err.Error() != want {
		t.Errorf("\n got %s\nwant %s", err, want)
	}
}

func zipped(data []byte) []byte {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(data)
	w.Close()
	return z.Bytes()
}

// fuzzRead reads any bytes as a format, or as what they look like: a consistent
// trace, or an *Error.
func fuzzRead(t *testing.T, in []byte, format string) {
	tr, err := Read(context.Background(), bytes.NewReader(in), "in", Options{Format: format})
	if err != nil {
		if !isInput(err) {
			t.Fatalf("%v is not an *Error", err)
		}
		return
	}
	defer tr.Close()
	if err := checkTrace(tr); err != nil {
		t.Fatal(err)
	}
}
