package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// number returns the number at the end of the line that begins with prefix.
func number(t *testing.T, lines []string, prefix string) int64 {
	t.Helper()
	for _, l := range lines {
		if strings.HasPrefix(l, prefix) {
			n, err := strconv.ParseInt(l[strings.LastIndexAny(l, " =")+1:], 10, 64)
			if err != nil {
				t.Error(err)
			}
			return n
		}
	}
	t.Errorf("no line begins with %q in:\n%s", prefix, strings.Join(lines, "\n"))
	return 0
}

// outside is what each process counts for its context and libraries.
func outside(t *testing.T, lines []string) int64 {
	t.Helper()
	return number(t, lines, "env GPUMEM_OUTSIDE=")
}

// wantTaken fails unless a container took what its bytes leave beside its context, to the
// last step, and not one more.
func wantTaken(t *testing.T, lines []string, bytes int64) {
	t.Helper()
	if n := number(t, lines, "until ") + outside(t, lines); n > bytes || n < bytes-80*mib {
		t.Errorf("a container took %d bytes with its context, want at most %d and nearly as many; it printed:\n%s", n, bytes, strings.Join(lines, "\n"))
	}
}

func wantLine(t *testing.T, lines []string, want string) {
	t.Helper()
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, want) }) {
		t.Errorf("no line has %q in:\n%s", want, strings.Join(lines, "\n"))
	}
}

