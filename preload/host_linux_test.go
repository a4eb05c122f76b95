package preload

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpumem/node/ledger"
)

// group is a control group of a test, and what its files are called.
type group struct{ folder, limit, usage string }

// newGroup makes a control group inside of the test's own, with a limit in bytes.
func newGroup(t *testing.T, limit uint64) group {
	t.Helper()
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip("SKIPPED: no control groups: ", err)
	}
	why := "none has a memory controller"
	for line := range strings.Lines(string(self)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		name := filepath.Join(fields[2], fmt.Sprintf("gpumem-test-%d", os.Getpid()))
		g := group{"/sys/fs/cgroup" + name, "memory.max", "memory.current"}
		switch {
		case fields[1] == "memory":
			g = group{"/sys/fs/cgroup/memory" + name, "memory.limit_in_bytes", "memory.usage_in_bytes"}
		case fields[1] != "":
			continue
		}
		err := os.Mkdir(g.folder, 0o755)
		if err == nil {
			t.Cleanup(func() { _ = os.Remove(g.folder) })
			err = g.setLimit(limit)
		}
		if err == nil {
			return g
		}
		why = err.Error()
	}
	t.Skip("SKIPPED: no control group can be made here: ", why)
	return group{}
}

func (g group) setLimit(bytes uint64) error {
	return os.WriteFile(filepath.Join(g.folder, g.limit), []byte(strconv.FormatUint(bytes, 10)), 0)
}

// number is that of a file, 0 if it has none, and of a line with a name if one is given.
func (g group) number(file, name string) (n uint64) {
	text, _ := os.ReadFile(filepath.Join(g.folder, file))
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 && (name == "" || words[0] == name) {
			n, _ = strconv.ParseUint(words[len(words)-1], 10, 64)
		}
	}
	return n
}

// inside has a command begin in the group.
func (g group) inside(command ...string) []string {
	return append([]string{"/bin/sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, g.folder}, command...)
}

// inSmallHost has a command begin where /proc/meminfo has another machine's figures.
func inSmallHost(t *testing.T, command ...string) []string {
	t.Helper()
	meminfo := filepath.Join(t.TempDir(), "meminfo")
	must(t, os.WriteFile(meminfo, []byte("MemTotal: 1048576 kB\nMemFree: 524288 kB\nMemAvailable: 524288 kB\n"), 0o644))
	words := []string{"unshare", "--user", "--map-root-user", "--mount"}
	words = append(words, "/bin/sh", "-c", `mount --bind "$0" /proc/meminfo && exec "$@"`, meminfo)
	if out, err := exec.Command(words[0], append(words[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no namespace of mounts can be made here: %v %s", err, out)
	}
	return append(words, command...)
}

// TestHostTooSmall: a run whose memory could not leave is refused with the figure before anything starts: for a control
// group, for one above it, and for the host.
func TestHostTooSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: builds the command")
	}
	b := libraries(t)
	gpumem, device := command(t, b)
	for name, tc := range map[string]struct {
		inside func(t *testing.T, command ...string) []string
		by     string
	}{
		"a control group": {func(t *testing.T, command ...string) []string {
			return newGroup(t, 400*mib).inside(command...)
		}, "the control group /"},
		"the one above": {func(t *testing.T, command ...string) []string {
			g := newGroup(t, 400*mib)
			g.folder = filepath.Join(g.folder, "inner")
			must(t, os.Mkdir(g.folder, 0o755))
			t.Cleanup(func() { _ = os.Remove(g.folder) })
			return g.inside(command...)
		}, "the control group /"},
		"the host": {inSmallHost, "the host"},
	} {
		t.Run(name, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			c := gpumem("run", "--device", device, "--mem", "1GiB", "--pool", "elastic", "--lend", "1s", "--", "touch", ran)
			words := tc.inside(t, c.Args...)
			path, err := exec.LookPath(words[0])
			must(t, err)
			c.Path, c.Args = path, words
			out, err := output(c)
			want := "what leaves a lease of 1 GiB needs as much of the host, and " + tc.by
			if err == nil || !strings.Contains(out, want) || !strings.Contains(out, " has room for ") {
				t.Errorf("%v: %q; want a refusal by %s, with what it has room for", err, out, tc.by)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the program ran")
			}
		})
	}
}

// TestHostIsFullLater: the limit of a control group is lowered while a program runs. Its memory stays on the
// GPU, it goes on, and the kernel kills nobody for want of memory.
func TestHostIsFullLater(t *testing.T) {
	g := newGroup(t, 2048*mib)
	tb := newTable(t, 512*mib)
	c := tb.start(lendNever, g.inside(filepath.Join(tb.dir, "turns"), "contents", "7", "64")...)
	c.mustAnswer()
	c.tell("")
	c.mustAnswer()
	// Room for 16 MiB above the margin of package hostmem, of what is not pages of files.
	const margin = 128 * mib
	must(t, g.setLimit(g.number(g.usage, "")+margin+16*mib))
	c.ask(ledger.Pause)
	e := c.until("refusing", func(e ledger.Entry) bool { return e.Reason != ledger.NoReason })
	if e.Reason != ledger.NoHostMemory || e.State != ledger.In || e.OnHost != 0 {
		t.Errorf("%+v; want in, because %v", e, ledger.NoHostMemory)
	}
	c.tell("")
	c.mustAnswer()
	if said := c.said.String(); !strings.Contains(said, "the control group /") {
		t.Errorf("said %q, want who has no room", said)
	}
	if kills := max(g.number("memory.oom_control", "oom_kill"), g.number("memory.events", "oom_kill")); kills > 0 {
		t.Errorf("the kernel has killed %d processes", kills)
	}
	must(t, c.in.Close())
	must(t, c.ended())
}
