// Several real programs on one simulated GPU, through gpumem run.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpumem/size"
)

var (
	starts = flag.Int("starts", 3, "how often five programs are started at once")
	kills  = flag.Int("run-kills", 10, "how many launchers or programs are killed")
)

// gpus is a shared simulated GPU, a registry, and the binaries.
type gpus struct {
	bin, dir string
	env      []string
}

// binaries builds the command and the program of examples/sharing, once for all tests, into a
// folder that the end of the tests removes.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gpumem-test")
	if err != nil {
		return "", err
	}
	atEnd = append(atEnd, func() { os.RemoveAll(dir) })
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "gpumem/cmd/gpumem", "gpumem/examples/sharing").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})

func newGPUs(t *testing.T, total string) *gpus {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: builds two programs")
	}
	dir, err := os.MkdirTemp("", "gpus")
	if err != nil {
		t.Fatal(err)
	}
	// The keeper of a share outlives its launcher by a moment and still writes in the
	// registry, which t.TempDir takes for a failure.
	t.Cleanup(func() {
		eventually(t, "the directory can be removed", func() bool { return os.RemoveAll(dir) == nil })
	})
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	g := &gpus{bin: bin, dir: dir}
	device := "sim@" + filepath.Join(g.dir, "gpu")
	g.env = append(os.Environ(), "GPUMEM_DEVICE="+device, "GPUMEM_RUN_DIR="+filepath.Join(g.dir, "registry"), "XDG_CACHE_HOME="+filepath.Join(g.dir, "cache"),
		"PATH="+g.bin+":"+os.Getenv("PATH"))
	if out, err := g.command("gpumem", "devices", "--device", device+",total="+total+",create").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return g
}

func (g *gpus) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(g.bin, name), args...)
	cmd.Env = g.env
	return cmd
}

// free is what the GPU has free now, in bytes.
func (g *gpus) free(t *testing.T) uint64 {
	t.Helper()
	out, err := g.command("gpumem", "devices", "--device", strings.TrimPrefix(g.env[len(g.env)-4], "GPUMEM_DEVICE="), "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Devices []struct {
			Free uint64 `json:"free_bytes"`
		}
	}
	if err := json.Unmarshal(out, &list); err != nil || len(list.Devices) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	return list.Devices[0].Free
}

var ready = regexp.MustCompile(`ready: pool of (.+), limit (.+)\n`)

