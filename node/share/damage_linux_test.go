package share

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/node/internal/registry"
)

// TestDamagedRecordKeepsTheSizeOfTheLease: a record is written over, replaced,
// hidden or removed while its lease lives. The lease counts as before, is listed
// without a program, and the file is named. Only another version stops the GPU.
// Once the lease has ended the file is nobody's, whatever it says.
func TestDamagedRecordKeepsTheSizeOfTheLease(t *testing.T) {
	over := func(b []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { must(t, os.WriteFile(path, b, 0o644)) }
	}
	good := sample("gpu").Encode()
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, path string)
		want  error // of List; nil: none
		text  string
		stops bool
	}{
		{"empty", over(nil), ErrDamaged, "does not begin", false},
		{"garbage", over([]byte("garbage\n")), ErrDamaged, "does not begin", false},
		{"cut short", func(t *testing.T, path string) { must(t, os.Truncate(path, 100)) }, ErrDamaged, "it has 100 bytes", false},
		{"longer", func(t *testing.T, path string) { must(t, os.Truncate(path, 1<<30)) }, ErrDamaged, "it has 4097 bytes", false},
		{"a digit", func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			must(t, err)
			over([]byte(strings.Replace(string(b), `"bytes":8`, `"bytes":1`, 1)))(t, path)
		}, ErrDamaged, "checksum", false},
		{"newer", over([]byte("gpumem-share 3 of another shape\n")), ErrVersion, "its format is version 3, this program's is 2; upgrade", true},
		{"older", over([]byte("gpumem-share 1 of another shape\n")), ErrVersion, "its format is version 1, this program's is 2; wait until", true},
		{"another's", over(good), ErrDamaged, "copy of another", false},
		{"removed", func(t *testing.T, path string) { must(t, os.Remove(path)) }, nil, "", false},
		{"a fifo", func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, syscall.Mkfifo(path, 0o644))
		}, ErrDamaged, "not a regular file", false},
		{"a folder", func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o755))
		}, ErrDamaged, "not a regular file", false},
		{"a link", func(t *testing.T, path string) {
			must(t, os.Rename(path, path+".moved"))
			must(t, os.Symlink(path+".moved", path))
		}, ErrDamaged, "not a regular file", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, gpu := newGPU(t)
			l, err := take(r, gpu, 8, 2)
			must(t, err)
			path := l[0].Path()
			tc.spoil(t, path)
			one, errTake := take(r, gpu, 1, 1)
			if tc.stops != (errTake != nil) || tc.stops && !errors.Is(errTake, tc.want) {
				t.Errorf("1 GiB of 8: %v", errTake)
			}
			if _, err := take(r, gpu, 9, 1); err == nil {
				t.Error("more was given than is left")
			}
			all, errList := r.List()
			if !errors.Is(errList, tc.want) || errList != nil && (!strings.Contains(errList.Error(), path) || !strings.Contains(errList.Error(), tc.text) || strings.Contains(errList.Error(), "\n")) {
				t.Errorf("%v\nwant %v with %q", errList, tc.want, tc.text)
			}
			if errList != nil && !tc.stops && !strings.Contains(errList.Error(), "the lease counts, and its size is read from its lock") {
				t.Errorf("%v: it does not say that the lease counts", errList)
			}
			unknown := 0
			for _, e := range all {
				if e.PID == 0 && e.Bytes == 8*gib && e.Device == gpu && len(e.HeldBy) == 1 && e.HeldBy[0].PID == os.Getpid() {
					unknown++
				}
			}
			if want := 2 + len(one); !tc.stops && (len(all) != want || unknown != 1) {
				t.Errorf("%d listed, want %d; %d without a program: %+v", len(all), want, unknown, all)
			}
			// Another GPU's leases have nothing to do with it.
			must(t, os.Link(gpu, gpu+"2"))
			other, err := take(r, gpu+"2", 24, 1)
			must(t, err)
			for _, l := range append(other, one...) {
				must(t, l.Close())
			}
			must(t, l[0].File().Close()) // as if it were killed
			rest, err := take(r, gpu, 8, 2)
			must(t, err)
			for _, l := range append(rest, l...) {
				l.Close()
			}
			for _, name := range files(t, r) {
				if strings.Contains(name, l[0].ID()) && !strings.HasSuffix(name, ".moved") {
					t.Errorf("left: %s", name)
				}
			}
		})
	}
}

