// Command pool shows the library in use: JAX's default pool on a simulated
// GPU, then three policies side by side.
//
//	go run ./examples/pool
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"gpumem"
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

func run(w io.Writer) error {
	if err := first(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nWhat the device has given, under three policies:\n\n")
	return compare(w)
}

// first uses the library in ten lines and prints what they did.
func first(w io.Writer) error {
	ctx := context.Background()

	dev, err := sim.New(sim.Config{Total: 24 << 30})
	if err != nil {
		return err
	}
	pool, err := gpumem.Open(dev, frameworks.Default()) // what the newest JAX does
	if err != nil {
		return err
	}
	defer pool.Close()
	fmt.Fprintf(w, "Opened on a GPU of 24 GiB; the pool holds %s.\n", size.Format(pool.Stats().PoolBytes))

	block, err := pool.Alloc(ctx, 64<<20)
	if err != nil {
		return err // errors.Is(err, gpumem.ErrOutOfMemory), if there is not enough memory
	}
	fmt.Fprintf(w, "First allocation: a %v; the pool holds %s.\n", block, size.Format(pool.Stats().PoolBytes))

	s := pool.Stats()
	fmt.Fprintf(w, "\nJAX's memory_stats():\n")
	fmt.Fprintf(w, "  num_allocs                %d\n", s.NumAllocs)
	fmt.Fprintf(w, "  bytes_in_use              %d\n", s.BytesInUse)
	fmt.Fprintf(w, "  bytes_limit               %d\n", s.BytesLimit)
	fmt.Fprintf(w, "  largest_free_block_bytes  %d\n", s.LargestFreeBlock)
	fmt.Fprintf(w, "  pool_bytes                %d\n", s.PoolBytes)

	return pool.Free(block)
}

// compare does the same under three policies and writes what the device has
// given after each step: the whole difference between them.
func compare(w io.Writer) error {
	specs := []string{"jax", "jax:preallocate=false", "platform"}
	var columns [][]string
	for _, spec := range specs {
		c, err := steps(spec)
		if err != nil {
			return err
		}
		columns = append(columns, c)
	}
	tab := report.NewTable("after", ">"+specs[0], ">"+specs[1], ">"+specs[2])
	for i, name := range []string{"opening", "a block of 100 MiB", "9 more", "all are freed", "Trim", "Close", "", "driver calls"} {
		tab.Row(name, columns[0][i], columns[1][i], columns[2][i])
	}
	_, err := tab.WriteTo(w)
	return err
}

// steps returns the memory that the device has given after each step, an empty cell and
// the number of driver calls in all.
func steps(spec string) ([]string, error) {
	ctx := context.Background()
	dev, err := sim.New(sim.Config{Total: 24 << 30})
	if err != nil {
		return nil, err
	}
	p, err := frameworks.Parse(spec)
	if err != nil {
		return nil, err
	}
	pool, err := gpumem.Open(dev, p)
	if err != nil {
		return nil, err
	}
	defer pool.Close() // for the errors below; a second Close does no harm
	var out []string
	look := func() {
		held, _ := dev.Held()
		out = append(out, size.Format(held))
	}
	look()

	var blocks []gpumem.Block
	for i := range 10 {
		b, err := pool.Alloc(ctx, 100<<20)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, b)
		if i == 0 || i == 9 {
			look()
		}
	}
	if err := pool.FreeBatch(blocks); err != nil {
		return nil, err
	}
	look()
	if _, err := pool.Trim(); err != nil {
		return nil, err
	}
	look()
	if err := pool.Close(); err != nil {
		return nil, err
	}
	look()
	return append(out, "", fmt.Sprint(dev.Counters().Calls)), nil
}
