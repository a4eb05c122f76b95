package tape

// The speed of reading and of replaying from the spool. Each
// benchmark reports ns/event; the recording is made here and is the same on
// every run.

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
)

// generated is a recording of n events: sizes even in 1 byte to 1 MiB, about
// 10,000 blocks live, freed in random order. name makes an ID of a number.
func generated(n int, name func(int) string) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	var out bytes.Buffer
	var live []int
	next := 0
	for range n {
		if len(live) > 0 && rnd.IntN(20000) < len(live) {
			k := rnd.IntN(len(live))
			fmt.Fprintf(&out, "f %s\n", name(live[k]))
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		fmt.Fprintf(&out, "a %s %d\n", name(next), 1+rnd.IntN(1<<20))
		live = append(live, next)
		next++
	}
	return out.Bytes()
}

const benchEvents = 1_000_000

func decimalID(i int) string { return fmt.Sprint(i) }

func benchRead(b *testing.B, data []byte, opt Options) {
	b.SetBytes(int64(len(data)))
	var spooled int
	for b.Loop() {
		tr, err := Read(context.Background(), bytes.NewReader(data), "bench", opt)
		if err != nil {
			b.Fatal(err)
		}
		spooled = *inside[int](tr.spool, "inMem")
		tr.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchEvents, "ns/event")
	b.ReportMetric(float64(spooled)/benchEvents, "B/event")
}

func BenchmarkText(b *testing.B) {
	b.Run("numbers", func(b *testing.B) {
		benchRead(b, generated(benchEvents, decimalID), Options{})
	})
	b.Run("names", func(b *testing.B) {
		benchRead(b, generated(benchEvents, func(i int) string { return fmt.Sprintf("t%d", i) }), Options{})
	})
	b.Run("gzip", func(b *testing.B) {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		w.Write(generated(benchEvents, decimalID))
		w.Close()
		benchRead(b, z.Bytes(), Options{})
	})
}

func BenchmarkCursor(b *testing.B) {
	text := generated(benchEvents, decimalID)
	for _, c := range []struct {
		name  string
		limit int
		data  []byte
	}{{"memory", 0, text}, {"file", -1, text}, {"timed", 0, timedRecording(b, benchEvents)}} {
		b.Run(c.name, func(b *testing.B) {
			tr, err := Read(context.Background(), bytes.NewReader(c.data), "bench", Options{SpoolLimit: c.limit, TempDir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer tr.Close()
			batch := make([]Event, 4096)
			for b.Loop() {
				cur := tr.Pools[0].Cursor()
				for {
					if _, err := cur.Next(batch); err == io.EOF {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchEvents, "ns/event")
		})
	}
}

// BenchmarkWalk knows what is live after each event, on top of what BenchmarkCursor does.
func BenchmarkWalk(b *testing.B) {
	tr, err := Read(context.Background(), bytes.NewReader(generated(benchEvents, decimalID)), "bench", Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	for b.Loop() {
		if err := tr.Pools[0].Walk().Each(context.Background(), nil, func(*Event, *Block) {}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchEvents, "ns/event")
}

// timedRecording is a recording of our own of n events with times.
func timedRecording(t testing.TB, n uint64) []byte {
	var out bytes.Buffer
	w, err := NewWriter(&out)
	for i := uint64(0); i < n/2 && err == nil; i++ {
		if err = w.Alloc(Call{ID: i, Bytes: 256 * (1 + i%4096), Time: 1 + i*20_000}); err == nil && i >= 1000 {
			err = w.Free(Call{ID: i - 1000, Time: 1 + i*20_000})
		}
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// BenchmarkSaved reads our own format, as --save writes it of a text recording and of one
// with times.
func BenchmarkSaved(b *testing.B) {
	for _, c := range []struct {
		name string
		data []byte
	}{{"text", generated(benchEvents, decimalID)}, {"timed", timedRecording(b, benchEvents)}} {
		file := saved(b, mustRead(b, c.data, Options{}))
		b.Run(c.name, func(b *testing.B) {
			benchRead(b, file, Options{})
			b.ReportMetric(float64(len(file))/benchEvents, "fileB/event")
		})
	}
}

func BenchmarkWriter(b *testing.B) {
	w, err := NewWriter(io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	const site = "alloc (pool.go:1)\nstep (train.go:2)"
	for i := uint64(0); b.Loop(); i++ {
		if i >= 1000 {
			err = w.Free(Call{Pool: "cuda:0", ID: i - 1000, Time: i * 100, Site: site})
		}
		if err := errors.Join(err, w.Alloc(Call{Pool: "cuda:0", ID: i, Bytes: 1 << 20, Time: i * 100, Site: site})); err != nil {
			b.Fatal(err)
		}
	}
}