// TestDeadFilesAreIgnored: anything with the name of a lease or a ticket, but
// without a lock, is nobody's, whatever it is; also for a user who may not remove
// or open it.
func TestDeadFilesAreIgnored(t *testing.T) {
	for _, kind := range []string{registry.LeaseKind, registry.LockKind, registry.TicketKind} {
		for name, put := range map[string]func(t *testing.T, path string){
			"empty":      func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o644)) },
			"garbage":    func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("x"), 0o644)) },
			"unreadable": func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("x"), 0)) },
			"a fifo":     func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o644)) },
			"a folder":   func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) },
			"a link":     func(t *testing.T, path string) { must(t, os.Symlink("/nonexistent", path)) },
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				r, gpu := newGPU(t)
				put(t, r.r.GPU(gpu).Path("00000000000000aa", kind))
				if all := listed(t, r); len(all) != 0 {
					t.Errorf("listed: %+v", all)
				}
				if os.Getuid() == 0 {
					reachable(t, filepath.Dir(gpu))
					must(t, os.Chmod(gpu, 0o666))
					other := asNobody(t, command("hold", r.r.Dir(), gpu, 24, 1, "")).begin(t)
					other.said(t, "have")
					other.end(t)
				}
				l, err := take(r, gpu, 24, 1)
				must(t, err)
				must(t, l[0].Close())
				if left := files(t, r); len(left) != 0 {
					t.Errorf("left: %q", left)
				}
			})
		}
	}
}

// TestLockFile: the lock's file says anything, is removed, or is no file.
func TestLockFile(t *testing.T) {
	r, gpu := newGPU(t)
	path := lockFile(r, gpu)
	for _, text := range []string{"", "garbage", "1 2", strings.Repeat("9", 5000), "-1 -9223372036854775808 -1\n"} {
		must(t, errors.Join(os.WriteFile(path, []byte(text), 0o666), os.Chmod(path, 0o666)))
		l, err := take(r, gpu, 24, 1)
		must(t, err)
		must(t, l[0].Close())
	}
	l, err := take(r, gpu, 20, 1)
	must(t, err)
	must(t, os.Remove(path))
	if _, err := take(r, gpu, 5, 1); err == nil {
		t.Error("the lock was removed, and 25 of 24 GiB were given")
	}
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o777))
	if _, err := take(r, gpu, 5, 1); err == nil {
		t.Error("a folder is in the lock's place, and 25 of 24 GiB were given")
	}
	more, err := take(r, gpu, 1, 1) // under the next lock
	must(t, err)
	must(t, errors.Join(l[0].Close(), more[0].Close()))
}

// asNobody makes a child of another user. Only root can.
func asNobody(t *testing.T, c *child) *child {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: another user needs root")
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return c
}

// reachable lets all users pass to a folder of a test.
func reachable(t *testing.T, dir string) {
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		must(t, err)
		must(t, os.Chmod(dir, info.Mode()|0o055))
	}
}

// TestOtherUser: another user's lease counts, cannot be removed or written by
// others, and ends with its holder.
func TestOtherUser(t *testing.T) {
	r, gpu := newGPU(t)
	reachable(t, filepath.Dir(gpu))
	must(t, os.Chmod(gpu, 0o666))
	hold := asNobody(t, command("hold", r.r.Dir(), gpu, 20, 1, "")).begin(t)
	hold.said(t, "have")
	all := listed(t, r)
	if len(all) != 1 || all[0].UID != 65534 {
		t.Fatalf("listed: %+v", all)
	}
	info, err := os.Stat(r.r.GPU(gpu).Path(all[0].ID, registry.LeaseKind))
	must(t, err)
	if info.Mode() != 0o644 {
		t.Errorf("its file has mode %v", info.Mode())
	}
	if _, err := take(r, gpu, 5, 1); err == nil {
		t.Error("25 of 24 GiB")
	}
	hold.kill(t)
	l, err := take(r, gpu, 24, 1)
	must(t, err)
	asNobody(t, command("hold", r.r.Dir(), gpu, 1, 1, "")).begin(t).said(t, "no")
	// Dead, and not removable for the other: it is no more in the way.
	must(t, l[0].File().Close())
	asNobody(t, command("hold", r.r.Dir(), gpu, 24, 1, "")).begin(t).said(t, "have")
	if n := len(files(t, r)); n != 4 {
		t.Errorf("%d files, want two of a dead lease and two of one that lives", n)
	}
}

