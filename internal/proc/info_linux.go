package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/internal/procstat"
)

func look(pid int) (Info, error)                 { return system.look(pid) }
func hostPIDs() bool                             { return system.hostPIDs() }
func opens(pid int, prefix string) (bool, error) { return system.opens(pid, prefix) }
func (r root) read(pid int, n string) (string, error) {
	b, err := os.ReadFile(r.file(pid, n))
	if err != nil {
		return "", r.why(pid, err)
	}
	return string(b), nil
}

// look reads everything between two looks at what would be another if the
// number were given to another process, or the parent ended, in between.
func (r root) look(pid int) (Info, error) {
	if err := check(pid); err != nil {
		return Info{}, err
	}
	// A parent ends once; the one after it may end as well, but not for long.
	for range 10 {
		before, err := r.stat(pid)
		if err != nil {
			return Info{}, err
		}
		info, err := r.info(pid, before)
		if err != nil {
			return Info{}, err
		}
		after, err := r.stat(pid)
		if err != nil {
			return Info{}, err
		}
		before.State, before.Threads, after.State, after.Threads = 0, 0, 0, 0
		if before == after {
			return info, nil
		}
	}
	return Info{}, fmt.Errorf("process %d changes faster than it can be looked at", pid)
}

func (r root) info(pid int, s Stat) (Info, error) {
	texts := map[string]string{}
	for _, name := range []string{"status", "cgroup", "cmdline"} {
		text, err := r.read(pid, name)
		if err != nil {
			return Info{}, err
		}
		texts[name] = text
	}
	about, ok := parseStatus(texts["status"])
	if !ok {
		return Info{}, fmt.Errorf("process %d: its status has no user", pid)
	}
	started, err := r.started(s.Start)
	if err != nil {
		return Info{}, fmt.Errorf("process %d: %w", pid, err)
	}
	container, unit := parseCgroup(texts["cgroup"])
	info := Info{
		PID: pid, Parent: s.Parent, UID: about.uid, User: UserName(about.uid), Command: words(texts["cmdline"]), Name: s.Name,
		Container: container, Started: started, Start: s.Start, Session: s.Session, Group: s.Group,
	}
	if s.Parent > 0 {
		// A parent that is hidden, or has just ended, tells nothing.
		if p, err := r.stat(s.Parent); err == nil {
			k := kin{pid: pid, self: s, parent: p, unit: unit, inContainer: container != "", noHangup: about.noHangup}
			k.first = func() bool {
				text, _ := r.read(s.Parent, "status")
				parent, _ := parseStatus(text)
				return parent.inner == 1
			}
			k.leaderGone = func() bool {
				_, err := r.stat(s.Session)
				return err != nil
			}
			info.ParentGone = k.gone()
		}
	}
	return info, nil
}

func (r root) stat(pid int) (Stat, error) {
	text, err := r.read(pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	s, ok := procstat.Parse(text)
	if !ok {
		return Stat{}, fmt.Errorf("process %d: cannot read its state %q", pid, text)
	}
	// Other threads of one whose first thread has ended run on.
	if s.Ended() && s.Threads <= 1 {
		return Stat{}, fmt.Errorf("process %d has ended, or is the kernel's own", pid)
	}
	return s, nil
}

// status is what is needed of a process's file of that name.
type status struct {
	uid      int
	noHangup bool // it ignores the signal that a terminal's end sends
	inner    int  // its number in its own namespace; 1: it is the first process there
}

func parseStatus(text string) (s status, ok bool) {
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		switch {
		case name == "Uid" && len(f) == 4: // real, effective, saved, for files
			n, err := strconv.ParseUint(f[1], 10, 32)
			if err != nil {
				return status{}, false
			}
			s.uid, ok = int(n), true
		case name == "SigIgn" && len(f) == 1:
			mask, err := strconv.ParseUint(f[0], 16, 64)
			s.noHangup = err == nil && mask&1 != 0 // bit 0 is signal 1, SIGHUP
		case name == "NSpid" && len(f) > 0: // from our namespace to its own
			s.inner, _ = strconv.Atoi(f[len(f)-1])
		}
	}
	return s, ok
}

