package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"gpumem/internal/crashpoint"
	"gpumem/node/internal/registry"
)

// A scenario is one call that a process can be killed in. prepare runs before;
// what it takes stays.
type scenario struct {
	name    string
	prepare func(r *Registry, gpu string) (*Lease, error)
	call    func(r *Registry, gpu string, l *Lease) error
}

func take(r *Registry, gpu string, gibs uint64, copies int) ([]*Lease, error) {
	return r.Acquire(background, Request{Device: gpu, Meter: simulated(gpu), Bytes: gibs * gib, Copies: copies})
}

func took(r *Registry, gpu string) (*Lease, error) {
	l, err := take(r, gpu, 4, 1)
	if err != nil {
		return nil, err
	}
	return l[0], nil
}

// takeTurns takes leases that share by turns.
func takeTurns(r *Registry, gpu string, gibs uint64, copies int) ([]*Lease, error) {
	return r.Acquire(background, Request{Device: gpu, Meter: simulated(gpu), Bytes: gibs * gib, Copies: copies, Turns: true})
}

func tookTurns(r *Registry, gpu string) (*Lease, error) {
	l, err := takeTurns(r, gpu, 12, 1)
	if err != nil {
		return nil, err
	}
	return l[0], nil
}

// died leaves the files of a dead lease and of half a file.
func died(r *Registry, gpu string) (*Lease, error) {
	l, err := took(r, gpu)
	if err != nil {
		return nil, err
	}
	return nil, errors.Join(l.File().Close(), os.WriteFile(leaseGPU(r, l).Path("0123456789abcdef", "new"), []byte("half"), 0o600))
}

var scenarios = []scenario{
	{"acquire", nil, func(r *Registry, gpu string, _ *Lease) error { _, err := take(r, gpu, 4, 1); return err }},
	{"acquire three", nil, func(r *Registry, gpu string, _ *Lease) error { _, err := take(r, gpu, 4, 3); return err }},
	{"acquire by ticket", took, func(r *Registry, gpu string, _ *Lease) error { _, err := take(r, gpu, 4, 1); return err }},
	{"acquire after a death", died, func(r *Registry, gpu string, _ *Lease) error { _, err := take(r, gpu, 4, 1); return err }},
	{"refused", nil, func(r *Registry, gpu string, _ *Lease) error {
		var no *InsufficientMemoryError
		if _, err := take(r, gpu, 20, 1); !errors.As(err, &no) {
			return fmt.Errorf("too much: %v", err)
		}
		return nil
	}},
	{"wait", nil, func(r *Registry, gpu string, _ *Lease) error {
		ctx, cancel := context.WithTimeout(background, registry.Patience)
		defer cancel()
		_, err := r.Acquire(ctx, Request{Device: gpu, Meter: simulated(gpu), Bytes: 20 * gib, Wait: func(Position) { cancel() }})
		if !errors.Is(err, ctx.Err()) {
			return fmt.Errorf("stopped: %v", err)
		}
		return nil
	}},
	{"acquire by turns", nil, func(r *Registry, gpu string, _ *Lease) error { _, err := takeTurns(r, gpu, 4, 2); return err }},
	{"join others by turns", tookTurns, func(r *Registry, gpu string, _ *Lease) error { _, err := takeTurns(r, gpu, 16, 1); return err }},
	{"tell", took, func(_ *Registry, _ string, l *Lease) error { return l.Tell(os.Getppid()) }},
	{"set use", took, func(_ *Registry, _ string, l *Lease) error { return l.SetUse(pod(3), "/ledger") }},
	{"close", took, func(_ *Registry, _ string, l *Lease) error { return l.Close() }},
	{"list", died, func(r *Registry, _ string, _ *Lease) error { _, err := r.List(); return err }},
}

// childStep DIR GPU SCENARIO STEP: runs a scenario and kills itself at that
// step, having written its name. At the end it says "done", and lives until its
// input ends.
func childStep(args []string) error {
	r, err := Open(args[0])
	if err != nil {
		return err
	}
	number, _ := strconv.Atoi(args[2])
	last, _ := strconv.Atoi(args[3])
	s := scenarios[number]
	var l *Lease
	if s.prepare != nil {
		if l, err = s.prepare(r, args[1]); err != nil {
			return err
		}
	}
	steps := 0
	crashpoint.Hook = func(step string) {
		if steps == last {
			fmt.Println(step)
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		steps++
	}
	if err := s.call(r, args[1], l); err != nil {
		return err
	}
	crashpoint.Hook = nil
	fmt.Println("done")
	os.Stdin.Read(make([]byte, 1))
	return nil
}

// TestCrashPoints kills a child at every step of every call, in turn. The
// survivor lease.KeepEvery its own lease, sees nothing else, gets all that is left and
// not more, and nothing is left behind.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	var points atomic.Int64
	t.Cleanup(func() { t.Logf("%d points", points.Load()) })
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for step, ended := 0, false; !ended; step++ {
				r, gpu := newGPU(t)
				mine, err := take(r, gpu, 8, 1)
				must(t, err)
				c := start(t, "step", r.r.Dir(), gpu, i, step)
				said := c.line()
				if ended = said == "done"; said == "" || strings.HasPrefix(said, "error") {
					t.Fatalf("step %d: the child says %q; %s", step, said, &c.errs)
				}
				c.kill(t)
				points.Add(1)
				if all := listed(t, r); len(all) != 1 || all[0].ID != mine[0].ID() {
					t.Fatalf("step %d, %s: listed: %+v", step, said, all)
				}
				if _, err := take(r, gpu, 17, 1); err == nil {
					t.Fatalf("step %d, %s: 17 of 16 GiB", step, said)
				}
				rest, err := take(r, gpu, 8, 2)
				if err != nil {
					t.Fatalf("step %d, %s: what is left: %v", step, said, err)
				}
				starting.RLock()
				for _, l := range append(rest, mine...) {
					err = errors.Join(err, l.Close())
				}
				starting.RUnlock()
				must(t, err)
				if all := files(t, r); len(all) != 0 {
					t.Fatalf("step %d, %s: left: %q", step, said, all)
				}
			}
		})
	}
}
