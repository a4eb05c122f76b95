package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/procstat"
)

// A hash as containers have.
const id64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestLookChild looks at a real process from its start to after its end.
func TestLookChild(t *testing.T) {
	before := time.Now()
	cmd, end := child(t, "PROC_TEST_MAP=")
	pid := cmd.Process.Pid
	got, err := Look(pid)
	if err != nil {
		t.Fatal(err)
	}
	self, err := Look(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// A hundredth of a second is the kernel's unit, and the clock's step.
	if late := got.Started.Sub(before); late < -20*time.Millisecond || got.Started.After(time.Now().Add(20*time.Millisecond)) {
		t.Errorf("started %v after it was started", late)
	}
	want := Info{
		PID: pid, Parent: os.Getpid(), UID: os.Geteuid(), User: UserName(os.Geteuid()), Command: cmd.Args, Name: self.Name,
		Container: self.Container, Started: got.Started, Start: got.Start, Session: self.Session, Group: self.Group,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if self.Group != syscall.Getpgrp() || self.Parent != os.Getppid() {
		t.Errorf("%+v", self)
	}

	end()
	waitEnded(t, pid)
	if got, err := Look(pid); err == nil || err.Error() != fmt.Sprintf("process %d has ended, or is the kernel's own", pid) {
		t.Errorf("%+v, %v", got, err)
	}
	_ = cmd.Wait()
	if got, err := Look(pid); err == nil || err.Error() != fmt.Sprintf("process %d: there is no such process", pid) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, pid := range []int{0, -1} {
		if _, err := Look(pid); err == nil {
			t.Errorf("looked at %d", pid)
		}
	}
}

// TestParentKilled: a worker whose parent is killed is told from one whose
// parent lives.
func TestParentKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A shell that starts this program and tells its number; it is the first
	// of a session, as in a terminal.
	in, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close() // its end is the worker's
	sh := exec.Command("/bin/sh", "-c", `"$0" <&3 & echo $!; wait`, self)
	sh.ExtraFiles = []*os.File{in}
	sh.Env = []string{"PROC_TEST_MAP="}
	sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Skip(err) // no shell
	}
	in.Close()
	lines := bufio.NewScanner(out)
	next := func() string {
		if !lines.Scan() {
			t.Fatal("no line", lines.Err())
		}
		return lines.Text()
	}
	pid := 0
	for range 2 { // in any order
		if n, err := strconv.Atoi(next()); err == nil {
			pid = n
		}
	}
	info, err := Look(pid)
	if err != nil || info.Parent != sh.Process.Pid || info.ParentGone || info.Session != sh.Process.Pid {
		t.Errorf("%+v, %v", info, err)
	}
	if leader, err := Look(sh.Process.Pid); err != nil || leader.ParentGone {
		t.Errorf("%+v, %v", leader, err)
	}
	if err := sh.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = sh.Process.Wait()
	info, err = Look(pid)
	if err != nil || info.Parent == sh.Process.Pid || !info.ParentGone {
		t.Errorf("its parent is killed: %+v, %v", info, err)
	}
	keep.Close()
	for { // until it has ended
		if _, err := io.ReadAll(out); err == nil {
			break
		}
	}
}

