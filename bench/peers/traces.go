package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gpumem/record/formats"
	"gpumem/record/trace"
)

// column is a trace and the device that it runs on.
type column struct {
	title  string
	file   string // in the testdata folder, without .txt; "" means the one made here
	device uint64 // bytes; as in the root package's perf_test.go
}

var columns = []column{
	{"train_lifo", "bfc/train_lifo", 24 << 30},
	{"mltrain", "peers/mltrain", 32 << 30},
	{"steady_1000", "bfc/steady_1000", 16 << 30},
	{"loguniform", "bfc/loguniform_200k", 16 << 30},
	{"uniform_1m", "bfc/uniform_1m", 6 << 30},
	{"pressure", "bfc/pressure_oom", 8 << 30},
	{"100k live", "", 8 << 30},
	{"adv_frag", "bfc/adversarial_frag", 4 << 30},
	{"adv_bin", "peers/adv_bin", 1 << 30},
}

// input is a column's trace, read.
type input struct {
	column
	trace  *trace.Trace
	events []trace.Event
	path   string // of the same as replay.cc reads it
}

// open reads the trace and writes it into the folder, with slots as names.
func (c column) open(ctx context.Context, testdata, folder string) (*input, error) {
	in := &input{column: c, path: filepath.Join(folder, strings.ReplaceAll(c.title, " ", "_")+".txt")}
	var err error
	if c.file == "" {
		in.trace, err = formats.Read(ctx, strings.NewReader(liveTrace()), c.title, trace.Options{})
	} else {
		var found []string
		found, err = filepath.Glob(filepath.Join(testdata, c.file+".txt*"))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("%s: found %d such traces in %s", c.file, len(found), testdata)
		}
		if err == nil {
			in.trace, err = formats.Open(ctx, found[0], trace.Options{})
		}
	}
	if err != nil {
		return nil, err
	}
	pool := in.trace.Pools[0]
	in.events = make([]trace.Event, pool.Events)
	cursor := pool.Cursor()
	for n := 0; n < len(in.events); {
		k, err := cursor.Next(in.events[n:])
		if err != nil {
			return nil, err
		}
		n += k
	}
	f, err := os.Create(in.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	for _, e := range in.events {
		if e.Op == trace.Free {
			fmt.Fprintln(w, "f", e.Slot)
		} else {
			fmt.Fprintln(w, "a", e.Slot, e.Bytes)
		}
	}
	return in, w.Flush()
}

// liveTrace is perf_test.go's trace of 100,000 live blocks of 256 bytes to 4 KiB:
// filled, then freed and allocated at random.
func liveTrace() string {
	const live = 100_000
	rnd := uint64(1)
	next := func(n uint64) uint64 {
		rnd = rnd*6364136223846793005 + 1442695040888963407
		return rnd >> 33 % n
	}
	var b strings.Builder
	alloc := func(w io.Writer, i uint64) { fmt.Fprintln(w, "a", i, 256+next(4096-256)) }
	for i := range uint64(live) {
		alloc(&b, i)
	}
	for range 450_000 {
		i := next(live)
		fmt.Fprintln(&b, "f", i)
		alloc(&b, i)
	}
	return b.String()
}
