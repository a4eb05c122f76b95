// Programs that share a simulated GPU, which only Linux has.

package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/device"
	"gpumem/device/open"
)

var update = flag.Bool("update", false, "write the outputs in README.md anew")

const readme = "README.md"

// gpu makes a GPU of 24 GiB and returns its words.
func gpu(t *testing.T) open.Spec {
	t.Helper()
	words := "sim@" + filepath.Join(t.TempDir(), "gpu")
	create, err := open.Parse(words + ",total=24GiB,create")
	if err == nil {
		err = create.Make()
	}
	if err != nil {
		t.Fatal(err)
	}
	spec, err := open.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// holders are the programs that hold memory of the GPU.
func holders(t *testing.T, spec open.Spec) []device.Process {
	t.Helper()
	list, err := spec.Status()
	if err != nil {
		t.Fatal(err)
	}
	return list[0].Processes
}

// child is a running program. Its output has both streams in order.
type child struct {
	*exec.Cmd
	out *bufio.Reader
}

// start starts a program on a GPU. It does not outlive the test.
func start(t *testing.T, spec open.Spec, env []string, args ...string) *child {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sharing", args...)
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), open.EnvVar + "=" + spec.Text,
		"GOCOVERDIR=" + t.TempDir(), // with go test -cover it complains without
	}, env...)
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // no matter if it has ended
		_ = cmd.Wait()
		r.Close()
	})
	return &child{cmd, bufio.NewReader(r)}
}

// ready is the output up to the line that says so.
func (c *child) ready(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for {
		line, err := c.out.ReadString('\n')
		text.WriteString(line)
		if err != nil {
			t.Fatalf("%v ends before it is ready (%v):\n%s", c.Args, err, text.String())
		}
		if strings.HasPrefix(line, "ready: ") {
			return text.String()
		}
	}
}

// end is the output to its end, and the exit status.
func (c *child) end(t *testing.T) (string, int) {
	t.Helper()
	text, err := io.ReadAll(c.out)
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := c.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), c.ProcessState.ExitCode()
}

// A typed line is a command of README.md.
type typed struct {
	line   string // [NAME=VALUE ...] sharing [ARGS]; with & behind it stays at work
	status int
}

var stories = []struct {
	name  string
	lines []typed
}{
	{"defaults", []typed{{"sharing -for 1m &", 0}, {"sharing -for 1m &", 0}, {"sharing", 1}}},
	{"fractions", []typed{
		{"XLA_CLIENT_MEM_FRACTION=.3 sharing -for 1m &", 0},
		{"XLA_CLIENT_MEM_FRACTION=.3 sharing -for 1m &", 0},
		{"XLA_CLIENT_MEM_FRACTION=.3 sharing", 0},
	}},
	{"tensorflow", []typed{
		{"sharing -as tensorflow -for 1m &", 0},
		{"sharing -need 8GiB", 1},
		{"kill %1", 0},
		{"GPUMEM_TF_LIMIT_MIB=8192 sharing -as tensorflow -for 1m &", 0},
		{"XLA_CLIENT_MEM_FRACTION=.6 sharing -need 8GiB", 0},
	}},
	{"cpu", []typed{{"XLA_CLIENT_MEM_FRACTION=.3 XLA_PYTHON_CLIENT_MEM_FRACTION=.3 sharing", 0}}},
}

// tell types the lines on a new GPU and returns what a terminal shows.
func tell(t *testing.T, lines []typed) string {
	spec := gpu(t)
	var text strings.Builder
	var working []*child
	kill := func() {
		for _, c := range working {
			c.stop(t, syscall.SIGTERM)
		}
		working = nil
	}
	for _, l := range lines {
		words := strings.Fields(l.line)
		if words[0] == "kill" {
			fmt.Fprintf(&text, "$ %s\n", l.line)
			kill() // those that work are all that it names
			continue
		}
		line, background := strings.CutSuffix(l.line, " &")
		words = strings.Fields(line)
		at := slices.Index(words, "sharing")
		c := start(t, spec, words[:at], words[at+1:]...)
		if background {
			fmt.Fprintf(&text, "$ %s\n%s", l.line, c.ready(t))
			working = append(working, c)
			continue
		}
		out, status := c.end(t)
		fmt.Fprintf(&text, "$ %s; echo status $?\n%sstatus %d\n", l.line, out, status)
		if status != l.status {
			t.Errorf("%s: status %d, want %d", l.line, status, l.status)
		}
	}
	if n := len(working); n > 0 {
		text.WriteString("$ kill" + []string{1: " %1", 2: " %1 %2"}[n] + "\n")
		kill()
	}
	if left := holders(t, spec); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return text.String()
}

// stop ends a program by a signal, and by that alone.
func (c *child) stop(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	out, _ := c.end(t)
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != s || out != "" {
		t.Errorf("%v after %v: %v, %q", c.Args, s, c.ProcessState, out)
	}
}

// TestReadme: the outputs of README.md are those of the commands above them.
func TestReadme(t *testing.T) {
	data, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, s := range stories {
		want := "```\n" + tell(t, s.lines) + "```\n"
		begin, end := "<!-- output of "+s.name+" -->\n", "<!-- end -->\n"
		head, rest, ok := strings.Cut(text, begin)
		got, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no output of %s: want a line %q and one %q", readme, s.name, begin, end)
		}
		if *update {
			text = head + begin + want + end + tail
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is not what is printed; go test -update writes it anew (-want +got):\n%s", readme, diff)
		}
	}
	if *update && text != string(data) {
		if err := os.WriteFile(readme, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestThree: what the three programs of the first story hold, seen from outside.
func TestThree(t *testing.T) {
	spec := gpu(t)
	first := start(t, spec, nil, "-for", "1m")
	first.ready(t)
	second := start(t, spec, nil, "-for", "1m")
	if out := second.ready(t); !strings.Contains(out, "backed off") {
		t.Errorf("the second does not back off: %q", out)
	}
	third := start(t, spec, nil)
	out, status := third.end(t)
	if want := "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 768.00MiB with allocator GPU_0_bfc on device 0.\n"; status != 1 || !strings.HasSuffix(out, want) {
		t.Errorf("the third: status %d, %q", status, out)
	}
	held := map[int]uint64{}
	for _, p := range holders(t, spec) {
		held[p.PID] = p.Used
	}
	// 18 GiB times 0.9, eleven times, in grants of 2 MiB.
	want := map[int]uint64{first.Process.Pid: 18 << 30, second.Process.Pid: 5786 << 20}
	if diff := cmp.Diff(want, held); diff != "" {
		t.Errorf("held by process (-want +got):\n%s", diff)
	}
	// However they end, nothing stays.
	first.stop(t, syscall.SIGKILL)
	second.stop(t, syscall.SIGTERM)
	if left := holders(t, spec); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestAtOnce: with a fraction for each, programs that start at the same moment
// all work, TensorFlow among them.
func TestAtOnce(t *testing.T) {
	spec := gpu(t)
	var all []*child
	for range 3 {
		all = append(all, start(t, spec, []string{"XLA_CLIENT_MEM_FRACTION=.24"}))
	}
	all = append(all, start(t, spec, []string{limitVar + "=5898"}, "-as", "tensorflow"))
	for i, c := range all {
		if out, status := c.end(t); status != 0 || out != "ready: pool of 5.76 GiB, limit 5.76 GiB\n" {
			t.Errorf("program %d: status %d, %q", i, status, out)
		}
	}
}