// TestUnwritable: folders that cannot be used, each with one line.
func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, tc := range []struct {
		name, dir string
		want      error
	}{
		{"no folder above it", filepath.Join(dir, "a", "b"), fs.ErrNotExist},
		{"a file", file, syscall.ENOTDIR},
		{"where none can be made", "/proc/gpumem", fs.ErrNotExist},
	} {
		if _, err := Open(tc.dir); !errors.Is(err, tc.want) || !strings.HasPrefix(err.Error(), "registry "+tc.dir+": ") || !strings.Contains(err.Error(), "GPUMEM_RUN_DIR") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	r, gpu := newGPU(t)
	must(t, os.Chmod(r.r.Dir(), 0o755))
	reachable(t, filepath.Dir(gpu))
	got := asNobody(t, command("hold", r.r.Dir(), gpu, 1, 1, "")).begin(t).line()
	if want := "error registry " + r.r.Dir() + ": permission denied; let all users write there (as root: chmod 1777 " + r.r.Dir() + "), or set GPUMEM_RUN_DIR to another folder"; !strings.HasPrefix(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestContainerWithoutRoot: in a user namespace of one user the machine's root has no number,
// and the registry that root made for all is usable; without the sticky bit it is not.
func TestContainerWithoutRoot(t *testing.T) {
	r, gpu := newGPU(t)
	reachable(t, filepath.Dir(gpu))
	must(t, os.Chmod(gpu, 0o666))
	inContainer := func() *child {
		c := asNobody(t, command("hold", r.r.Dir(), gpu, 2, 1, ""))
		nobody := []syscall.SysProcIDMap{{HostID: 65534, Size: 1}}
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: nobody, GidMappings: nobody, Credential: &syscall.Credential{}}
		return c
	}
	// Some systems let nobody make one.
	if err := exec.Command("unshare", "-U", "true").Run(); err != nil {
		t.Skip("NOT TESTED: a user namespace: ", err)
	}
	c := inContainer().begin(t)
	c.said(t, "have")
	c.end(t)
	must(t, os.Chmod(r.r.Dir(), 0o777))
	if got := inContainer().begin(t).line(); !strings.Contains(got, "another user could remove the leases in this folder") {
		t.Error(got)
	}
}

// TestFull: the registry's disk is full. Nothing is given, what was given stays.
func TestFull(t *testing.T) {
	_, gpu := newGPU(t)
	dir := filepath.Join(t.TempDir(), "full")
	must(t, os.Mkdir(dir, 0o777))
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("NOT TESTED: a full disk needs the right to mount: ", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	r, err := Open(dir)
	must(t, err)
	l, err := take(r, gpu, 8, 1)
	must(t, err)
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 1<<20), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for _, copies := range []int{1, 3} {
		if _, err := take(r, gpu, 1, copies); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "registry "+dir) || !strings.Contains(err.Error(), "make room on its disk") {
			t.Errorf("full: %v", err)
		}
	}
	must(t, os.Truncate(big, 48<<10)) // room for one or two of three
	if _, err := take(r, gpu, 1, 3); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("nearly full: %v", err)
	}
	must(t, l[0].Tell(os.Getppid()))
	if all := listed(t, r); len(all) != 1 || all[0].PID != os.Getppid() {
		t.Errorf("listed: %+v", all)
	}
	must(t, os.Remove(big))
	if _, err := take(r, gpu, 17, 1); err == nil {
		t.Error("25 of 24 GiB")
	}
	rest, err := take(r, gpu, 16, 1)
	must(t, err)
	must(t, rest[0].Close())
	must(t, l[0].Close())
}

