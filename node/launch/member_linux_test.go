package launch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestMembersOfOtherUsers: what /proc shows of the keeper and of a process with the mark, and
// whether that is taken for a member. One too many, and a user prolongs another's lease; one
// too few, and a lease ends before its daemon.
func TestMembersOfOtherUsers(t *testing.T) {
	const (
		keeper, process = 1, 2
		root            = "Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t7\t7\t7\t7\n"
		nobody          = "Name:\tx\nUid:\t65534\t65534\t65534\t65534\nGid:\t0\t0\t0\t0\n"
		here            = "1:cpu:/\n0::/here\n"
	)
	type files map[string]string
	for _, tc := range []struct {
		name            string
		keeper, process files
		want            bool
	}{
		{"root, elsewhere", files{"cgroup": here, "sessionid": "1"},
			files{"status": root, "cgroup": "0::/there\n", "sessionid": "2"}, true},
		{"nobody, all the same", files{"cgroup": here, "sessionid": "1"},
			files{"status": nobody, "cgroup": here, "sessionid": "1"}, true},
		{"nobody, other group", files{"cgroup": here, "sessionid": "1"},
			files{"status": nobody, "cgroup": "1:cpu:/\n0::/here/x\n", "sessionid": "1"}, false},
		{"nobody, group around", files{"cgroup": here}, files{"status": nobody, "cgroup": "1:cpu:/\n0::/\n"}, false},
		{"nobody, other group of one hierarchy", files{"cgroup": here}, files{"status": nobody, "cgroup": "1:cpu:/x\n0::/here\n"}, false},
		{"nobody, a hierarchy since", files{"cgroup": here}, files{"status": nobody, "cgroup": "2:name=new:/\n" + here}, true},
		{"nobody, other session", files{"cgroup": here, "sessionid": "1"},
			files{"status": nobody, "cgroup": here, "sessionid": "2"}, false},
		{"nobody, other session, no groups", files{"sessionid": "1"}, files{"status": nobody, "sessionid": "2"}, false},
		{"nobody, a session where the keeper's is not known", files{"cgroup": here},
			files{"status": nobody, "cgroup": here, "sessionid": "2"}, true},
		{"nobody, nothing tells them apart", files{}, files{"status": nobody}, true},
		{"nothing can be read", files{"cgroup": here, "sessionid": "1"}, files{}, true},
		{"setuid root, elsewhere", files{"cgroup": here}, files{"status": "\nUid:\t65534\t0\t0\t0\n", "cgroup": "0::/there\n"}, false},
		{"given up by setreuid, elsewhere", files{"cgroup": here},
			files{"status": "\nUid:\t0\t65534\t0\t65534\n", "cgroup": "0::/there\n"}, false},
		{"only the saved one is nobody's, elsewhere", files{"cgroup": here},
			files{"status": "\nUid:\t0\t0\t65534\t0\n", "cgroup": "0::/there\n"}, false},
		{"setuid root, here", files{"cgroup": here}, files{"status": "\nUid:\t65534\t0\t0\t0\n", "cgroup": here}, true},
		{"no line of users, elsewhere", files{"cgroup": here}, files{"status": "Name:\tx\n", "cgroup": "0::/there\n"}, false},
	} {
		f := familyLike(7, 0, keeper, func(pid int, name string) (string, error) {
			text, ok := map[int]files{keeper: tc.keeper, process: tc.process}[pid][name]
			if !ok {
				return "", os.ErrNotExist
			}
			return text, nil
		})
		if got := f.admits(process); got != tc.want {
			t.Errorf("%s: a member is %v, want %v", tc.name, got, tc.want)
		}
	}
}

// startMarked starts a process of nobody with a mark that closes what it was not given, and
// returns its number. It ends with the test.
func startMarked(t *testing.T, m mark) (pid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: only root starts processes of other users")
	}
	program := filepath.Join(t.TempDir(), "program") // where nobody may look
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(program); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "closes")
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	undo := m.put()
	err = cmd.Start()
	undo()
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
		t.Skip("skipped: nobody cannot start a program here: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 8)); err != nil { // it runs
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestDaemonThatGaveUpItsUserIsOfTheFamily, as its lease is. One that only knows the mark, from
// another group, is not, and the search does not stay for it.
func TestDaemonThatGaveUpItsUserIsOfTheFamily(t *testing.T) {
	m, err := newMark()
	if err != nil {
		t.Skip("skipped: the hard limit of file locks leaves no room for a mark: ", err)
	}
	f := familyOf(m)
	want := startMarked(t, m)
	if pid, pidfd := f.survivor(); pid != want {
		t.Errorf("found %d, want %d", pid, want)
	} else {
		pidfd.Close()
	}
	elsewhere := familyLike(m, os.Geteuid(), os.Getpid(), func(pid int, name string) (string, error) {
		text, err := readProcess(pid, name)
		if pid == want && name == "cgroup" {
			text = strings.ReplaceAll(text, "\n", "/elsewhere\n")
		}
		return text, err
	})
	if pid, pidfd := elsewhere.survivor(); pid != 0 {
		pidfd.Close()
		t.Errorf("found %d of another group and user, want none", pid)
	}
}

// TestProcessMovedToAnotherGroupIsNotOfTheFamily: the kernel's own words of such a process.
func TestProcessMovedToAnotherGroupIsNotOfTheFamily(t *testing.T) {
	m, err := newMark()
	if err != nil {
		t.Skip("skipped: the hard limit of file locks leaves no room for a mark: ", err)
	}
	f := familyOf(m)
	pid := startMarked(t, m)
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"} {
		if _, err := os.Stat(hierarchy + "/cgroup.procs"); err != nil {
			continue // no hierarchy is there: no group is made, but a folder
		}
		group, err := os.MkdirTemp(hierarchy, "gpumem-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(group) })
		if os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0) != nil {
			continue
		}
		defer func() { _ = os.WriteFile(hierarchy+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0) }()
		if pidfd, is := f.look(pid); is != other {
			pidfd.Close()
			t.Errorf("a process of nobody in %s is of the family, state %d", group, is)
		}
		return
	}
	t.Skip("skipped: no control group can be made here")
}

// TestReadProcessOfAnotherNamespace: nothing is read of the processes of a /proc that is not
// this namespace's.
func TestReadProcessOfAnotherNamespace(t *testing.T) {
	defer func(old string) { procFolder = old }(procFolder)
	procFolder = t.TempDir()
	self := strconv.Itoa(os.Getpid())
	if err := os.Mkdir(procFolder+"/"+self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(procFolder+"/"+self+"/cgroup", []byte("0::/\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{"1" + self: "", self: "0::/\n"} {
		if err := os.Symlink(target, procFolder+"/self"); err != nil {
			t.Fatal(err)
		}
		if text, err := readProcess(os.Getpid(), "cgroup"); text != want || (err == nil) != (want != "") {
			t.Errorf("self is %s: %q, %v, want %q", target, text, err, want)
		}
		if err := os.Remove(procFolder + "/self"); err != nil {
			t.Fatal(err)
		}
	}
}
