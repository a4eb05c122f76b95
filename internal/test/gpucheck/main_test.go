//go:build linux

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/internal/test/gpucheck/report"
)

// Tests of the whole program: in a bundle whose gpumem is a script.

const oneGPU = `{"devices": [{"name": "a GPU", "total_bytes": 1, "driver": "1", "compute_capability": "9.0", "mig": "1g.10gb"}], "driver": {"up": true}}`

// madeBundle is a bundle, the folder that its check is started in, and the folder for what it removes.
type madeBundle struct{ root, work, scratch string }

// makeBundle makes a bundle whose gpumem shows such devices.
func makeBundle(t *testing.T, devices string) madeBundle {
	t.Helper()
	return makeBundleOf(t, "echo '"+devices+"'")
}

// makeBundleOf makes a bundle whose gpumem is a script. Its folders' names mean something to filepath.Glob.
func makeBundleOf(t *testing.T, script string) madeBundle {
	t.Helper()
	m := madeBundle{filepath.Join(t.TempDir(), "bundle [1"), t.TempDir(), filepath.Join(t.TempDir(), "tmp [1")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(m.root, 0o755), os.Mkdir(m.scratch, 0o755)); err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(filepath.Join(m.root, "VERSION"), []byte("1\n"), 0o644), copyProgram(self, filepath.Join(m.root, "check")),
		writeTar(filepath.Join(m.root, "gpumem.tar.gz"),
			tar.Header{Name: "gpumem/", Typeflag: tar.TypeDir, Mode: 0o755}, "",
			tar.Header{Name: "gpumem/bin/gpumem", Mode: 0o755}, "#!/bin/sh\n"+script+"\n",
			tar.Header{Name: "gpumem/lib/gpumem/libgpumem_c.so", Mode: 0o644}, "library"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// writeTar writes an archive: a tar.Header and its file's text by turns.
func writeTar(path string, files ...any) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for i := 0; i < len(files); i += 2 {
		header, text := files[i].(tar.Header), files[i+1].(string)
		header.Size = int64(len(text))
		err = errors.Join(err, w.WriteHeader(&header))
		_, err2 := io.WriteString(w, text)
		err = errors.Join(err, err2)
	}
	return errors.Join(err, w.Close(), z.Close(), f.Close())
}

// copyProgram copies a program in another process: a child of this one that begins meanwhile would have
// the copy open for writing, so that it could not be started.
func copyProgram(from, to string) error { return exec.Command("cp", from, to).Run() }

func (m madeBundle) command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(m.root, "check"), args...)
	cmd.Dir = m.work
	inherited, _ := splitEnviron(os.Environ())
	cmd.Env = append(append(inherited, asMain+"=1", "TMPDIR="+m.scratch), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run returns the status and all output.
func (m madeBundle) run(t *testing.T, env []string, args ...string) (int, string) {
	t.Helper()
	cmd := m.command(env, args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	m.clean(t)
	return cmd.ProcessState.ExitCode(), string(out)
}

// clean checks that no file and no process is left.
func (m madeBundle) clean(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		processes := withEnvironment("TMPDIR=" + m.scratch)
		files, _ := os.ReadDir(m.scratch)
		if len(processes)+len(files) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("left: processes %q, files %v", processes, files)
			return
		}
	}
}

