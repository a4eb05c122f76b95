package account

import (
	"testing"

	"gpumem/device"
	"gpumem/internal/proc"
)

// TestAncestry: lease processes 10 (of start 5) and 20 (9), among others.
func TestAncestry(t *testing.T) {
	of := func(parent, group, session int, start uint64) proc.Stat {
		return proc.Stat{Parent: parent, Group: group, Session: session, Start: start}
	}
	table := map[int]proc.Stat{
		1:  of(0, 1, 1, 0),
		10: of(1, 10, 1, 5),
		11: of(10, 11, 1, 6), // child
		12: of(11, 12, 12, 7),
		20: of(12, 20, 12, 9),  // a lease inside the first
		21: of(20, 20, 12, 10), // its child
		30: of(1, 10, 30, 8),   // adopted by init, in the group of 10
		31: of(1, 31, 40, 8),   // in the session of 40, which is dead
		32: of(31, 32, 32, 8),  // and its child, which left it
		33: of(1, 33, 40, 2),   // older than the lease: the session is another's
		50: of(1, 50, 1, 8),
		60: of(61, 60, 1, 8), // a circle, read while it changed
		61: of(60, 61, 1, 8),
		70: of(1, 70, 1, 9), // has the pid of a lease's process that ended
		71: of(1, 70, 1, 9),
		80: of(1, 80, 1, 5), // the pid of a lease of another namespace
	}
	leases := []Lease{{PID: 10, Start: 5, Namespace: 1}, {PID: 20, Start: 9, Namespace: 1}, {PID: 40, Start: 3, Namespace: 1}, {PID: 70, Start: 4, Namespace: 1}, {PID: 80, Start: 5, Namespace: 2}}
	f := NewAncestry(func(pid int) (proc.Stat, bool) { s, ok := table[pid]; return s, ok }, leases, 1)
	f.Inner = func(pid int) (uint64, int, bool) { return 1, pid, true }
	for pid, want := range map[int]int{10: 10, 11: 10, 12: 10, 20: 20, 21: 20, 30: 10, 31: 40, 32: 40, 33: 0, 50: 0, 60: 0, 61: 0, 70: 0, 71: 0, 80: 0, 1: 0, 99: 0, 0: 0, -1: 0} {
		if got, ok := f.Owner(pid); got.pid != want || ok != (want != 0) {
			t.Errorf("%d belongs to %+v, %t; want %d", pid, got, ok, want)
		}
	}
}

// TestOtherNamespaces: this is the namespace 1 of the host, and 2 is a container's, whose first
// process the host calls 101. The lease is of that container's process 7, which the host calls 107.
func TestOtherNamespaces(t *testing.T) {
	table := map[int]proc.Stat{
		101: {Parent: 50, Group: 101, Session: 101, Start: 4}, 107: {Parent: 101, Group: 107, Session: 107, Start: 5},
		108: {Parent: 107, Group: 108, Session: 108, Start: 6}, 109: {Parent: 101, Group: 107, Session: 107, Start: 7},
		7: {Parent: 1, Group: 7, Session: 7, Start: 2}, 50: {Parent: 1, Group: 50, Session: 50, Start: 1},
	}
	lease := Lease{PID: 7, Start: 5, Namespace: 2}
	read := func(pid int) (proc.Stat, bool) { s, ok := table[pid]; return s, ok }
	inner := func(pid int) (uint64, int, bool) {
		if pid > 100 {
			return 2, pid - 100, true
		}
		return 1, pid, true
	}
	for _, tc := range []struct {
		name  string
		p     device.Process
		owner identity
		sight Sight
	}{
		{"the lease's process, as the host calls it", device.Process{PID: 107}, lease.process(), Owned},
		{"and with its start", device.Process{PID: 107, Start: 5}, lease.process(), Owned},
		{"its child", device.Process{PID: 108}, lease.process(), Owned},
		{"one of its session that the container's first process has adopted", device.Process{PID: 109}, lease.process(), Owned},
		{"the container's first process", device.Process{PID: 101}, identity{}, Foreign},
		{"the host's own process of its number", device.Process{PID: 7}, identity{}, Foreign},
		{"by its own number and start, as a shared simulated GPU has it", device.Process{PID: 7, Start: 5}, lease.process(), Owned},
		{"another process's start", device.Process{PID: 7, Start: 9}, identity{}, Unseen},
		{"a number that nobody has", device.Process{PID: 400}, identity{}, Unseen},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := NewAncestry(read, []Lease{lease}, 1)
			f.Inner = inner
			if w, sight := f.OwnerOf(tc.p); w != tc.owner || sight != tc.sight {
				t.Errorf("%+v, %d; want %+v, %d", w, sight, tc.owner, tc.sight)
			}
		})
	}
}

// TestContainersComeBeforeAncestry: process 20 is in a container of lease b, although its
// parent 10 has lease a.
func TestContainersComeBeforeAncestry(t *testing.T) {
	table := map[int]proc.Stat{10: {Start: 5}, 11: {Parent: 10, Start: 6}, 20: {Parent: 10, Start: 6}, 21: {Parent: 20, Start: 7}, 30: {Start: 8}}
	leases := []Lease{
		{ID: "a", PID: 10, Start: 5, Namespace: 1, Containers: []string{digits(1)}},
		{ID: "b", PID: 10, Start: 5, Namespace: 2, Containers: []string{digits(2), digits(3)}}, // of an agent elsewhere
	}
	f := NewAncestry(func(pid int) (proc.Stat, bool) { s, ok := table[pid]; return s, ok }, leases, 1)
	f.Cgroup = func(pid int) string {
		return map[int]string{
			11: "0::/user.slice\n",
			20: "0::/kubepods/burstable/pod1/" + digits(2) + "\n",
			30: "12:memory:/x\n0::/kubepods.slice/cri-containerd-" + digits(3) + ".scope\n",
		}[pid]
	}
	agent, b := identity{pid: 10, start: 5}, identity{lease: "b"}
	for pid, want := range map[int]identity{10: agent, 11: agent, 20: b, 21: agent, 30: b} {
		if got, ok := f.Owner(pid); got != want || !ok {
			t.Errorf("%d belongs to %+v, %t; want %+v", pid, got, ok, want)
		}
	}
}

func TestContainerOf(t *testing.T) {
	leases := map[string]string{digits(1): "a", digits(2): "b"}
	for _, tc := range []struct {
		name, cgroup, want string
	}{
		{"no file", "", ""},
		{"cgroup 2", "0::/kubepods/besteffort/pod5/" + digits(1) + "\n", "a"},
		{"systemd's names", "0::/kubepods.slice/kubepods-pod5.slice/cri-containerd-" + digits(2) + ".scope\n", "b"},
		{"cgroup 1", "11:memory:/kubepods/pod5/" + digits(1) + "\n10:cpu:/\n", "a"},
		{"seen from another container", "0::/../" + digits(2) + "\n", "b"},
		{"a part of the container", "0::/kubepods/pod5/" + digits(1) + "/init", "a"},
		{"a container in a container", "0::/docker/" + digits(1) + "/kubepods/" + digits(2) + "\n", "b"},
		{"another's", "0::/kubepods/pod5/" + digits(3) + "\n", ""},
		{"the beginning of an id", "0::/kubepods/" + digits(1)[:63] + "\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, ok := containerOf(tc.cgroup, leases); got != tc.want || ok != (tc.want != "") {
				t.Errorf("%q, %t; want %q", got, ok, tc.want)
			}
		})
	}
}
