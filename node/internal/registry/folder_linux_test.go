package registry

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpumem/internal/proc"
)

// TestOpen: which folder it is, and its mode.
func TestOpen(t *testing.T) {
	defer func(a, b string) { RunDir, ShmDir = a, b }(RunDir, ShmDir)
	dir := t.TempDir()
	RunDir, ShmDir = filepath.Join(dir, "run"), filepath.Join(dir, "shm")
	t.Setenv(EnvDir, "")
	want := func(explicit, want string) {
		t.Helper()
		r, err := Open(explicit)
		must(t, err)
		if r.dir != want {
			t.Errorf("it is %s, want %s", r.dir, want)
		}
		info, err := os.Stat(r.dir)
		must(t, err)
		if info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
			t.Errorf("its mode is %v", info.Mode())
		}
	}
	want("", ShmDir)
	must(t, os.Mkdir(RunDir, 0o755)) // not for all
	want("", ShmDir)
	must(t, os.Chmod(RunDir, fs.ModeSticky|0o777))
	want("", RunDir)
	t.Setenv(EnvDir, filepath.Join(dir, "env"))
	want("", filepath.Join(dir, "env"))
	want(filepath.Join(dir, "own"), filepath.Join(dir, "own"))
	t.Setenv(EnvDir, "")
	must(t, os.RemoveAll(RunDir))
	must(t, os.RemoveAll(ShmDir))
	must(t, os.Symlink(dir, ShmDir))
	if _, err := Open(""); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a symbolic link: %v", err)
	}
}

// TestUntrustedFolderIsRefused: folders in which another user could remove leases.
func TestUntrustedFolderIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		mode os.FileMode
		user int
		want string // "": it is good
	}{
		{"own, for all and sticky", os.ModeSticky | 0o777, os.Geteuid(), ""},
		{"own, for this user", 0o700, os.Geteuid(), ""},
		{"own, for all", 0o777, os.Geteuid(), "its mode is 0777 without the sticky bit"},
		{"own, for a group", 0o770, os.Geteuid(), "its mode is 0770 without the sticky bit"},
		{"another's, for all and sticky", os.ModeSticky | 0o777, 5001, "it belongs to user 5001"},
		{"another's", 0o755, 5001, "it belongs to user 5001"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "registry")
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Chmod(dir, tc.mode))
			if tc.user != os.Geteuid() {
				if os.Geteuid() != 0 {
					t.Skip("NOT TESTED: another user needs root")
				}
				must(t, os.Chown(dir, tc.user, -1))
			}
			_, err := Open(dir)
			if tc.want == "" {
				must(t, err)
			} else if !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "mkdir -m 1777") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v\nwant %q", err, tc.want)
			}
		})
	}
}

// TestRunning: a waiter that is silent is passed over when it is stopped, cannot be
// seen, or is silent for long; one that is seen to run is not.
func TestRunning(t *testing.T) {
	r := newGPU(t)
	self, _ := proc.ReadStat(os.Getpid())
	mine := Record{PID: os.Getpid(), Start: self.Start, Namespace: r.namespace}
	other := mine
	other.Namespace++
	ended := mine
	ended.Start--
	for _, tc := range []struct {
		name   string
		rec    Record
		silent time.Duration
		want   bool
	}{
		{"just now", other, 0, true},
		{"silent, and seen to run", mine, 2 * Silence, true},
		{"silent for very long", mine, (frozen + 1) * Silence, false},
		{"silent, of another namespace", other, 2 * Silence, false},
		{"silent, and another process has its number", ended, 2 * Silence, false},
	} {
		if got := r.IsRunning(Claim{Record: tc.rec, Beat: time.Now().Add(-tc.silent)}); got != tc.want {
			t.Errorf("%s: running %t, want %t", tc.name, got, tc.want)
		}
	}
}

func FuzzTicketsAmong(f *testing.F) {
	f.Add("zzz ffffffffffffffff 0000000000000001")
	f.Add("0000000000000001 0000010000000001 0000020000000002")
	f.Fuzz(func(t *testing.T, names string) {
		ids := strings.Fields(names)
		slices.Sort(ids)
		ids = slices.Compact(ids)
		last := uint64(0)
		for _, id := range ticketsAmong(ids) {
			n, ok := TicketNumber(id)
			if !ok || n <= last || n-last > farthest {
				t.Errorf("%q after %d", id, last)
			}
			last = n
		}
	})
}

// TestLookingMakesNoFolder refuses a list that makes the registry, as root perhaps, or that
// takes a missing one for an error.
func TestLookingMakesNoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	r, err := Look(dir)
	must(t, err)
	if list, err := r.List("gpu"); len(list) > 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	must(t, os.Mkdir(dir, 0o777))
	must(t, os.Chmod(dir, 0o777))
	if _, err := Look(dir); !errors.Is(err, ErrUntrusted) {
		t.Errorf("%v, want that others could remove the files", err)
	}
}