func (m madeBundle) report(t *testing.T, folder string) *report.Report {
	t.Helper()
	r, err := report.Read(filepath.Join(m.work, folder, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Whoever interrupts a run gets what there is, and leaves nothing on the GPU.
func TestSignalEndsEverythingAndReports(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			if signal.Ignored(s) {
				t.Skip("SKIPPED: it is ignored here, as under nohup, and so it is by children")
			}
			m := makeBundle(t, oneGPU)
			cmd := m.command(nil, "--plant", "wrong,hang", "--only", "driver")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(20 * time.Second); len(withEnvironmentAnd("TMPDIR="+m.scratch, "sleep")) < 2; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the hang does not begin")
				}
			}
			_ = cmd.Process.Signal(s)
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 128+int(s) {
				t.Errorf("status %d, want %d", got, 128+int(s))
			}
			m.clean(t)
			want := []report.Outcome{report.Wrong, report.NotReached, report.NotReached}
			r := m.report(t, "gpu-check")
			if len(r.Results) != len(want) {
				t.Fatalf("%d results, want %d", len(r.Results), len(want))
			}
			for i, c := range r.Results {
				if c.Outcome != want[i] || i > 0 && !strings.HasPrefix(c.Why, "interrupted by SIG") {
					t.Errorf("%s: %s, %q, want %s and interrupted", c.Name, c.Outcome, c.Why, want[i])
				}
			}
		})
	}
}

// withEnvironmentAnd lists the processes of withEnvironment whose command line has a word.
func withEnvironmentAnd(value, word string) (found []string) {
	for _, line := range withEnvironment(value) {
		if strings.HasPrefix(line, word) {
			found = append(found, line)
		}
	}
	return found
}

// A check dies with the program that started it, however that ends.
func TestCheckDiesWithItsParent(t *testing.T) {
	m := makeBundle(t, oneGPU)
	cmd := m.command(nil, "--plant", "hang", "--only", "driver")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); len(withEnvironmentAnd("TMPDIR="+m.scratch, "sh")) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the hang does not begin")
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := append(withEnvironmentAnd("TMPDIR="+m.scratch, m.root), withEnvironmentAnd("TMPDIR="+m.scratch, "sh")...)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("left: %q", left)
			break
		}
	}
	for _, pid := range pidsWithEnvironment("TMPDIR=" + m.scratch) { // sleep, in a session of its own
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Who reads the lines may go away.
func TestClosedOutputEndsNothing(t *testing.T) {
	m := makeBundle(t, oneGPU)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := m.command(nil, "--only", "planted-wrong,planted-early")
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close()
	write.Close()
	_ = cmd.Wait()
	m.clean(t)
	if got := cmd.ProcessState.ExitCode(); got != statusBad || len(m.report(t, "gpu-check").Results) != 2 {
		t.Errorf("status %v, and %d results", cmd.ProcessState, len(m.report(t, "gpu-check").Results))
	}
}

// A report of the one time that there was a GPU is not written over, and a run that checks nothing
// leaves no folder.
func TestFolders(t *testing.T) {
	m := makeBundle(t, oneGPU)
	if status, out := m.run(t, nil, "--only", "planted-wrong"); status != statusBad {
		t.Fatalf("status %d: %s", status, out)
	}
	before := m.report(t, "gpu-check").Begun
	status, out := m.run(t, nil, "--only", "planted-early")
	if status != statusUsage || out != "check: gpu-check has a report.json already; --out names another folder\n" {
		t.Errorf("status %d, %q", status, out)
	}
	if after := m.report(t, "gpu-check").Begun; !after.Equal(before) {
		t.Error("the report was written over")
	}
	for _, tc := range []struct {
		devices, says string
		env, args     []string
	}{
		{`{"devices": [], "driver": {"why": "no driver"}}`, "no GPU to check: no driver;", nil, nil},
		{`{"devices": [{"name": "sim:24GiB", "driver": "580"}]}`, "the GPU, sim:24GiB, is simulated;", nil, nil},
		{`{"devices": [{"name": "a GPU", "simulated": true}]}`, "the GPU, a GPU, is simulated;", nil, nil},
		{oneGPU, "--python /nope cannot be started: fork/exec /nope: no such file or directory", nil, []string{"--python", "/nope"}},
	} {
		m := makeBundle(t, tc.devices)
		status, out := m.run(t, tc.env, tc.args...)
		if status != statusUsage || !strings.HasPrefix(out, "check: "+tc.says) || strings.Count(out, "\n") != 1 {
			t.Errorf("status %d, %q, want %q", status, out, tc.says)
		}
		if files, _ := os.ReadDir(m.work); len(files) > 0 {
			t.Errorf("%s: a folder %v is left", tc.says, files)
		}
	}
}

// A GPU that gpumem devices cannot show may still be checked, and it may be there on this day only.
func TestDevicesThatFailEndNothing(t *testing.T) {
	// The machine's log asks once more, and gets an answer.
	const first = "if [ \"$1\" = devices ] && mkdir \"$(dirname \"$0\")/asked\" 2>/dev/null; then %s; fi; echo '" + oneGPU + "'"
	for _, tc := range []struct {
		name, script string
		outcome      report.Outcome
		why          string
	}{
		{"crashes", "echo lost >&2; kill -SEGV $$", report.Crashed, "signal: segmentation fault: lost"},
		{"fails", "echo lost >&2; exit 3", report.Crashed, "exit status 3: lost"},
		{"answers something else", "echo lost; exit 0", report.Crashed, "invalid character 'l' looking for beginning of value"},
		{"hangs", "echo waiting >&2; sleep 1000", report.Hung, "no end after 1s: waiting"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := makeBundleOf(t, fmt.Sprintf(first, tc.script))
			status, out := m.run(t, []string{shortAsk + "=1"}, "--only", "planted-wrong,planted-early")
			if status != statusBad || !strings.Contains(out, string(tc.outcome)) {
				t.Errorf("status %d\n%s", status, out)
			}
			r := m.report(t, "gpu-check")
			if len(r.Results) != 3 || r.Results[1].Outcome != report.Wrong || r.Machine.CC != "" || r.Machine.GPU == "" {
				t.Fatalf("%+v", r)
			}
			if got := r.Results[0]; got.Name != "devices" || got.Outcome != tc.outcome || !strings.HasPrefix(got.Why, tc.why) {
				t.Errorf("%+v, want %s, %q", got, tc.outcome, tc.why)
			}
		})
	}
}

