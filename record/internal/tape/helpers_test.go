package tape

// What the tests share. Most of it is in package tracetest, which
// imports this one: hooks_test.go hands it in.

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/internal/input"
)

var own = Formats{Text, Binary}

// Helpers are those of package tracetest.
type Helpers struct {
	EventsOf       func(p *Pool, batch int) ([]Event, error)
	ListEvents     func(evs []Event) string
	CheckTrace     func(tr *Trace) error
	WantInputError func(t testing.TB, err error, want string)
	Zipped         func(data []byte) []byte
	MustRead       func(t testing.TB, formats Formats, data []byte, opt Options) *Trace
	FuzzRead       func(t *testing.T, formats Formats, in []byte, format string)
	Diff           func(want, got *Trace) string
	ShowPools      func(t testing.TB, tr *Trace) string
	Left           func(t testing.TB, dir string) []string
}

// Given are the helpers.
var Given Helpers

func eventsOf(p *Pool, batch int) ([]Event, error) { return Given.EventsOf(p, batch) }
func listEvents(evs []Event) string                { return Given.ListEvents(evs) }
func checkTrace(tr *Trace) error                   { return Given.CheckTrace(tr) }
func wantInputError(t testing.TB, err error, want string) {
	t.Helper()
	Given.WantInputError(t, err, want)
}
func zipped(data []byte) []byte                       { return Given.Zipped(data) }
func left(t testing.TB, dir string) []string          { return Given.Left(t, dir) }
func fuzzRead(t *testing.T, in []byte, format string) { Given.FuzzRead(t, own, in, format) }
func mustRead(t testing.TB, data []byte, opt Options) *Trace {
	t.Helper()
	return Given.MustRead(t, own, data, opt)
}
func readString(s string) (*Trace, error) {
	return Read(context.Background(), strings.NewReader(s), "in", Options{})
}

// Read and Open know our own formats.
func Read(ctx context.Context, r io.Reader, name string, opt Options) (*Trace, error) {
	return own.Read(ctx, r, name, opt)
}

func Open(ctx context.Context, path string, opt Options) (*Trace, error) {
	return own.Open(ctx, path, opt)
}

func isInput(err error) bool {
	var e *Error
	return errors.As(err, &e)
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

// testBuilder returns a builder of no input.
func testBuilder(format string, opt Options) *Builder {
	in, err := input.New(context.Background(), strings.NewReader(""), "in", opt.input())
	if err != nil {
		panic(err)
	}
	return newBuilder(in, format, opt)
}

// alloc and release are Alloc and Free for tests that have one thing to say.
func (p *PoolBuilder) alloc(n uint64, site, stream uint32, upper bool) (uint32, error) {
	return p.Alloc(Event{Bytes: n, Site: site, Stream: stream, Upper: upper}, 0)
}

func (p *PoolBuilder) release(slot, site, stream uint32, upper bool) error {
	return p.Free(Event{Slot: slot, Site: site, Stream: stream, Upper: upper})
}

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