func TestGone(t *testing.T) {
	const (
		terminal = "session-3.scope"
		service  = "train.service"
	)
	of := func(name string, group, session int) Stat { return Stat{Name: name, Group: group, Session: session} }
	yes, no := func() bool { return true }, func() bool { return false }
	systemd, tini, bash := of("systemd", 1, 1), of("tini", 1, 1), of("bash", 1, 1)
	for _, tc := range []struct {
		name string
		k    kin
		want bool
	}{
		{"of a living parent", kin{pid: 50, self: of("python3", 40, 30), parent: of("python3", 40, 30), unit: terminal}, false},
		{"a job of a shell", kin{pid: 50, self: of("python3", 50, 30), parent: of("bash", 30, 30), unit: terminal}, false},
		{"behind a pipe whose first has ended", kin{pid: 50, self: of("python3", 49, 30), parent: of("bash", 30, 30), unit: terminal}, false},
		{"leader of a session, of a living parent", kin{pid: 50, self: of("python3", 50, 50), parent: of("torchrun", 40, 30), unit: terminal}, false},
		{"a terminal in a terminal", kin{pid: 50, self: of("bash", 50, 50), parent: of("tmux: server", 40, 40), unit: terminal}, false},

		{"a worker, in a terminal", kin{pid: 50, self: of("python3", 40, 30), parent: systemd, unit: terminal}, true},
		{"a worker, of systemd --user", kin{pid: 50, self: of("python3", 40, 30), parent: of("systemd", 900, 900), unit: terminal}, true},
		{"a worker, no systemd", kin{pid: 50, self: of("python3", 40, 30), parent: of("init", 1, 1)}, true},
		{"a worker, the first has no session", kin{pid: 50, self: of("python3", 40, 30), parent: of("init", 0, 0)}, true},
		{"a worker that leads a session", kin{pid: 50, self: of("python3", 50, 50), parent: systemd, unit: terminal}, true},
		{"the same, no systemd", kin{pid: 50, self: of("python3", 50, 50), parent: of("init", 1, 1)}, false},
		{"a worker in a living service", kin{pid: 50, self: of("python3", 40, 40), parent: systemd, unit: service}, true},
		{"a job whose shell has ended", kin{pid: 50, self: of("python3", 50, 30), parent: systemd, unit: terminal, leaderGone: yes}, true},

		{"a service", kin{pid: 50, self: of("ollama", 50, 50), parent: systemd, unit: service}, false},
		{"a service that goes to the background", kin{pid: 50, self: of("nv-hostengine", 40, 40), parent: systemd, unit: service, leaderGone: yes}, false},
		{"an app of the desktop", kin{pid: 50, self: of("blender", 40, 30), parent: of("systemd", 900, 900), unit: "app-gnome-blender-50.scope"}, false},
		{"nohup", kin{pid: 50, self: of("python3", 50, 30), parent: systemd, unit: terminal, leaderGone: yes, noHangup: true}, false},
		{"a worker under nohup", kin{pid: 51, self: of("python3", 50, 30), parent: systemd, unit: terminal, leaderGone: yes, noHangup: true}, true},

		{"tini's program", kin{pid: 7, self: of("python3", 7, 1), parent: tini, first: yes, inContainer: true}, false},
		{"tini's program's worker", kin{pid: 9, self: of("python3", 7, 1), parent: tini, first: yes, inContainer: true}, true},
		{"dumb-init's program's worker", kin{pid: 9, self: of("python3", 7, 7), parent: of("dumb-init", 1, 1), first: yes, inContainer: true}, true},
		{"a worker of a container's first", kin{pid: 9, self: of("python3", 1, 1), parent: of("python3", 1, 1), first: yes}, false},
		{"behind a pipe in a container's shell", kin{pid: 9, self: of("python3", 8, 1), parent: bash, first: yes}, false},
		{"in another one's container", kin{pid: 50, self: of("python3", 50, 50), parent: systemd, unit: "docker-x.scope", inContainer: true}, false},
		{"a session that cannot be seen", kin{pid: 9, self: of("python3", 0, 0), parent: of("python3", 1, 1), first: yes}, false},
	} {
		if tc.k.first == nil {
			tc.k.first = no
		}
		if tc.k.leaderGone == nil {
			tc.k.leaderGone = no
		}
		if got := tc.k.gone(); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// lookFixture is a root with process 70, whose parent is 60, a root's systemd.
func lookFixture(t *testing.T, change map[string]string) root {
	t.Helper()
	files := map[string]string{
		"uptime":     "1000.00 500.00\n",
		"70/stat":    "70 (a) (b\n) S 60 70 65 0 -1 1 1 1 1 1 1 1 1 1 20 0 9 0 99000 1 1 1\n",
		"70/status":  "Name:\ta) (b\\n\nUid:\t0\t3999999999\t0\t0\nNSpid:\t70\nSigIgn:\t0000000000001000\n",
		"70/cgroup":  "0::/user.slice/user-1000.slice/session-3.scope\n",
		"70/cmdline": "python3\x00-c\x00\x00x y\x00",
		"60/stat":    "60 (systemd) S 0 60 60 0 -1 1 1 1 1 1 1 1 1 1 20 0 1 0 5 1 1 1\n",
		"60/status":  "Uid:\t0\t0\t0\t0\nNSpid:\t60\t1\n",
	}
	for name, text := range change {
		files[name] = text
		if text == "-" {
			delete(files, name)
		}
	}
	dir := t.TempDir()
	write(t, dir, files)
	return root(dir)
}

func TestLookFixture(t *testing.T) {
	want := Info{
		PID: 70, Parent: 60, ParentGone: true, UID: 3999999999, User: "3999999999", Command: []string{"python3", "-c", "", "x y"},
		Name: "a) (b\n", Start: 99000, Session: 65, Group: 70,
	}
	for _, tc := range []struct {
		name   string
		change map[string]string
		want   func(*Info)
		fails  string
	}{
		{name: "as it is", want: func(*Info) {}},
		{name: "nohup", change: map[string]string{"70/status": "Uid:\t0\t3999999999\t0\t0\nSigIgn:\t0000000000000001\n"}, want: func(i *Info) { i.ParentGone = false }},
		{name: "its parent is hidden", change: map[string]string{"60/stat": "-"}, want: func(i *Info) { i.ParentGone = false }},
		{name: "in a container", change: map[string]string{"70/cgroup": "12:pids:/docker/" + id64 + "\n1:name=systemd:/docker/" + id64 + "\n"},
			want: func(i *Info) { i.Container = "0123456789ab" }},
		{name: "the first of a container has taken it in", change: map[string]string{
			"60/stat": "60 (tini) S 0 65 65 0 -1 1 1 1 1 1 1 1 1 1 20 0 1 0 5 1 1 1\n", "70/stat": "70 (a) (b\n) S 60 66 65 0 -1 1 1 1 1 1 1 1 1 1 20 0 9 0 99000\n"},
			want: func(i *Info) { i.Group = 66 }},
		{name: "a service in the background", change: map[string]string{"70/cgroup": "0::/system.slice/a.service\n"}, want: func(i *Info) { i.ParentGone = false }},
		{name: "setproctitle", change: map[string]string{"70/cmdline": "ray::train(x=1)\x00\x00\x00\x00"}, want: func(i *Info) { i.Command = []string{"ray::train(x=1)"} }},
		{name: "no command", change: map[string]string{"70/cmdline": ""}, want: func(i *Info) { i.Command = nil }},
		{name: "its first thread has ended", change: map[string]string{"70/stat": "70 (a) (b\n) Z 60 70 65 0 -1 1 1 1 1 1 1 1 1 1 20 0 9 0 99000\n"}, want: func(*Info) {}},
		{name: "ended", change: map[string]string{"70/stat": "70 (x) Z 60 70 65 0 -1 1 1 1 1 1 1 1 1 1 20 0 1 0 99000\n"}, fails: "process 70 has ended, or is the kernel's own"},
		{name: "not there", change: map[string]string{"70/stat": "-"}, fails: "process 70 has ended, or is the kernel's own"},
		{name: "gone meanwhile", change: map[string]string{"70/cmdline": "-"}, fails: "process 70 has ended, or is the kernel's own"},
		{name: "another stat", change: map[string]string{"70/stat": "70 x"}, fails: `process 70: cannot read its state "70 x"`},
		{name: "no user", change: map[string]string{"70/status": ""}, fails: "process 70: its status has no user"},
		{name: "no uptime", change: map[string]string{"uptime": "soon"}, fails: `process 70: cannot read the machine's uptime "soon"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := lookFixture(t, tc.change).look(70)
			if tc.fails != "" {
				if err == nil || err.Error() != tc.fails || !got.Started.IsZero() || got.PID != 0 {
					t.Errorf("%+v, %v, want %s", got, err, tc.fails)
				}
				return
			}
			want := want
			tc.want(&want)
			if age := time.Since(got.Started); age < 9*time.Second || age > 5*time.Minute {
				t.Errorf("started %v ago, want 10 s", age)
			}
			got.Started = want.Started
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

func TestParseCgroup(t *testing.T) {
	const short = "0123456789ab"
	for _, tc := range []struct{ name, text, container, unit string }{
		{"none", "", "", ""},
		{"the machine's", "0::/\n", "", ""},
		{"a login", "0::/user.slice/user-1000.slice/session-3.scope\n", "", "session-3.scope"},
		{"an app", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1.scope\n", "", "vte-spawn-1.scope"},
		{"a part of a service", "0::/system.slice/train.service/workers\n", "", "train.service"},
		{"docker, systemd", "0::/system.slice/docker-" + id64 + ".scope\n", short, "docker-" + id64 + ".scope"},
		{"docker, version 1", "12:pids:/docker/" + id64 + "\n1:name=systemd:/docker/" + id64 + "\n0::/system.slice/containerd.service\n", short, "containerd.service"},
		{"podman", "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id64 + ".scope/container\n", short, "libpod-" + id64 + ".scope"},
		{"podman's monitor", "0::/machine.slice/libpod-conmon-" + id64 + ".scope\n", "", "libpod-conmon-" + id64 + ".scope"},
		{"kubernetes, systemd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podaa_bb.slice/cri-containerd-" + id64 + ".scope\n", short, "cri-containerd-" + id64 + ".scope"},
		{"kubernetes", "0::/kubepods/besteffort/podaa-bb/" + id64 + "\n", short, ""},
		{"kubernetes, in containerd", "0::/system.slice/containerd.service/kubepods-burstable-podaa.slice:cri-containerd:" + id64 + "\n", short, "containerd.service"},
		{"cri-o", "0::/kubepods.slice/crio-" + id64 + ".scope\n", short, "crio-" + id64 + ".scope"},
		{"in a container", "0::/docker/" + strings.Repeat("f", 64) + "/docker/" + id64 + "\n", short, ""},
		{"beside ours", "0::/../../" + id64 + "\n", short, ""},
		{"no hash", "0::/docker/" + id64[:32] + "\n0::/" + strings.ToUpper(id64) + "\n0::/x" + id64 + "\n", "", ""},
		{"colons", "0::/a:b/docker-" + id64 + ".scope", short, "docker-" + id64 + ".scope"},
	} {
		container, unit := parseCgroup(tc.text)
		if container != tc.container || unit != tc.unit {
			t.Errorf("%s: %q, %q; want %q, %q", tc.name, container, unit, tc.container, tc.unit)
		}
	}
}

func TestOpens(t *testing.T) {
	cmd, end := child(t, "PROC_TEST_MAP=")
	pid := cmd.Process.Pid
	for prefix, want := range map[string]bool{"pipe:": true, "/dev/nvidia": false} {
		if got, err := Opens(pid, prefix); got != want || err != nil {
			t.Errorf("%s: %v, %v", prefix, got, err)
		}
	}
	end()
	waitEnded(t, pid)
	if got, err := Opens(pid, "pipe:"); got || err == nil {
		t.Errorf("ended: %v, %v", got, err)
	}
	if _, err := Opens(0, ""); err == nil {
		t.Error("process 0")
	}
}

func TestHostPIDs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"self/ns/": ""})
	for link, want := range map[string]bool{"pid:[4026531836]": true, "pid:[4026532836]": false} {
		name := filepath.Join(dir, "self", "ns", "pid")
		_ = os.Remove(name)
		if err := os.Symlink(link, name); err != nil {
			t.Fatal(err)
		}
		if got := root(dir).hostPIDs(); got != want {
			t.Errorf("%s: %v", link, got)
		}
	}
	if root(t.TempDir()).hostPIDs() {
		t.Error("with no link")
	}
	HostPIDs() // as the machine has it
}

// FuzzStat: what is written as the kernel does is read as it was, and nothing
// else is read as something that cannot be.
func FuzzStat(f *testing.F) {
	f.Add("python3", "1 (x) S 1 1 1")
	f.Add(") S 1 (", "70 (a) Z 60 70 65 0 -1 1 1 1 1 1 1 1 1 1 20 0 9 0 99000")
	f.Fuzz(func(t *testing.T, name, text string) {
		want := Stat{Name: name, State: 'S', Parent: 1, Group: 2, Session: 3, Threads: 4, Start: 5}
		if got, ok := procstat.Parse("9 (" + name + ") S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 5 0 0\n"); !ok || got != want {
			t.Errorf("%+v, %v", got, ok)
		}
		if s, ok := procstat.Parse(text); !ok && s != (Stat{}) && s.Start != 0 || min(s.Parent, s.Group, s.Session, s.Threads) < 0 {
			t.Errorf("%q: %+v, %v", text, s, ok)
		}
		parseStatus(text)
	})
}

// FuzzCgroup: an id is 12 digits that are there.
func FuzzCgroup(f *testing.F) {
	f.Add("0::/system.slice/docker-" + id64 + ".scope\n")
	f.Add("1:name=systemd:/x.service\n0::/\n::\n")
	f.Fuzz(func(t *testing.T, text string) {
		container, unit := parseCgroup(text)
		if container != "" && (len(container) != 12 || !strings.Contains(text, container)) || !strings.Contains(text, unit) || strings.ContainsAny(unit, "/\n") {
			t.Errorf("%q, %q of %q", container, unit, text)
		}
	})
}

func BenchmarkLook(b *testing.B) {
	for b.Loop() {
		if _, err := Look(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}
