package dump_test

// Pools that the tests dump.

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/record/dump"
)

// config is a pool of XLA's.
type config struct {
	Limit                       uint64
	Growth, Spatial, Report2025 bool
}

// pool is what the tests need of one.
type pool interface {
	alloc.Allocator
	alloc.Reporter
	Name() string
}

func newPool(dev device.GPU, cfg config) (pool, error) {
	p := policy.Policy{Kind: policy.BFC, Preallocate: !cfg.Growth, Limit: cfg.Limit, Spatial: cfg.Spatial}
	a, err := build.New(dev, p, build.Options{Report2025: cfg.Report2025})
	if err != nil {
		return nil, err
	}
	return a.(pool), nil
}

// fill makes a pool and has it serve n requests, every second one freed again.
func fill(t testing.TB, cfg config, n int, seed uint64, draw func(*rand.Rand) uint64) pool {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: cfg.Limit, Granularity: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, err := newPool(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	var blocks []alloc.Block
	for range n {
		r := alloc.Request{Bytes: draw(rnd)}
		if cfg.Spatial && rnd.IntN(4) == 0 {
			r.End = alloc.Upper
		}
		b, err := a.Alloc(r)
		if err != nil && !errors.Is(err, alloc.ErrNoMemory) && !errors.Is(err, alloc.ErrNever) {
			t.Fatal(err)
		}
		if err == nil {
			blocks = append(blocks, b)
		}
	}
	rnd.Shuffle(len(blocks), func(i, k int) { blocks[i], blocks[k] = blocks[k], blocks[i] })
	for _, b := range blocks[:len(blocks)/2] {
		if err := a.Free(b); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func small(r *rand.Rand) uint64 { return 1 + r.Uint64N(8192) }

// want is what a dump of a must come to.
func want(a pool) (chunks []dump.Chunk, inUse, largest uint64) {
	for c := range a.Walk {
		tag := dump.Lower
		switch c.Tag {
		case "upper":
			tag = dump.Upper
		case "central_gap":
			tag = dump.Central
		}
		chunks = append(chunks, dump.Chunk{Addr: c.Addr, Size: c.Size, Requested: c.Requested, Live: c.Live, Tag: tag})
		if c.Live {
			inUse += c.Size
		} else if tag != dump.Upper {
			largest = max(largest, c.Size)
		}
	}
	return chunks, inUse, largest
}

func all(d *dump.Dump) (out []dump.Chunk) {
	for _, r := range d.Regions {
		out = append(out, r.Chunks...)
	}
	return out
}

func read(t testing.TB, text string) *dump.Dump {
	t.Helper()
	d, err := dump.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// forms are the texts of other releases, made from one of today.
var forms = []struct {
	name string
	make func(old string) string // from a report in the layout of 2025
}{
	{"2025", func(s string) string { return s }},
	{"early 2026", func(s string) string {
		return regexp.MustCompile(`Total bytes in pool: (\d+) memory_limit_: (\d+) available bytes: (\d+)`).
			ReplaceAllString(s, "Total size in pool: ${1}B memory_limit_: ${2}B available size: ${3}B")
	}},
	{"TensorFlow 1.15", func(s string) string {
		return regexp.MustCompile(`(InUse|Free ) at (\w+) of size (\d+) next (\d+)`).
			ReplaceAllString(s, "$1 at 0x$2 next $4 of size $3")
	}},
	{"TensorFlow 1.4", func(s string) string {
		s = regexp.MustCompile(`I Next region of size \d+\n`).ReplaceAllString(s, "")
		s = regexp.MustCompile(`I Total bytes in pool.*\n`).ReplaceAllString(s, "")
		s = regexp.MustCompile(`\(rounded to \d+\)requested by op \n[^\n]*\n[^\n]*\n`).ReplaceAllString(s, ".  ")
		// Live chunks first, then the free ones.
		var head, live, free, tail strings.Builder
		for l := range strings.Lines(s) {
			at, _, chunk := strings.Cut(l, " next")
			at = strings.Replace(at, " at ", " at 0x", 1) + "\n"
			switch {
			case chunk && strings.HasPrefix(l, "I InUse"):
				live.WriteString(strings.Replace(at, "InUse", "Chunk", 1))
			case chunk && strings.HasPrefix(l, "I Free "):
				free.WriteString(strings.Replace(at, "Free ", "Free", 1))
			case live.Len() == 0:
				head.WriteString(l)
			default:
				tail.WriteString(l)
			}
		}
		return head.String() + live.String() + free.String() + tail.String()
	}},
}

// prefixed puts what logs put before each line, and other lines between.
func prefixed(text, eol string) string {
	var b strings.Builder
	b.WriteString("step 17 loss 0.25" + eol)
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if sev, msg, ok := strings.Cut(line, " "); ok && len(sev) == 1 {
			line = fmt.Sprintf("\x1b[36m(pid=%d)\x1b[0m %s0000 00:00:0%d.000000 1234 bfc_allocator.cc:1]  %s", i%3, sev, i%10, msg)
		}
		b.WriteString(line + eol)
		if i%5 == 0 {
			b.WriteString("[rank0]: something else of size 12 at 7f00" + eol)
		}
	}
	return b.String()
}

// replayed is a fresh pool that has played d's trace.
func replayed(t testing.TB, d *dump.Dump, cfg config) pool {
	t.Helper()
	var text bytes.Buffer
	if err := d.Trace(&text); err != nil {
		t.Fatal(err)
	}
	dev, err := sim.New(sim.Config{Total: cfg.Limit, Granularity: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, err := newPool(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]alloc.Block{}
	for line := range strings.Lines(text.String()) {
		if line[0] == '#' {
			continue
		}
		var op, id string
		var n uint64
		fmt.Sscan(line, &op, &id, &n)
		if op == "f" {
			if err := a.Free(blocks[id]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		r := alloc.Request{Bytes: n}
		if id[0] == 'u' {
			r.End = alloc.Upper
		}
		if blocks[id], err = a.Alloc(r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return a
}