// A report that cannot be saved after one check may be after the next, and has all results then.
func TestReportThatIsNotSavedEndsNothing(t *testing.T) {
	const why = "check: the report is not saved: open gpu-check/report.json.new: not a directory | " +
		"open gpu-check/logs.zip.new: not a directory\n"
	m := makeBundle(t, oneGPU)
	status, out := m.run(t, nil, "--only", "planted-unsaved,planted-saved")
	if r := m.report(t, "gpu-check"); status != 0 || len(r.Results) != 2 || strings.Count(out, why) != 1 {
		t.Errorf("status %d, %d results\n%s", status, len(r.Results), out)
	}
	m = makeBundle(t, oneGPU)
	status, out = m.run(t, nil, "--only", "planted-unsaved,planted-skipped")
	if status != statusBad || !strings.Contains(out, "skipped     planted-skipped") || strings.Count(out, why) != 1 ||
		!strings.HasSuffix(out, "check: the report is not saved; the lines above are all there is\n") {
		t.Errorf("status %d\n%s", status, out)
	}
}

// TestVerdict: a run in which nothing held has shown nothing.
func TestVerdict(t *testing.T) {
	const nothing = "nothing held: every check was skipped or not reached"
	for _, tc := range []struct {
		name     string
		outcomes []report.Outcome
		unsaved  error
		want     int
		says     string
	}{
		{"held", []report.Outcome{report.Held, report.Skipped, report.NotReached}, nil, 0, ""},
		{"wrong", []report.Outcome{report.Held, report.Wrong}, nil, statusBad, ""},
		{"wrong, and none held", []report.Outcome{report.Skipped, report.Hung}, nil, statusBad, ""},
		{"none held", []report.Outcome{report.Skipped, report.NotReached}, nil, statusUsage, nothing},
		{"no check", nil, nil, statusUsage, nothing},
		{"not saved", []report.Outcome{report.Held}, os.ErrInvalid, statusBad, "the report is not saved; the lines above are all there is"},
	} {
		r := new(report.Report)
		for _, o := range tc.outcomes {
			r.Results = append(r.Results, report.Result{Outcome: o})
		}
		status, err := verdict(r, tc.unsaved)
		says := ""
		if err != nil {
			says = err.Error()
		}
		if status != tc.want || says != tc.says {
			t.Errorf("%s: status %d, %q, want %d, %q", tc.name, status, says, tc.want, tc.says)
		}
	}
	m := makeBundle(t, oneGPU)
	if status, out := m.run(t, nil, "--only", "planted-skipped"); status != statusUsage || !strings.HasSuffix(out, "check: "+nothing+"\n") {
		t.Errorf("status %d\n%s", status, out)
	}
	for _, seconds := range []string{"0", "-1", "86401", "9223372037"} {
		if status, out := m.run(t, nil, "--seconds", seconds); status != statusUsage || out != "check: --seconds "+seconds+": want 1 to 86400\n" {
			t.Errorf("--seconds %s: status %d\n%s", seconds, status, out)
		}
	}
}

