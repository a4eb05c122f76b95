package trace

// This file is for the speed of reading and of replaying from the spool. Each
// benchmark reports ns/event; the recording is made here and is the same on
// every run.

import (
	"bytes"
	"compress/gzip"
	"context"
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
		spooled = tr.spool.inMem
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
	for _, c := range []struct {
		name  string
		limit int
	}{{"memory", 0}, {"file", -1}} {
		b.Run(c.name, func(b *testing.B) {
			data := generated(benchEvents, decimalID)
			tr, err := Read(context.Background(), bytes.NewReader(data), "bench", Options{SpoolLimit: c.limit, TempDir: b.TempDir()})
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