// containerID is the last part of the name of a container's cgroup, or the name
// itself: docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope,
// libpod-ID.scope with systemd, and ID without; containerd's own may have a
// namespace in front. Their monitors (crio-conmon-ID, libpod-conmon-ID) run
// outside.
var containerID = regexp.MustCompile(`^(?:.*[-:])?([0-9a-f]{64})(?:\.scope)?$`)

// parseCgroup finds the container, and the unit of systemd, that a process runs
// in; each is empty where there is none.
func parseCgroup(text string) (container, unit string) {
	for line := range strings.Lines(text) {
		// HIERARCHY:CONTROLLERS:PATH. Hierarchy 0 is version 2.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		systemd := parts[0] == "0" || parts[1] == "name=systemd"
		for part := range strings.SplitSeq(parts[2], "/") {
			if m := containerID.FindStringSubmatch(part); m != nil && !strings.Contains(part, "conmon-") {
				container = m[1][:12]
			}
			if systemd && (strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope")) {
				unit = part
			}
		}
	}
	return container, unit
}

// words are a command line's, each of which ends with a zero byte. What
// setproctitle has written there is one, and zeros.
func words(cmdline string) []string {
	cmdline = strings.TrimRight(cmdline, "\x00")
	if cmdline == "" {
		return nil
	}
	return strings.Split(cmdline, "\x00")
}

// started returns the time that lies ticks after the machine's start.
func (r root) started(ticks uint64) (time.Time, error) {
	now := time.Now()
	up, err := r.uptime()
	if err != nil {
		return time.Time{}, err
	}
	return now.Add(-max(0, Stat{Start: ticks}.Age(up))).Round(time.Second / procstat.TicksPerSecond), nil
}

// kin has the facts that decide whether a process's parent is the one that started it.
// Those that are seldom needed are functions.
type kin struct {
	pid          int
	self, parent Stat
	unit         string // of systemd
	inContainer  bool
	noHangup     bool
	first        func() bool // the parent is the first process of its namespace
	leaderGone   func() bool // that of the own session has ended
}

// shells put the members of a pipe into the group of its first, which may end
// before the others.
var shells = []string{"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "fish", "tcsh", "csh"}

// gone is ParentGone; Look's comment says why.
func (k kin) gone() bool {
	s, p := k.self, k.parent
	switch {
	case strings.HasPrefix(k.unit, "app-"), strings.HasPrefix(k.unit, "gnome-launched-"):
		// systemd's names for what the desktop started; GNOME's before 3.38.
		return false
	case k.noHangup && s.Group == k.pid && s.Session != k.pid:
		return false // nohup, by a shell
	case s.Session != 0 && s.Session != k.pid && s.Session != p.Session:
		// A service that puts itself in the background ends what led its session.
		return !(strings.HasSuffix(k.unit, ".service") && k.leaderGone())
	case p.Name == "systemd" && strings.HasSuffix(k.unit, ".scope") && !k.inContainer:
		return true
	}
	return s.Group != 0 && s.Group != k.pid && s.Group != p.Group && !slices.Contains(shells, p.Name) && k.first()
}

// hostNamespace is the machine's own namespace of processes: PROC_PID_INIT_INO
// of <linux/proc_ns.h>, 0xEFFFFFFC.
const hostNamespace = "pid:[4026531836]"

func (r root) hostPIDs() bool {
	link, err := os.Readlink(filepath.Join(string(r), "self", "ns", "pid"))
	return err == nil && link == hostNamespace
}

func (r root) opens(pid int, prefix string) (bool, error) {
	if err := check(pid); err != nil {
		return false, err
	}
	dir := r.file(pid, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, r.why(pid, err)
	}
	for _, e := range entries {
		// One that is closed meanwhile is not open.
		if name, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(name, prefix) {
			return true, nil
		}
	}
	// The list of what has ended is empty.
	return false, r.runs(pid)
}