// TestLeaseOfEarlierVersion: its record is locked itself and has no lock file. It is
// named in lists, nothing is given while it lives, and who waits does so for its end.
func TestLeaseOfEarlierVersion(t *testing.T) {
	r, gpu := newGPU(t)
	path := r.r.GPU(gpu).Path("0123456789abcdef", registry.LeaseKind)
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("gpumem-share 1 of another shape\n")
	must(t, err)
	must(t, ofd.Lock{FD: f.Fd()}.Try(ofd.Write))
	named := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line that names %s", what, err, path)
		}
	}
	_, err = r.List()
	named("list", err)
	_, err = take(r, gpu, 1, 1)
	named("without waiting", err)
	ctx, cancel := context.WithCancel(t.Context())
	var no *InsufficientMemoryError
	_, err = r.Acquire(ctx, Request{Device: gpu, Meter: simulated(gpu), Bytes: gib, Wait: func(p Position) { cancel() }})
	named("given up", err)
	if !errors.As(err, &no) || !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v; want a InsufficientMemoryError", err)
	}
	why := make(chan error, 9)
	got := make(chan error, 1)
	go func() {
		l, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: simulated(gpu), Bytes: gib, Wait: func(p Position) { why <- p.Why.Blocked }})
		if err == nil {
			err = l[0].Close()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("it did not wait: %v", err)
	case err := <-why:
		named("waiting", err)
	}
	must(t, f.Close())
	must(t, <-got)
	if left := files(t, r); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestLockOfUnknownLengthBlocksTheGPU: neither the lock nor the record says how large
// the lease is, so nothing is granted. With its record it counts by that.
func TestLockOfUnknownLengthBlocksTheGPU(t *testing.T) {
	r, gpu := newGPU(t)
	rec := sample(gpu)
	f, err := os.Create(r.r.GPU(gpu).Path(rec.ID, registry.LockKind))
	must(t, err)
	err = ofd.Lock{FD: f.Fd()}.Try(ofd.Write)
	must(t, err)
	path := r.r.GPU(gpu).Path(rec.ID, registry.LeaseKind)
	for _, text := range []string{"", "garbage"} {
		if text != "" {
			must(t, os.WriteFile(path, []byte(text), 0o644))
		}
		for _, wait := range []func(Position){nil, func(Position) {}} {
			l, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: simulated(gpu), Bytes: 1, Wait: wait})
			if err == nil {
				l[0].Close()
			}
			if err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("record %q, 1 byte: %v; want an error that names %s", text, err, path)
			}
		}
		if _, err := r.List(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("record %q, listed: %v; want an error that names %s", text, err, path)
		}
	}
	must(t, os.WriteFile(path, rec.Encode(), 0o644))
	if _, err := take(r, gpu, 24, 1); err == nil {
		t.Error("25 of 24 GiB")
	}
	l, err := take(r, gpu, 23, 1)
	must(t, err)
	must(t, errors.Join(l[0].Close(), f.Close()))
}

// TestRecordThatIsJustWrittenIsReadAgain: half of it may be seen, twice.
func TestRecordThatIsJustWrittenIsReadAgain(t *testing.T) {
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 8, 1)
	must(t, err)
	whole, err := os.ReadFile(l[0].Path())
	must(t, err)
	must(t, os.WriteFile(l[0].Path(), whole[:100], 0o644))
	half := 0
	crashpoint.Hook = func(step string) {
		if step == "readLease: damaged" {
			if half++; half == 2 {
				must(t, os.WriteFile(l[0].Path(), whole, 0o644))
			}
		}
	}
	defer func() { crashpoint.Hook = nil }()
	all, err := r.List()
	if err != nil || len(all) != 1 || all[0].PID != os.Getpid() || half != 2 {
		t.Errorf("after %d halves %+v, %v; want the lease after 2", half, all, err)
	}
	must(t, l[0].Close())
}
