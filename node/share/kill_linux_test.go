package share

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var background = context.Background()

var (
	kills  = flag.Int("kills", 50, "how often TestKill kills")
	starts = flag.Int("starts", 50, "how often TestDoubleStart starts two at once")
)

// TestDoubleStart: two at the same instant, each for half; both have it. Five registries
// share the starts, since most of a start is a wait.
func TestDoubleStart(t *testing.T) {
	t.Parallel()
	const registries = 5
	for k := range registries {
		t.Run(fmt.Sprint("registry ", k), func(t *testing.T) {
			t.Parallel()
			r, gpu := newGPU(t)
			for range (*starts + registries - 1) / registries {
				startTwo(t, r, gpu)
			}
			if all := files(t, r); len(all) != 0 {
				t.Errorf("left: %q", all)
			}
		})
	}
}

// startTwo starts two programs at once, each in a lease of half the GPU, and ends them.
func startTwo(t *testing.T, r *Registry, gpu string) {
	t.Helper()
	pair := [2]*child{command("launch", r.r.Dir(), gpu, 12, 1, ""), command("launch", r.r.Dir(), gpu, 12, 1, "")}
	var wg sync.WaitGroup
	for _, c := range pair {
		wg.Go(func() { c.begin(t) })
	}
	wg.Wait()
	for _, c := range pair {
		c.said(t, "started")
	}
	for _, c := range pair {
		c.end(t)
	}
}

// party is somebody that TestKill may kill: one that holds or waits, or a
// launcher with its program.
type party struct {
	*child
	mu      sync.Mutex
	program int    // 0: none yet
	said    string // the last line
}

// TestKill kills holders, waiters, launchers and programs at random moments. At
// every look the leases fit, the queue goes on, and in the end all is free.
func TestKill(t *testing.T) {
	r, gpu := newGPU(t)
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	spawn := func() *party {
		role := []string{"hold", "launch"}[rnd.IntN(2)]
		p := &party{child: start(t, role, r.r.Dir(), gpu, 3+rnd.IntN(8), 1, "wait")}
		go func() {
			for line := p.line(); line != ""; line = p.line() {
				p.mu.Lock()
				if p.said = line; strings.HasPrefix(line, "started") {
					fmt.Sscanf(line, "started %d", &p.program)
				}
				p.mu.Unlock()
			}
		}()
		return p
	}
	state := func(p *party) (string, int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.said, p.program
	}
	has := func(p *party) bool {
		said, _ := state(p)
		return strings.HasPrefix(said, "have") || strings.HasPrefix(said, "started")
	}
	var parties []*party
	for range 6 {
		parties = append(parties, spawn())
	}
	orphans := map[int]bool{}
	for range *kills {
		for end := time.Now().Add(time.Duration(rnd.IntN(40)) * time.Millisecond); time.Now().Before(end); {
			var sum uint64
			for _, e := range listed(t, r) {
				if e.State == Holds {
					sum += e.Bytes
				}
			}
			if sum > 24*gib {
				t.Fatalf("the leases come to %d GiB", sum/gib)
			}
		}
		i := rnd.IntN(len(parties))
		p := parties[i]
		must(t, p.Process.Kill())
		p.done = true
		p.Wait()
		if _, program := state(p); program != 0 {
			orphans[program] = true
		}
		if said, _ := state(p); strings.HasPrefix(said, "error") {
			t.Fatalf("%v says %q", p.Args, said)
		}
		for o := range orphans { // some live on for a while, with the lease
			if rnd.IntN(2) == 0 {
				must(t, syscall.Kill(o, syscall.SIGKILL))
				delete(orphans, o)
			}
		}
		parties[i] = spawn()
	}
	// Of some the launcher was killed before it could say who they are.
	must(t, os.WriteFile(gpu+".stop", nil, 0o600))
	// The queue has not stalled: each has its turn, if those before it end.
	for len(parties) > 0 {
		eventually(t, "somebody has its turn", func() bool {
			for i, p := range parties {
				if said, _ := state(p); strings.HasPrefix(said, "error") || strings.HasPrefix(said, "no") {
					t.Fatalf("%v says %q", p.Args, said)
				}
				if has(p) {
					p.in.Close()
					p.done = true
					p.Wait()
					parties = append(parties[:i:i], parties[i+1:]...)
					return true
				}
			}
			return false
		})
	}
	begin := time.Now()
	eventually(t, "all is free", func() bool {
		st, err := simulated(gpu).Status()
		must(t, err)
		return st.Free == 24*gib && len(listed(t, r)) == 0
	})
	leases, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: simulated(gpu)})
	must(t, err)
	must(t, leases[0].Close())
	t.Logf("%d kills; all was free again %v after the last had ended", *kills, time.Since(begin))
}
