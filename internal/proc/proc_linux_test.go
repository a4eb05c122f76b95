package proc

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// TestMain: this program, started by a test with files to map, maps them, says
// so and waits for the end of its input.
func TestMain(m *testing.M) {
	files, child := os.LookupEnv("PROC_TEST_MAP")
	if !child {
		os.Exit(m.Run())
	}
	for _, name := range filepath.SplitList(files) {
		f, err := os.Open(name)
		if err != nil {
			panic(err)
		}
		if _, err := syscall.Mmap(int(f.Fd()), 0, 1, syscall.PROT_READ, syscall.MAP_PRIVATE); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// child starts this program with an environment; end ends it.
func child(t *testing.T, env ...string) (cmd *exec.Cmd, end func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self)
	cmd.Env = env
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
	end = func() { in.Close() }
	t.Cleanup(func() { end(); _ = cmd.Wait() })
	line := make([]byte, 6)
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatal(err)
	}
	return cmd, end
}

// write makes files under a folder, or folders where a name ends with a slash.
func write(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(folder, name)
		parent, isFolder := filepath.Dir(file), strings.HasSuffix(name, "/")
		if isFolder {
			parent = file
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			t.Fatal(err)
		}
		if isFolder {
			continue
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChild looks at a real process from its start to after its end.
func TestChild(t *testing.T) {
	// Links undone, as the kernel shows it.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	site := filepath.Join(dir, "venv of\nmine", "site-packages")
	write(t, site, map[string]string{
		"jaxlib/libjax_common.so": "x", "jaxlib-0.4.30.dist-info/": "",
		"torch/lib/libtorch_cuda.so": "x", "torch-2.3.0+cu121.dist-info/": "",
	})
	jax, torch := filepath.Join(site, "jaxlib/libjax_common.so"), filepath.Join(site, "torch/lib/libtorch_cuda.so")
	env := []string{"PROC_TEST_MAP=" + jax + string(filepath.ListSeparator) + torch, "XLA_PYTHON_CLIENT_MEM_FRACTION=.5\n", "EMPTY=", "A=b=c"}
	cmd, end := child(t, env...)
	pid := cmd.Process.Pid

	got, err := Environ(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range env {
		if !slices.Contains(got, line) {
			t.Errorf("%q is not in %q", line, got)
		}
	}
	list, err := Frameworks(pid)
	want := []Framework{{"jax", "0.4.30", jax}, {"pytorch", "2.3.0+cu121", torch}}
	if diff := cmp.Diff(want, list); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}

	// The library is replaced while it is in use, as an upgrade does.
	if err := os.Remove(jax); err != nil {
		t.Fatal(err)
	}
	list, err = Frameworks(pid)
	want[0].Version = ""
	if diff := cmp.Diff(want, list); diff != "" || err != nil {
		t.Errorf("after an upgrade: %v %s", err, diff)
	}

	// Ended, and its parent has not asked.
	end()
	waitEnded(t, pid)
	both(t, pid, fmt.Sprintf("process %d has ended, or is the kernel's own", pid))
	// And now it has.
	_ = cmd.Wait()
	both(t, pid, fmt.Sprintf("process %d: there is no such process", pid))
}

// waitEnded waits until a child has ended, and leaves its status for Wait.
func waitEnded(t *testing.T, pid int) {
	t.Helper()
	const pPID, wExited, wNoWait = 1, 4, 0x01000000 // <linux/wait.h>
	var info [128]byte
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(pid), uintptr(unsafe.Pointer(&info)), wExited|wNoWait, 0, 0)
		if errno == 0 {
			return
		}
		if errno != syscall.EINTR {
			t.Fatal(errno)
		}
	}
}

// both checks that both calls fail with one line.
func both(t *testing.T, pid int, want string) {
	t.Helper()
	_, err := Environ(pid)
	_, err2 := Frameworks(pid)
	for _, e := range []error{err, err2} {
		if e == nil || e.Error() != want {
			t.Errorf("%v, want %s", e, want)
		}
	}
}

func TestNoSuchProcess(t *testing.T) {
	both(t, 1<<30, "process 1073741824: there is no such process") // above the kernel's largest
	both(t, 0, "0 is not the number of a process; want one above 0")
	both(t, -5, "-5 is not the number of a process; want one above 0")
}

// TestSelf: the environment as it was at the start, not as it is.
func TestSelf(t *testing.T) {
	t.Setenv("PROC_TEST_LATE", "1")
	env, err := Environ(os.Getpid())
	if err != nil || slices.Contains(env, "PROC_TEST_LATE=1") || len(env) == 0 {
		t.Errorf("%q, %v", env, err)
	}
	if list, err := Frameworks(os.Getpid()); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// fixture is a root with process 7.
func fixture(t *testing.T, environ, maps string, files map[string]string) root {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{"7/environ": environ, "7/maps": maps, "7/root/": ""})
	write(t, filepath.Join(dir, "7", "root"), files)
	if err := os.Symlink("/bin/true", filepath.Join(dir, "7", "exe")); err != nil {
		t.Fatal(err)
	}
	return root(dir)
}

