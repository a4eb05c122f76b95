// Command leak finds a leak: a loop forgets one block in each step, and the
// pool names the line that allocated it.
//
//	go run ./examples/leak
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device/sim"
	"gpumem/internal/report"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// job is a program with a leak.
type job struct {
	pool   *gpumem.Pool
	losses []gpumem.Block       // of the last ten steps
	masks  map[int]gpumem.Block // by what they were made for
}

// step is one step of the loop.
func (j *job) step(n int) error {
	batch, err := j.pool.Alloc(context.Background(), 24<<20)
	if err != nil {
		return err
	}
	if err := j.mask(n); err != nil {
		return err
	}
	if err := j.loss(); err != nil {
		return err
	}
	return j.pool.Free(batch)
}

// mask keeps attention masks, to make each only once. Here is the mistake: the
// key should be the sequence length, of which there are few. With the step as
// the key no mask is ever found again, and none is ever freed.
func (j *job) mask(step int) error {
	if _, ok := j.masks[step]; ok {
		return nil
	}
	b, err := j.pool.Alloc(context.Background(), 3<<20)
	j.masks[step] = b
	return err
}

// loss keeps the last ten, to print them together. It grows at first, too, but
// it is no leak.
func (j *job) loss() error {
	b, err := j.pool.Alloc(context.Background(), 4)
	j.losses = append(j.losses, b)
	if err == nil && len(j.losses) > 10 {
		err = j.pool.Free(j.losses[0])
		j.losses = j.losses[1:]
	}
	return err
}

// load allocates the weights, which stay.
func (j *job) load() error {
	for range 3 {
		if _, err := j.pool.Alloc(context.Background(), 200<<20); err != nil {
			return err
		}
	}
	return nil
}

func run(w io.Writer) error {
	dev, err := sim.New(sim.Config{Total: 24 << 30})
	if err != nil {
		return err
	}
	pool, err := gpumem.Open(dev, frameworks.Default(), gpumem.WithStacks(true))
	if err != nil {
		return err
	}
	defer pool.Close()
	j := &job{pool: pool, masks: map[int]gpumem.Block{}}
	if err := j.load(); err != nil {
		return err
	}

	// The question: what is alive after 100 steps that was not after 50? The
	// first steps are left out, for what a program keeps on purpose.
	const before, after = 50, 100
	var old []gpumem.Use
	for n := range after {
		if n == before {
			old = pool.Live()
		}
		if err := j.step(n); err != nil {
			return err
		}
	}
	changes := growth(old, pool.Live())

	fmt.Fprintf(w, "What is alive, by who asked for it:\n\n")
	tab := report.NewTable("asked for by", fmt.Sprintf(">after %d steps", before), fmt.Sprintf(">after %d", after), ">growth")
	for _, g := range changes {
		grew := "-"
		if n := g.bytes(); n > 0 {
			grew = size.Format(uint64(n))
		}
		tab.Row(frame(g.now.Stack, 0), size.Format(g.old.Bytes), size.Format(g.now.Bytes), grew)
	}
	if _, err := tab.WriteTo(w); err != nil {
		return err
	}
	worst := changes[0]
	fmt.Fprintf(w, "\nThe leak: %s a step in %d block, asked for by\n",
		size.Format(uint64(worst.bytes())/(after-before)), (worst.now.Blocks-worst.old.Blocks)/(after-before))
	fmt.Fprintf(w, "  %s\n  %s\n", frame(worst.now.Stack, 0), frame(worst.now.Stack, 1))
	return nil
}

// change is the memory of one place at two times.
type change struct{ old, now gpumem.Use }

// growth compares two lists of one pool, the largest growth first. What is no
// longer alive is no leak and left out.
func growth(old, now []gpumem.Use) []change {
	was := map[alloc.Site]gpumem.Use{}
	for _, u := range old {
		was[u.Site] = u
	}
	var out []change
	for _, u := range now {
		out = append(out, change{was[u.Site], u})
	}
	slices.SortStableFunc(out, func(a, b change) int { return cmp.Compare(b.bytes(), a.bytes()) })
	return out
}

// bytes returns the growth.
func (c change) bytes() int64 { return int64(c.now.Bytes) - int64(c.old.Bytes) }

// frame is one line of a stack without its package, "" if there are not that
// many lines.
func frame(stack string, i int) string {
	lines := strings.Split(stack, "\n")
	if i >= len(lines) {
		return ""
	}
	line := lines[i][strings.LastIndex(lines[i], "/")+1:]
	if _, name, ok := strings.Cut(line, "."); ok {
		return name
	}
	return line
}
