// Command sharing behaves on a GPU as an unchanged JAX or TensorFlow program
// does: it stands in for one where several share a GPU.
//
//	sharing [-as jax] [-need 3GiB] [-for 1s] [-ready FILE]
//
// The device is the one of $GPUMEM_DEVICE. What it takes of it is for the
// environment to say, read as the framework reads it. At the first operation
// the pool is taken; then it says that it is ready, computes for a while with as
// much memory as it needs, and ends with status 0. Where the memory is not
// there it ends with status 1, and JAX's line on stderr:
//
//	RESOURCE_EXHAUSTED: Out of memory while trying to allocate 768.00MiB with ...
//
// (Before, as JAX does, it waits ten seconds for memory to be freed if anything
// lives in its pool.) What it holds goes back however it ends: the GPU's driver
// sees to that, or the kernel for a simulated one. So no signal is caught.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device/open"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

// program is one run, by its command line and environment.
type program struct {
	as     frameworks.Release
	need   uint64        // bytes that it works with
	works  time.Duration // how long
	ready  string        // file to make when the first operation is done; "": none
	env    policy.Environment
	stdout io.Writer
	stderr io.Writer
}

// run is the program: the command line and the environment in, the exit status
// out: 0, 1 for a program that fails, 2 for bad usage, 134 for one that aborts.
func run(args, environ []string, stdout, stderr io.Writer) int {
	p := program{as: frameworks.Release{Name: "jax"}, need: 3 << 30, env: policy.Environ(environ), stdout: stdout, stderr: stderr}
	flags := flag.NewFlagSet("sharing", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Func("as", "`FRAMEWORK[@VERSION]` to behave as: jax or tensorflow (default the newest jax)", func(s string) (err error) {
		if p.as, err = frameworks.ParseRelease(s); err == nil && p.as.Name != "jax" && p.as.Name != "tensorflow" {
			err = errors.New("want jax or tensorflow")
		}
		return err
	})
	flags.Func("need", "`SIZE` of what it works with (default 3GiB)", func(s string) (err error) {
		p.need, err = size.Parse(s)
		return err
	})
	flags.DurationVar(&p.works, "for", time.Second, "how long it works")
	flags.StringVar(&p.ready, "ready", "", "`FILE` to make when the first operation is done")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "sharing: %q: no words but flags are taken\n", flags.Arg(0))
		return 2
	}
	pol, out := choose(p.as, p.env)
	if out.text != "" {
		fmt.Fprintln(stderr, out.text)
	}
	switch {
	case out.cpu:
		return p.status(p.onCPU())
	case out.status != 0:
		return out.status
	}
	return p.status(p.onGPU(pol))
}

// status prints an error in the program's words and returns the exit status.
func (p *program) status(err error) int {
	var refused *gpumem.OutOfMemoryError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &refused):
		fmt.Fprintln(p.stderr, refused)
	default:
		fmt.Fprintf(p.stderr, "sharing: %v\n", err)
	}
	return 1
}

// onCPU is a program that found no GPU: it goes on without.
func (p *program) onCPU() error {
	if err := p.say("running on the CPU"); err != nil {
		return err
	}
	time.Sleep(p.works)
	return nil
}

func (p *program) onGPU(pol policy.Policy) (err error) {
	spec, note, err := open.Choose("", p.env.Lookup, false)
	if err != nil {
		return err
	}
	if note != "" {
		fmt.Fprintf(p.stderr, "sharing: %s\n", note)
	}
	dev, err := spec.Device()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	pool, err := gpumem.Open(dev, pol, gpumem.WithLog(func(m gpumem.Message) {
		// A pool that backs off is refused dozens of times. JAX logs each; that it
		// did, and to what, is one line.
		if m.Severity != alloc.Error {
			fmt.Fprintln(p.stderr, m.Text)
		}
	}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()

	b, err := pool.Alloc(context.Background(), 4) // jnp.zeros(())
	if err != nil {
		return err
	}
	if err := pool.Free(b); err != nil {
		return err
	}
	s := pool.Stats()
	limit := "no limit"
	if s.BytesLimit > 0 {
		limit = "limit " + size.Format(s.BytesLimit)
	}
	if err := p.say("ready: pool of " + size.Format(s.PoolBytes) + ", " + limit); err != nil {
		return err
	}
	return train(pool, p.need, p.works)
}

// say prints that the first operation is done, and makes the file of -ready.
func (p *program) say(line string) error {
	if p.ready != "" {
		f, err := os.Create(p.ready)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(p.stdout, line)
	return err
}