func TestEnviron(t *testing.T) {
	const over = "process 7 has written over the environment that it was started with, as setproctitle does; its parent's may be the same"
	for _, tc := range []struct {
		name, data string
		want       []string
		fails      string
	}{
		{"two", "A=1\x00B=\x00", []string{"A=1", "B="}, ""},
		{"nothing", "", nil, "process 7 shows no environment: it is just starting, or ending, or was started without one"},
		{"no name", "A\x00B=1\x00", []string{"A", "B=1"}, ""},
		{"not ended", "A=1\x00B=2", []string{"A=1", "B=2"}, ""},
		{"zeros", strings.Repeat("\x00", 100), nil, over},
		{"a long title", "ray::f(x=1)\x00\x00\x00\x00", nil, over},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := fixture(t, tc.data, "", nil).environ(7)
			if tc.fails != "" {
				if err == nil || err.Error() != tc.fails {
					t.Errorf("%v, want %s", err, tc.fails)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// line is one of a process's maps.
func line(file string) string {
	return "7f2b8c000000-7f2b8c021000 r-xp 00000000 08:01 1053234                    " + file + "\n"
}

func TestFrameworks(t *testing.T) {
	const site, dist = "/opt/venv/lib/python3.11/site-packages", "/usr/local/lib/python3.10/dist-packages"
	for _, tc := range []struct {
		name  string
		maps  string
		files map[string]string
		want  []Framework
	}{
		{"none", line("/usr/lib/libc.so.6") + "7ffc0000-7ffd0000 rw-p 00000000 00:00 0    [stack]\n7f-8f rw-p 0 00:00 0\n", nil, nil},
		{"in their order, each once",
			line(site+"/cupy/_core/core.so") + line(site+"/torch/lib/libtorch.so") + line(site+"/torch/lib/libtorch.so") + line(site+"/torch/lib/libc10.so") +
				line(dist+"/tensorflow/libtensorflow_cc.so.2") + line(site+"/jaxlib/xla_extension.so"),
			map[string]string{
				site + "/cupy_cuda12x-13.2.0.dist-info/": "", site + "/torch-2.3.0+cu121.dist-info/": "",
				dist + "/tensorflow-2.15.0.post1.dist-info/": "", site + "/jaxlib-0.4.30.dist-info/": "",
				dist + "/tensorflow_io-0.37.0.dist-info/": "", site + "/torchvision-0.18.0.dist-info/": "", site + "/jax-0.4.31.dist-info/": "",
			},
			[]Framework{
				{"jax", "0.4.30", site + "/jaxlib/xla_extension.so"},
				{"tensorflow", "2.15.0.post1", dist + "/tensorflow/libtensorflow_cc.so.2"},
				{"pytorch", "2.3.0+cu121", site + "/torch/lib/libtorch.so"},
				{"cupy", "13.2.0", site + "/cupy/_core/core.so"},
			}},
		{"a plugin before its jaxlib",
			line("/home/me/.local/lib/python3.11/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so") + line(site+"/jaxlib/_jax.so"),
			map[string]string{site + "/jaxlib-0.7.1.dist-info/": ""},
			[]Framework{{"jax", "0.7.1", site + "/jaxlib/_jax.so"}}},
		{"no metadata", line(site + "/torch/lib/libtorch.so"), nil, []Framework{{"pytorch", "", site + "/torch/lib/libtorch.so"}}},
		{"a package file", line(site + "/torch/lib/libtorch.so"), map[string]string{site + "/torch-2.3.0-py3.11.egg-info": "x"},
			[]Framework{{"pytorch", "2.3.0", site + "/torch/lib/libtorch.so"}}},
		{"two versions", line(site + "/torch/lib/libtorch.so"),
			map[string]string{site + "/torch-2.3.0.dist-info/": "", site + "/torch-2.4.0.dist-info/": ""},
			[]Framework{{"pytorch", "", site + "/torch/lib/libtorch.so"}}},
		{"deleted", line(site + "/torch/lib/libtorch.so (deleted)"), map[string]string{site + "/torch-2.4.0.dist-info/": ""},
			[]Framework{{"pytorch", "", site + "/torch/lib/libtorch.so"}}},
		{"a store", line("/home/me/.cache/uv/archive-v0/x9/torch/lib/libtorch.so"),
			map[string]string{"/home/me/.cache/uv/archive-v0/x9/torch-2.3.0.dist-info/": ""},
			[]Framework{{"pytorch", "2.3.0", "/home/me/.cache/uv/archive-v0/x9/torch/lib/libtorch.so"}}},
		{"only called so", line("/home/me/torch/mine.so") + line("/tensorflow/x.so") + line("/cupy"), nil, nil},
		{"a project called so", line("/home/torch/venv/site-packages/torch/lib/libtorch.so"),
			map[string]string{"/home/torch/venv/site-packages/torch-2.3.0.dist-info/": ""},
			[]Framework{{"pytorch", "2.3.0", "/home/torch/venv/site-packages/torch/lib/libtorch.so"}}},
		{"cut short", strings.TrimSuffix(line(site+"/torch/lib/libtorch.so"), "\n"), nil, []Framework{{"pytorch", "", site + "/torch/lib/libtorch.so"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := fixture(t, "", tc.maps, tc.files).frameworks(7)
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

func TestWhy(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&os.PathError{Op: "read", Path: "/proc/7/environ", Err: syscall.ESRCH}, "process 7: there is no such process"},
		{&os.PathError{Op: "open", Path: "/proc/7/environ", Err: syscall.EACCES}, "process 7: not permitted: only its own user and the machine's root may look at it"},
		{&os.PathError{Op: "open", Path: "/proc/7/environ", Err: syscall.EPERM}, "process 7: not permitted: only its own user and the machine's root may look at it"},
		{&os.PathError{Op: "read", Path: "/proc/7/environ", Err: syscall.EIO}, "process 7: read /proc/7/environ: input/output error"},
	} {
		if got := root(t.TempDir()).why(7, tc.err).Error(); got != tc.want {
			t.Errorf("%s, want %s", got, tc.want)
		}
	}
}

// FuzzMaps: whatever a process maps, nothing is found that is not there.
func FuzzMaps(f *testing.F) {
	f.Add([]byte(line("/s/site-packages/torch/lib/libtorch.so")), "torch-2.3.0.dist-info")
	f.Add([]byte(line("/torch/torch/x (deleted)")), "torch-.egg-info")
	f.Fuzz(func(t *testing.T, maps []byte, meta string) {
		dir := t.TempDir()
		write(t, dir, map[string]string{"7/maps": string(maps)})
		if err := os.Symlink("/bin/true", filepath.Join(dir, "7", "exe")); err != nil {
			t.Fatal(err)
		}
		list, err := root(dir).frameworks(7)
		if err != nil {
			t.Fatal(err)
		}
		for _, fw := range list {
			if !bytes.Contains(bytes.ReplaceAll(maps, []byte(`\012`), []byte("\n")), []byte(fw.Path)) || fw.Version != "" {
				t.Errorf("%+v", fw)
			}
		}
		for _, k := range known {
			if v := versionIn([]string{meta}, k.packages); v != "" && !strings.Contains(meta, "-"+v) {
				t.Errorf("%q has version %q", meta, v)
			}
		}
	})
}

// TestLoaded: a library has several mappings, and one that is only read is not loaded.
func TestLoaded(t *testing.T) {
	mapping := func(rights, offset, file string) string {
		return fmt.Sprintf("7f0000000000-7f0000001000 %s %s 08:01 1234                       %s\n", rights, offset, file)
	}
	const driver = "/usr/lib/a folder/libcuda.so.550"
	once := mapping("r--p", "00000000", driver) + mapping("r-xp", "00001000", driver) + mapping("rw-p", "00009000", driver)
	for _, tc := range []struct {
		name, maps string
		want       []Library
	}{
		{"none", mapping("r-xp", "00000000", "/usr/lib/libc.so.6") + "7f0000000000-7f0000001000 rw-p 00000000 00:00 0\n", nil},
		{"one", once, []Library{{Path: driver, Copies: 1}}},
		{"twice in the memory", once + once, []Library{{Path: driver, Copies: 2}}},
		{"of one segment", mapping("r-xp", "00000000", driver), []Library{{Path: driver, Copies: 1}}},
		{"only read", mapping("r--p", "00000000", driver), nil},
		{"another in a folder of the name", mapping("r-xp", "00000000", "/libcuda.so/libx.so"), nil},
		{"removed", mapping("r-xp", "00000000", driver+" (deleted)"), []Library{{Path: driver, Deleted: true, Copies: 1}}},
		{"two", mapping("r-xp", "00000000", "/x/libcuda.so.1") + once, []Library{{Path: "/x/libcuda.so.1", Copies: 1}, {Path: driver, Copies: 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := fixture(t, "", tc.maps, nil)
			if got, err := r.loaded(7, "libcuda.so"); err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
	if _, err := Loaded(0, "x"); err == nil {
		t.Error("process 0 is read")
	}
}
