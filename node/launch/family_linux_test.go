package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gpumem/internal/proc"
)

// childrenOf returns the children of a process, also those that have ended.
func childrenOf(pid int) (list []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		child, _ := strconv.Atoi(filepath.Base(name))
		if s, ok := proc.ReadStat(child); ok && s.Parent == pid {
			list = append(list, child)
		}
	}
	return list
}

// TestSearchMissesNobody: what each pass finds, and what the search concludes. A search of
// one pass returns 0 in most cases; one that takes a zombie for a member never ends.
func TestSearchMissesNobody(t *testing.T) {
	type pass map[int]state
	for _, tc := range []struct {
		name   string
		listed bool
		passes []pass // the last is what is found from then on
		want   int
		looks  int // passes made
	}{
		{"nobody", true, []pass{{1: other}}, 0, 2},
		{"a member", true, []pass{{1: other, 5: living}}, 5, 1},
		{"a member that ends between the list and the visit, and its child", true, []pass{{1: other, 5: gone}, {1: other, 6: living}}, 6, 2},
		{"a member that has just ended, and its child", true, []pass{{5: over}, {5: over, 6: living}}, 6, 2},
		{"a chain", true, []pass{{5: gone}, {6: gone}, {7: over}, {8: gone}, {9: living}}, 9, 5},
		{"a chain that ends", true, []pass{{5: gone}, {6: over}, {1: other}}, 0, 4},
		{"a zombie that nobody waits for", true, []pass{{5: over}}, 0, 3},
		{"a child with a lower number", true, []pass{{20: other}, {10: living, 20: other}}, 10, 2},
		{"a child with a lower number, after others have gone", true, []pass{{20: gone}, {20: other}, {10: living}}, 10, 3},
		{"all numbers, most of which nobody has", false, []pass{{1: other, 2: gone, 3: gone}}, 0, 2},
		{"all numbers, and a member", false, []pass{{1: other, 2: gone}, {2: living}}, 2, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			looks := 0
			var now pass
			got, _ := search(func(f func(int) bool) bool {
				now = tc.passes[min(looks, len(tc.passes)-1)]
				looks++
				var pids []int
				for pid := range now {
					pids = append(pids, pid)
				}
				slices.Sort(pids)
				for _, pid := range pids {
					if !f(pid) {
						break
					}
				}
				return tc.listed
			}, func(pid int) (*os.File, state) { return nil, now[pid] })
			if got != tc.want || looks != tc.looks {
				t.Errorf("%d in %d passes, want %d in %d", got, looks, tc.want, tc.looks)
			}
		})
	}
}

// TestMarkIsHandedOn: to a child that has no environment and leads a session, and no longer
// when it has ended. The search finds it where there is no /proc, too.
func TestMarkIsHandedOn(t *testing.T) {
	for _, without := range []bool{false, true} {
		t.Run("without="+strconv.FormatBool(without), func(t *testing.T) {
			if without {
				defer func(old string) { procFolder = old }(procFolder)
				procFolder = t.TempDir()
			}
			family, err := newMark()
			if err != nil {
				t.Skip("skipped: the hard limit of file locks leaves no room for a mark: ", err)
			}
			cmd := exec.Command(os.Args[0], "closes")
			cmd.Env, cmd.SysProcAttr = []string{}, &syscall.SysProcAttr{Setsid: true}
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			undo := family.put()
			err = cmd.Start()
			undo()
			if err != nil {
				t.Fatal(err)
			}
			if own, err := markOf(os.Getpid()); own == family || err != nil {
				t.Errorf("this process has the mark %d, %v", own, err)
			}
			pid, pidfd := familyOf(family).survivor()
			if pid != cmd.Process.Pid {
				t.Errorf("found %d, want %d", pid, cmd.Process.Pid)
			}
			pidfd.Close()
			in.Close()
			eventually(t, "the family has ended, though nobody has waited for it", func() bool {
				pid, pidfd := familyOf(family).survivor()
				pidfd.Close()
				return pid == 0
			})
			_ = cmd.Wait()
		})
	}
}

// TestMarkInProc: a process of another user shows its mark there alone.
func TestMarkInProc(t *testing.T) {
	family, err := newMark()
	if err != nil {
		t.Skip("skipped: the hard limit of file locks leaves no room for a mark: ", err)
	}
	undo := family.put()
	text, err := os.ReadFile("/proc/self/limits")
	undo()
	if got := markIn(string(text)); got != family || err != nil {
		t.Errorf("%d, %v, want %d in\n%s", got, err, family, text)
	}
	for _, text := range []string{"", "Max file locks 7", "Limit\nMax file locks            unlimited            unlimited            locks     \n"} {
		if got := markIn(text); got != 0 {
			t.Errorf("%q has the mark %d", text, got)
		}
	}
}