// TestRuntime runs the agent with a real container runtime. The test stands for kubelet,
// scheduler and DRA driver.
func TestRuntime(t *testing.T) {
	b := newBench(t)
	b.startAgent()
	test := func(name string, f func(b *bench)) {
		t.Run(name, func(t *testing.T) {
			c := *b
			c.T = t
			f(&c)
			b.number, b.agent = c.number, c.agent
		})
	}

	test("a container has its lease and not a byte more", func(b *bench) {
		p := b.pod("one", b.claim(nvidia, "one", part{"gpu", 0, 2 * gib}))
		lines := p.run("main", "devices", "info", "alloc", fmt.Sprint(2*gib+1), "until", "16Mi", "env", "GPUMEM", "env", "LD_", "show", "/etc/gpumem/lease.json", "show", "/opt/gpumem/lib/leased")
		wantLine(b.T, lines, "devices 1")
		wantLine(b.T, lines, fmt.Sprintf("total %d", 2*gib))
		wantLine(b.T, lines, "refused 2")
		wantTaken(b.T, lines, 2*gib)
		wantLine(b.T, lines, "env GPUMEM_LEASE=/etc/gpumem/lease.json")
		wantLine(b.T, lines, b.uuids[0])
		wantLine(b.T, lines, "show /opt/gpumem/lib/leased: /etc/gpumem/lease.json")
		b.waitEvent(p, "OutOfLease")
		b.Log(strings.Join(lines, "\n"))
	})
	test("a container without a claim is left alone", func(b *bench) {
		p := b.pod("plain", b.claim(nvidia, "plain", part{"gpu", 0, 2 * gib}))
		if lines := p.run("none", "env", "GPUMEM", "show", "/etc/gpumem/lease.json"); len(lines) != 1 || !strings.Contains(lines[0], "missing") {
			b.Errorf("it has:\n%s", strings.Join(lines, "\n"))
		}
	})
	test("the author's environment changes nothing", func(b *bench) {
		p := b.pod("env", b.claim(nvidia, "env", part{"gpu", 0, 2 * gib}))
		for _, env := range []map[string]string{
			{"GPUMEM_OFF": "1"}, {"GPUMEM_LEDGER": ""}, {"GPUMEM_POOL": "off"}, {"GPUMEM_LEASE": "/tmp/mine"}, {"LD_LIBRARY_PATH": simLibrary}, {"GPUMEM_LEDGER_PARTS": "1=1"}, {"GPUMEM_OUTSIDE": "1"},
		} {
			lines := p.runWith("main", env, "until", "16Mi")
			if wantTaken(b.T, lines, 2*gib); b.Failed() {
				b.Fatalf("with %v", env)
			}
		}
	})
	test("two containers and two pods count one share together", func(b *bench) {
		c := b.claim(nvidia, "shared", part{"gpu", 0, 6 * gib})
		first, second := b.pod("shared-1", c), b.pod("shared-2", c)
		holder, err := first.start("main", "alloc", "1Gi", "await", simFolder+"/shared")
		b.check(err)
		_, err = holder.Wait(b.ctx, "await")
		b.check(err)
		lines := first.run("second", "until", "16Mi")
		left := 5*gib - outside(b.T, lines)
		wantTaken(b.T, lines, left)
		wantTaken(b.T, second.run("main", "until", "16Mi"), left)
		b.check(order("shared"))
		_, err = holder.Wait(b.ctx, "")
		b.check(err)
		wantTaken(b.T, second.run("second", "until", "16Mi"), 6*gib)
	})
	test("what was consumed counts and not what was requested", func(b *bench) {
		c := b.claim(nvidia, "rounded", part{"gpu", 0, 2304 * mib})
		wantTaken(b.T, b.pod("rounded", c).run("main", "until", "4Mi"), 2304*mib)
	})
	test("two requests are two GPUs", func(b *bench) {
		c := b.claim(nvidia, "two", part{"a", 0, 2 * gib}, part{"b", 1, 3 * gib})
		p := b.pod("two", c)
		lines := p.run("main", "devices", "until", "16Mi", "show", "/etc/gpumem/lease.json")
		wantLine(b.T, lines, "devices 2")
		wantLine(b.T, lines, b.uuids[0])
		wantLine(b.T, lines, b.uuids[1])
		wantTaken(b.T, lines, 2*gib)
		p.only("second", "b")
		lines = p.run("second", "devices", "until", "16Mi")
		wantLine(b.T, lines, "devices 1")
		wantTaken(b.T, lines, 3*gib)
	})
	test("two shares of one GPU add up", func(b *bench) {
		c := b.claim(ours, "twice", part{"a", 0, gib}, part{"b", 0, 2 * gib})
		lines := b.pod("twice", c).run("main", "devices", "until", "16Mi")
		wantLine(b.T, lines, "devices 1")
		wantTaken(b.T, lines, 3*gib)
	})
	test("two shares of one GPU have one name with NVIDIA's driver", func(b *bench) {
		c := b.claim(nvidia, "collide", part{"a", 0, gib}, part{"b", 0, 2 * gib})
		if _, err := b.pod("collide", c).start("main", "devices"); err == nil {
			b.Error("the container starts")
		} else {
			b.Log(err)
		}
	})
	test("two claims of one GPU add up", func(b *bench) {
		p := b.pod("pair", b.claim(nvidia, "pair-1", part{"gpu", 0, gib}), b.claim(nvidia, "pair-2", part{"gpu", 0, gib}))
		wantTaken(b.T, p.run("main", "until", "16Mi"), 2*gib)
	})
	test("a claim without memory has no lease", func(b *bench) {
		lines := b.pod("unlimited", b.claim(nvidia, "unlimited", part{"gpu", 0, 0})).run("main", "env", "GPUMEM_LEASE", "show", "/etc/gpumem/lease.json")
		if len(lines) != 1 || !strings.Contains(lines[0], "missing") {
			b.Errorf("it has:\n%s", strings.Join(lines, "\n"))
		}
	})
	test("without the claim no container", func(b *bench) {
		c := b.claim(nvidia, "gone", part{"gpu", 0, gib})
		p := b.pod("gone", c)
		b.check(b.api.Remove(c))
		if _, err := p.start("main", "devices"); err == nil || !strings.Contains(err.Error(), "gone") {
			b.Errorf("error %v", err)
		}
		b.waitEvent(p, "LeaseRefused", "default/gone")
	})
	test("without the API server no first container", func(b *bench) {
		p := b.pod("down", b.claim(nvidia, "down", part{"gpu", 0, 2 * gib}))
		b.Cleanup(func() { b.api.SetDown(false) })
		b.api.SetDown(true)
		if _, err := p.start("main", "devices"); err == nil {
			b.Error("the container starts")
		}
		b.api.SetDown(false)
		wantTaken(b.T, p.run("main", "until", "16Mi"), 2*gib)
		b.api.SetDown(true)
		wantTaken(b.T, p.run("main", "until", "16Mi"), 2*gib) // the agent knows the pod
		b.api.SetDown(false)
	})
	test("more than is free is refused", func(b *bench) {
		b.pod("large", b.claim(nvidia, "large", part{"gpu", 1, 10 * gib})).run("main", "info")
		p := b.pod("larger", b.claim(nvidia, "larger", part{"gpu", 1, 10 * gib}))
		if _, err := p.start("main", "info"); err == nil {
			b.Error("the container starts")
		}
		b.waitEvent(p, "LeaseRefused", "default/large")
	})
	test("an agent that is away keeps containers from starting and limits in force", func(b *bench) {
		c := b.claim(nvidia, "away", part{"gpu", 0, 6 * gib})
		p := b.pod("away", c)
		holder, err := p.start("main", "env", "GPUMEM_OUTSIDE", "alloc", "1Gi", "await", simFolder+"/away-1", "until", "16Mi", "await", simFolder+"/away-2")
		b.check(err)
		_, err = holder.Wait(b.ctx, "await")
		b.check(err)
		b.agent.Kill()
		if _, err := p.start("second", "info"); err == nil || !strings.Contains(err.Error(), "gpumem") {
			b.Errorf("a container of a pod with a claim: error %v", err)
		}
		if _, err := b.pod("free").start("none", "info"); err != nil {
			b.Errorf("a container of a pod without claims: %v", err)
		}
		b.check(order("away-1"))
		lines, err := holder.Wait(b.ctx, "await "+simFolder+"/away-2")
		b.check(err)
		wantTaken(b.T, lines, 5*gib)
		b.startAgent()
		if n := number(b.T, p.run("second", "until", "16Mi"), "until "); n != 0 {
			b.Errorf("beside a container that holds the whole share another took %d bytes", n)
		}
		b.check(order("away-2"))
		_, err = holder.Wait(b.ctx, "")
		b.check(err)
		wantTaken(b.T, p.run("second", "until", "16Mi"), 6*gib)
	})
	test("an agent that does not answer keeps containers from starting", func(b *bench) {
		p := b.pod("frozen", b.claim(nvidia, "frozen", part{"gpu", 0, 2 * gib}))
		b.check(syscall.Kill(b.agent.Pid(), syscall.SIGSTOP))
		defer func() { // the runtime has left it
			b.agent.Kill()
			b.startAgent()
		}()
		begin := time.Now()
		if c, err := p.start("main", "show", "/etc/gpumem/lease.json", "until", "16Mi"); err == nil {
			lines, _ := c.Wait(b.ctx, "")
			b.Errorf("after %v the container starts: %q", time.Since(begin), lines)
		}
	})
	test("what the agent takes", func(b *bench) {
		var with, without []time.Duration
		p := b.pod("timed", b.claim(nvidia, "timed", part{"gpu", 0, 2 * gib}))
		for range 10 {
			for _, name := range []string{"main", "none"} {
				begin := time.Now()
				c, err := p.start(name, "pause")
				b.check(err)
				if took := time.Since(begin); name == "main" {
					with = append(with, took)
				} else {
					without = append(without, took)
				}
				b.check(c.Stop(b.ctx, 5))
			}
		}
		slices.Sort(with)
		slices.Sort(without)
		b.Logf("a container's start: %v with a lease, %v without (medians of %d); the agent has %d MiB, at most %d MiB, %d MiB of it its data", with[5], without[5], len(with), b.agent.RSS()>>20, b.agent.PeakRSS()>>20, b.agent.Data()>>20)
		// How much of its file is resident is the kernel's choice; TestCluster has the limit.
		if data := b.agent.Data(); data > 24*mib {
			b.Errorf("the agent has %d MiB of data, want at most 24", data>>20)
		}
	})
}
