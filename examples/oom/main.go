// Command oom runs a small pool out of memory though more than half of it is free, and
// shows the facts that the error has: how much is missing, which block splits the free
// memory, and which line allocated that block.
//
//	go run ./examples/oom         # the parts that matter
//	go run ./examples/oom -full   # the whole report, in the layout of XLA's logs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

func main() {
	full := flag.Bool("full", false, "print the whole report")
	flag.Parse()
	story := run
	if *full {
		story = whole
	}
	if err := story(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// layers fills the pool: large blocks that are soon freed, and between each two
// of them a small one that stays.
func layers(pool *gpumem.Pool) (large, small []gpumem.Block, err error) {
	for range 6 {
		b, err := activation(pool)
		if err != nil {
			return nil, nil, err
		}
		large = append(large, b)
		if b, err = statistic(pool); err != nil {
			return nil, nil, err
		}
		small = append(small, b)
	}
	return large, small, nil
}

func activation(pool *gpumem.Pool) (gpumem.Block, error) {
	return pool.Alloc(context.Background(), 100<<20)
}

func statistic(pool *gpumem.Pool) (gpumem.Block, error) {
	return pool.Alloc(context.Background(), 64<<10)
}

// fill opens a pool on a GPU of 1 GiB and fragments it. It returns the small
// blocks and why 200 MiB were refused then.
func fill() (*gpumem.Pool, []gpumem.Block, error) {
	dev, err := sim.New(sim.Config{Total: 1 << 30})
	if err != nil {
		return nil, nil, err
	}
	// JAX waits ten seconds for memory to be freed. Here none will be.
	pool, err := gpumem.Open(dev, frameworks.Default(), gpumem.WithStacks(true), gpumem.WithRetry(0))
	if err != nil {
		return nil, nil, err
	}
	large, small, err := layers(pool)
	if err != nil {
		return nil, nil, errors.Join(err, pool.Close())
	}
	for _, b := range large[1:4] {
		if err := pool.Free(b); err != nil {
			return nil, nil, errors.Join(err, pool.Close())
		}
	}
	_, err = pool.Alloc(context.Background(), 200<<20)
	return pool, small, err
}

// refused is fill with its error taken apart; the caller closes the pool.
func refused() (*gpumem.Pool, []gpumem.Block, *gpumem.OutOfMemoryError, error) {
	pool, small, err := fill()
	if pool == nil {
		return nil, nil, nil, err
	}
	var oom *gpumem.OutOfMemoryError
	if !errors.As(err, &oom) {
		err = fmt.Errorf("an out-of-memory error was expected, this came: %w", err)
		return nil, nil, nil, errors.Join(err, pool.Close())
	}
	return pool, small, oom, nil
}

func run(w io.Writer) error {
	pool, small, oom, err := refused()
	if err != nil {
		return err
	}
	defer pool.Close()
	fmt.Fprintf(w, "The error:\n  %v\n\n", oom)

	sites := map[alloc.Site]string{} // who asked, for the blocks named below
	for _, u := range oom.Live {
		sites[u.Site] = u.Stack
	}
	fmt.Fprint(w, oom.Cause.Text(func(s alloc.Site) string { return sites[s] }))

	fmt.Fprintf(w, "\nAlive, by who asked for it:\n")
	for _, u := range oom.Live {
		first, _, _ := strings.Cut(u.Stack, "\n")
		fmt.Fprintf(w, "  %s in %d blocks: %s\n", size.Format(u.Bytes), u.Blocks, first)
	}
	fmt.Fprintf(w, "\n(*OutOfMemoryError).Report() has it all, with XLA's list of every chunk: run this with -full.\n")

	// The proof: free the one block that the report names.
	for _, b := range small {
		if b.Addr == oom.Cause.Pin.Addr {
			if err := pool.Free(b); err != nil {
				return err
			}
		}
	}
	b, err := pool.Alloc(context.Background(), oom.Request.Bytes)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThat one block freed, the same request is served: a %v.\n", b)
	return nil
}

// whole prints the whole report.
func whole(w io.Writer) error {
	pool, _, oom, err := refused()
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = io.WriteString(w, oom.Report())
	return err
}