// The simulated driver calls itself none.
func TestReportSaysSimulated(t *testing.T) {
	m := makeBundle(t, oneGPU)
	_, out := m.run(t, nil, "--only", "planted-wrong", "--simulated")
	if r := m.report(t, "gpu-check"); r.Machine.CC != "9.0" || r.Machine.MIG != "1g.10gb" {
		t.Errorf("%+v: what decides which tables the figures are for is missing", r.Machine)
	}
	if r := m.report(t, "gpu-check"); !r.Machine.Simulated || !strings.Contains(out, "again: check --only planted-wrong --out again-planted-wrong --simulated") {
		t.Errorf("%+v\n%s", r.Machine, out)
	}
}

// A user's settings do not decide what is measured; the page names them.
func TestSettingsAreNotPassedOn(t *testing.T) {
	m := makeBundle(t, oneGPU)
	env := []string{
		"GPUMEM_DEVICE=sim:1GiB", "XLA_FLAGS=no", "JAX_PLATFORMS=no", "TF_CPP_MIN_LOG_LEVEL=no", "PYTORCH_CUDA_ALLOC_CONF=no", "NVIDIA_TF32_OVERRIDE=no",
		"CUDA_VISIBLE_DEVICES=no", "GPU_CHECK_SIMULATED=no", "GPUMEM_RUN_DIR=/yes", "CUDA_HOME=/yes", "A_TOKEN=hidden",
	}
	_, _ = m.run(t, env, "--only", "planted-environment")
	r := m.report(t, "gpu-check")
	if r.Machine.Simulated {
		t.Error("the report calls itself simulated")
	}
	got := r.Results[0].Why
	for _, line := range env {
		if passed := strings.Contains(got, line); passed != (strings.Contains(line, "yes") || strings.Contains(line, "TOKEN")) {
			t.Errorf("%s: passed on: %v", line, passed)
		}
	}
	page, _ := os.ReadFile(filepath.Join(m.work, "gpu-check/report.txt"))
	text := strings.Join(strings.Fields(string(page)), " ")
	if want := "not passed to the checks: CUDA_VISIBLE_DEVICES, GPUMEM_DEVICE, GPU_CHECK_SIMULATED, JAX_PLATFORMS, NVIDIA_TF32_OVERRIDE, PYTORCH_CUDA_ALLOC_CONF, TF_CPP_MIN_LOG_LEVEL, XLA_FLAGS."; !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, page)
	}
	z, err := zip.OpenReader(filepath.Join(m.work, "gpu-check/logs.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	f, err := z.File[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	machine, _ := io.ReadAll(f)
	for _, want := range []string{"/bin/gpumem devices --json\n" + oneGPU, "/bin/gpumem ps --json\n", "$ uname -a\nLinux", "$ nproc\n", "$ free -b\n", "$ ldd --version\n", " -m pip freeze\n", "\nXLA_FLAGS=no\n", "\nA_TOKEN=(not shown)\n"} {
		if z.File[0].Name != machineLog || !strings.Contains(string(machine), want) {
			t.Errorf("%s has no %q", z.File[0].Name, want)
		}
	}
}

// The command and the libraries of a wheel and of an archive are at the same places, and nothing else is
// written. A link is refused: it could lead out of the folder.
func TestUnpack(t *testing.T) {
	pack := func(t *testing.T, name string, write func(string) error) *bundle {
		b := testBundle(t)
		if err := write(filepath.Join(b.root, name)); err != nil {
			t.Fatal(err)
		}
		return b
	}
	files := []any{
		tar.Header{Name: "gpumem/", Typeflag: tar.TypeDir}, "",
		tar.Header{Name: "gpumem/bin/gpumem"}, "command",
		tar.Header{Name: "gpumem/lib/gpumem/a.so"}, "library",
		tar.Header{Name: "gpumem/lib/../../out"}, "out",
		tar.Header{Name: "gpumem/jax.py"}, "python",
		tar.Header{Name: "bin/gpumem"}, "another",
	}
	wheel := func(path string) error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		z := zip.NewWriter(f)
		for i := 2; i < len(files); i += 2 {
			w, err2 := z.Create(files[i].(tar.Header).Name)
			if err2 == nil {
				_, err2 = io.WriteString(w, files[i+1].(string))
			}
			err = errors.Join(err, err2)
		}
		return errors.Join(err, z.Close(), f.Close())
	}
	archive := func(path string) error { return writeTar(path, files...) }
	for name, write := range map[string]func(string) error{"gpumem_tools-1-py3-none-any.whl": wheel, "gpumem.tar.gz": archive} {
		b := pack(t, name, write)
		if err := b.unpack(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for path, want := range map[string]string{"bin/gpumem": "command", "lib/gpumem/a.so": "library"} {
			if text, err := os.ReadFile(filepath.Join(b.scratch, path)); string(text) != want {
				t.Errorf("%s: %s has %q, %v", name, path, text, err)
			}
		}
		for _, path := range []string{"jax.py", "../out", "out"} {
			if _, err := os.Stat(filepath.Join(b.scratch, path)); err == nil {
				t.Errorf("%s: %s is written", name, path)
			}
		}
	}
	linked := pack(t, "gpumem.tar.gz", func(path string) error {
		return writeTar(path, tar.Header{Name: "gpumem/lib/gpumem", Typeflag: tar.TypeSymlink, Linkname: "/"}, "")
	})
	if err := linked.unpack(); err == nil || !strings.HasSuffix(err.Error(), "gpumem.tar.gz: gpumem/lib/gpumem: want files and folders only") {
		t.Errorf("a link: %v", err)
	}
	if err := testBundle(t).unpack(); err == nil || !strings.Contains(err.Error(), " has no wheel and no gpumem.tar.gz; ") {
		t.Errorf("nothing: %v", err)
	}
}

// Flags that are for check itself are not offered.
func TestHelp(t *testing.T) {
	status, out := makeBundle(t, oneGPU).run(t, nil, "--help")
	if status != 0 || strings.Contains(out, "plant") || strings.Contains(out, "--one") || !strings.Contains(out, "--only NAME,...") || !strings.Contains(out, "--list") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// --seconds counts from the start: looking at the machine is part of it.
func TestSecondsIncludeLooking(t *testing.T) {
	m := makeBundleOf(t, "sleep 1\necho '"+oneGPU+"'")
	_, _ = m.run(t, nil, "--only", "planted-wrong", "--seconds", "4")
	if r := m.report(t, "gpu-check"); r.Results[0].Outcome != report.NotReached || r.Seconds < 2 {
		t.Errorf("%+v after %.1f s of 4, of which looking took 2", r.Results[0], r.Seconds)
	}
}