// TestUnmarkedProcessIsOfNoFamily: a keeper that an inner run starts inherits the mark of
// the outer run's family. Without its own unmarking the outer lease lasted until the inner
// keeper had ended, and a run that followed found the GPU taken.
func TestUnmarkedProcessIsOfNoFamily(t *testing.T) {
	var before unix.Rlimit
	if err := prlimit(0, nil, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prlimit(0, &before, nil) })
	m, err := newMark()
	if err != nil {
		t.Skip("skipped: the hard limit of file locks leaves no room for a mark: ", err)
	}
	m.put()
	if got, err := markOf(os.Getpid()); err != nil || got != m {
		t.Fatalf("mark %d, %v; want %d", got, err, m)
	}
	unmark()
	if got, err := markOf(os.Getpid()); err != nil || got == m || uint64(got) != before.Max {
		t.Errorf("mark %d, %v; want %d", got, err, before.Max)
	}
}

// TestHighestMark: a family of a low limit could have the mark of another.
func TestHighestMark(t *testing.T) {
	for _, tc := range []struct{ hard, want uint64 }{{1<<64 - 1, 1<<63 - 1}, {1 << 50, 1 << 50}, {1 << 40, 1 << 40}, {1<<40 - 1, 0}, {0, 0}} {
		if got, err := highestMark(tc.hard); got != tc.want || (err == nil) != (tc.want > 0) {
			t.Errorf("%d: %d, %v, want %d", tc.hard, got, err, tc.want)
		}
	}
}

// TestNoMarkChangesNothing: a program without a lease has the limit of its caller.
func TestNoMarkChangesNothing(t *testing.T) {
	before, err := markOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer mark(0).put()()
	if now, err := markOf(os.Getpid()); now != before || err != nil {
		t.Errorf("the limit is %d, %v, and was %d", now, err, before)
	}
}

// TestLookAtOneProcess: what the search is told, also by a kernel or under a filter of system
// calls without pidfds. One whose first thread alone has ended lives.
func TestLookAtOneProcess(t *testing.T) {
	family, err := newMark()
	if err != nil {
		t.Skip("skipped: the hard limit of file locks leaves no room for a mark: ", err)
	}
	start := func(mode string) (pid int, end func()) {
		cmd := exec.Command(os.Args[0], mode)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		undo := family.put()
		err = cmd.Start()
		undo()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid, func() { in.Close() }
	}
	isZombie := func(pid int) bool { s, ok := proc.ReadStat(pid); return ok && s.Ended() }
	living1, _ := start("closes")
	ended, end := start("closes")
	headless, _ := start("headless")
	end()
	alone := func(pid int) bool { // its other threads, which may end after the first, have ended
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		return len(tasks) == 1
	}
	eventually(t, "a process has ended", func() bool { return isZombie(ended) && alone(ended) })
	eventually(t, "a first thread has ended", func() bool { return isZombie(headless) })

	refused := func(err error) func(int) (*os.File, error) {
		return func(int) (*os.File, error) { return nil, err }
	}
	defer func() { openProcess = pidfdOf }()
	for _, tc := range []struct {
		name string
		by   func(int) (*os.File, error)
		pid  int
		want state
	}{
		{"living", pidfdOf, living1, living},
		{"ended", pidfdOf, ended, over},
		{"first thread has ended", pidfdOf, headless, living},
		{"of no family", pidfdOf, os.Getpid(), other},
		{"of no family, no pidfd", refused(syscall.ENOSYS), os.Getpid(), other},
		{"not there", pidfdOf, 1 << 30, gone},
		{"living, no pidfd", refused(syscall.ENOSYS), living1, living},
		{"ended, no pidfd", refused(syscall.ENOSYS), ended, over},
		{"first thread has ended, no pidfd", refused(syscall.ENOSYS), headless, living},
		{"living, pidfd forbidden", refused(syscall.EPERM), living1, living},
		{"a thread's number", refused(syscall.EINVAL), living1, other},
		{"ends meanwhile", refused(syscall.ESRCH), living1, gone},
		{"is another meanwhile", func(int) (*os.File, error) {
			var limit unix.Rlimit // as if its number had another process now
			if err := prlimit(living1, nil, &limit); err != nil {
				return nil, err
			}
			limit.Cur = 1
			if err := prlimit(living1, &limit, nil); err != nil {
				return nil, err
			}
			return pidfdOf(living1)
		}, living1, other},
	} {
		openProcess = tc.by
		f, got := familyOf(family).look(tc.pid)
		f.Close()
		if got != tc.want || (f != nil) != (got == living && !strings.Contains(tc.name, "pidfd")) {
			t.Errorf("%s: state %d, pidfd %v, want state %d", tc.name, got, f, tc.want)
		}
	}
}

// TestVisitNamesProcessesAlone: there are other things in /proc.
func TestVisitNamesProcessesAlone(t *testing.T) {
	last, self := 0, false
	visit(func(pid int) bool {
		if pid <= last {
			t.Errorf("%d after %d", pid, last)
		}
		last, self = pid, self || pid == os.Getpid()
		return true
	})
	if !self {
		t.Error("this process is missing")
	}
}