// TestFiveAtOnce: four programs that behave as JAX does and one as TensorFlow,
// started at the same instant: none fails, and each has what was asked for,
// within 1 %, and no more.
func TestFiveAtOnce(t *testing.T) {
	g := newGPUs(t, "24GiB")
	for round := range *starts {
		var all sync.WaitGroup
		for i := range 5 {
			as := "jax"
			if i == 4 {
				as = "tensorflow"
			}
			all.Go(func() {
				var out, errs bytes.Buffer
				cmd := g.command("gpumem", "run", "--mem", "4GiB", "--", "sharing", "-as", as, "-for", "50ms")
				cmd.Stdout, cmd.Stderr = &out, &errs
				if err := cmd.Run(); err != nil {
					t.Errorf("round %d, %s: %v\n%s%s", round, as, err, out.Bytes(), errs.Bytes())
					return
				}
				m := ready.FindStringSubmatch(out.String())
				if m == nil {
					t.Errorf("round %d, %s: %q", round, as, out.String())
					return
				}
				share := m[1]
				if as == "tensorflow" { // whose pool grows, up to the share
					share = m[2]
				}
				if n, err := size.Parse(share); err != nil || n > 4<<30 || n < 4<<30*99/100 {
					t.Errorf("round %d, %s: a share of %s, %v", round, as, share, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d rounds", *starts)
}

// TestCopies: four at once, as the example's page shows it.
func TestCopies(t *testing.T) {
	g := newGPUs(t, "24GiB")
	cmd := g.command("gpumem", "run", "--copies", "4", "--", "sharing")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.FromSlash("../../examples/sharing/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "$ gpumem run --copies 4 -- sharing; echo status $?\n" + string(out) + "status 0\n"; !strings.Contains(string(page), want) {
		t.Errorf("the page does not have\n%s", want)
	}
}

// TestKilled: a program or its group is killed at random, as others start and wait. Nobody fails who was not killed, and what is free is back in the end.
func TestKilled(t *testing.T) {
	g := newGPUs(t, "24GiB")
	full := g.free(t)
	r := rand.New(rand.NewPCG(1, uint64(*kills)))
	for range *kills {
		victim := g.command("gpumem", "run", "--mem", "16GiB", "--", "sharing", "-for", "1m")
		victim.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := victim.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 100) // the ready line: it has its memory
		if _, err := out.Read(line); err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		waiter := g.command("gpumem", "run", "--wait", "--mem", "16GiB", "--", "sharing", "-for", "1ms")
		waiter.Stderr = &errs
		if err := waiter.Start(); err != nil {
			t.Fatal(err)
		}
		if r.IntN(2) == 0 { // the program alone, and not its group
			_ = victim.Process.Kill()
			_ = victim.Wait()
		}
		_ = syscall.Kill(-victim.Process.Pid, syscall.SIGKILL)
		_ = victim.Wait()
		done := make(chan error, 1)
		go func() { done <- waiter.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("who waited: %v\n%s", err, errs.Bytes())
			}
		case <-time.After(20 * time.Second):
			_ = waiter.Process.Kill()
			t.Fatalf("who waits never gets a turn\n%s", errs.Bytes())
		}
	}
	if now := g.free(t); now != full {
		t.Errorf("%d bytes are free, %d were", now, full)
	}
	t.Logf("%d kills", *kills)
}

// TestSignalledWaitEndsAsByTheSignal: who waits and gets a signal leaves the queue, with
// the status that a program has which does not catch it.
func TestSignalledWaitEndsAsByTheSignal(t *testing.T) {
	g := newGPUs(t, "24GiB")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	holder := exec.CommandContext(ctx, filepath.Join(g.bin, "gpumem"), "run", "--", "sharing", "-for", "1m")
	holder.Env = g.env
	holder.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, _ := holder.StdoutPipe()
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-holder.Process.Pid, syscall.SIGKILL); _ = holder.Wait() }()
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	for sig, want := range map[syscall.Signal]string{syscall.SIGINT: "gpumem: interrupted\n", syscall.SIGTERM: "gpumem: terminated\n", syscall.SIGQUIT: "", syscall.SIGUSR1: ""} {
		waiter := g.command("gpumem", "run", "--wait", "--mem", "1GiB", "--", "sharing")
		errs, _ := waiter.StderrPipe()
		if err := waiter.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := errs.Read(make([]byte, 200)); err != nil { // "waiting for room": it is in the queue
			t.Fatal(err)
		}
		_ = waiter.Process.Signal(sig)
		text, _ := io.ReadAll(errs)
		if err := waiter.Wait(); err == nil || waiter.ProcessState.ExitCode() != 128+int(sig) || string(text) != want {
			t.Errorf("%v: %v, %q; want status %d, %q", sig, err, text, 128+int(sig), want)
		}
	}
	cmd := g.command("gpumem", "run", "--mem", "1GiB", "--", "sharing")
	text, err := cmd.CombinedOutput()
	if err == nil || strings.Contains(string(text), "waiting before") || !strings.Contains(string(text), "leases: process ") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestClosedStderrDoesNotEndTheWaiter: a message that nobody can read is no reason not to
// start the program.
func TestClosedStderrDoesNotEndTheWaiter(t *testing.T) {
	g := newGPUs(t, "24GiB")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	defer write.Close()
	cmd := g.command("gpumem", "run", "--mem", "1GiB", "--record", filepath.Join(g.dir, "recording"), "--", "echo", "started")
	cmd.Stderr = write
	if out, err := cmd.Output(); err != nil || string(out) != "started\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for begin := time.Now(); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestRemovedRecordIsMadeAgain: the keeper puts back what a clean-up of the registry
// has taken, so that lists name the program. In the end nothing is left.
func TestRemovedRecordIsMadeAgain(t *testing.T) {
	g := newGPUs(t, "24GiB")
	cmd := g.command("gpumem", "run", "--mem", "20GiB", "--", "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Write([]byte("ready"))
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	records := func() []string {
		list, _ := filepath.Glob(filepath.Join(g.dir, "registry", "*.lease"))
		return list
	}
	for _, name := range records() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the record is there again", func() bool { return len(records()) == 1 })
	text, _ := g.command("gpumem", "run", "--mem", "20GiB", "--", "true").CombinedOutput()
	if want := "process " + strconv.Itoa(cmd.Process.Pid); !strings.Contains(string(text), want) {
		t.Errorf("%s; want %s", text, want)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	eventually(t, "the record has gone", func() bool { return len(records()) == 0 })
}
