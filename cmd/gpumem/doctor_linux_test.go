package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/holder"
	"gpumem/node/machine"
	"gpumem/node/share"
)

// TestDoctorMachine: --machine is what gpumem ps --json shows, and --pid has the
// process beside it, with the variables that a setting of memory may be and no others.
func TestDoctorMachine(t *testing.T) {
	t.Setenv(share.EnvDir, t.TempDir())
	t.Setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5")
	t.Setenv("A_SECRET", "x")
	file, _ := holder.Start(t)
	dir := filepath.Dir(file)
	for _, name := range []string{"site-packages/jaxlib/libjax_common.so", "site-packages/jaxlib-0.4.30.dist-info/METADATA"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pid := holder.Another(t, dir, file, "site-packages/jaxlib/libjax_common.so")

	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"ps", "--device", "sim@" + file, "--json"}, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	f := doctorOptions{machine: true, devices: []string{"sim@" + file}}
	got, notes, err := f.readState(t.Context())
	if err != nil || len(notes) > 0 {
		t.Fatalf("%v, %q", err, notes)
	}
	var b bytes.Buffer
	if err := encode(&b, got); err != nil {
		t.Fatal(err)
	}
	started := regexp.MustCompile(`"started": .*`) // each reading differs by a tick
	if diff := cmp.Diff(started.ReplaceAllString(out.String(), ""), started.ReplaceAllString(b.String(), "")); diff != "" {
		t.Errorf("(-ps +doctor)\n%s", diff)
	}
	if len(got.Devices) != 1 || len(got.Devices[0].Programs) != 2 || got.Devices[0].InUse() != 4<<20 {
		t.Errorf("%+v", got)
	}

	f.pid, f.hasPID = pid, true
	if got, _, err = f.readState(t.Context()); err != nil {
		t.Fatal(err)
	}
	process := &machine.Process{
		PID: pid, Frameworks: []string{"jax"}, Versions: map[string]string{"jax": "0.4.30"},
		Env: map[string]string{"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5", share.EnvDir: os.Getenv(share.EnvDir)},
	}
	if diff := cmp.Diff(process, got.Process); diff != "" {
		t.Error(diff)
	}
	if !slices.ContainsFunc(got.Devices[0].Programs, func(h machine.Program) bool {
		return h.PID == pid && h.Holds() == 2<<20 && slices.Equal(h.Frameworks, []string{"jax"})
	}) {
		t.Errorf("the process is not among the GPU's: %+v", got.Devices[0].Programs)
	}

	// The whole command, from a pipe that is empty.
	out.Reset()
	errs.Reset()
	cmd := exec.Command("gpumem", "doctor", "--pid", strconv.Itoa(pid), "--device", "sim@"+file, "--json")
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 || !strings.Contains(out.String(), `"verdict": `) {
		t.Errorf("%v, %s, %s", err, errs.String(), out.String())
	}
}

// TestDoctorTerminal: someone who types the name alone is told how to give it a
// log; it does not wait.
func TestDoctorTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer terminal.Close()
	for _, tc := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"doctor"}, exitUsage, "gpumem: no log: name its FILE"},
		{[]string{"doctor", "--machine", "--device", "sim:24GiB,used=23GiB", "--json"}, 0, ""},
	} {
		cmd := exec.Command("gpumem", tc.args...)
		var errs bytes.Buffer
		cmd.Stdin, cmd.Stderr = terminal, &errs
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != tc.status || !strings.HasPrefix(errs.String(), tc.want) || tc.want == "" && errs.Len() > 0 || strings.Count(errs.String(), "\n") > 1 {
			t.Errorf("%v: status %d, %s", tc.args, got, errs.String())
		}
	}
}
