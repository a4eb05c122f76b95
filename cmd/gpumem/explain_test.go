package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gpumem/device/open"
	"gpumem/node/probe"
)

func TestDeviceLine(t *testing.T) {
	gib := func(n uint64) *uint64 { n <<= 30; return &n }
	for want, about := range map[string]probe.About{
		"cuda:0, H200: 10 GiB, 5 GiB free":                          {Device: probe.Device{Free: gib(5)}},
		"cuda:0, H200: 10 GiB, 5 GiB free, 3 GiB held by process 7": {Device: probe.Device{Free: gib(5)}, Process: &probe.Running{PID: 7, Used: gib(3)}},
		"cuda:0, H200: 10 GiB, all of it free":                      {Device: probe.Device{Free: gib(10)}},
		"cuda:0, H200: 10 GiB, 0 B free":                            {Device: probe.Device{Free: gib(0)}},
		"cuda:0, H200: 10 GiB, how much of it is free is not known": {Process: &probe.Running{PID: 7}},
	} {
		about.Device.Spec, about.Device.Name, about.Device.Total = "cuda:0", "H200", 10<<30
		if got := deviceLine(&probe.Question{About: about}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestExplainProcess explains another process by what it was started with.
func TestExplainProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows the environment of another process")
	}
	t.Setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false") // ours, not the child's
	child := exec.Command("gpumem", "replay", "-", "--device", "sim:1GiB")
	child.Env = []string{"PATH=" + os.Getenv("PATH"), "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = child.Wait() }()
	// More than a pipe holds: once it is written the child is at work.
	if _, err := in.Write(bytes.Repeat([]byte("a 1 100\nf 1\n"), 20000)); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprint(child.Process.Pid)

	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"explain", "--pid", pid, "--device", "sim:80GiB"}, &out, &errs); code != 0 {
		t.Fatalf("status %d, %s", code, errs.String())
	}
	for _, want := range []string{
		"\nProcess " + pid + ", by the environment that it was started with:",
		"\n  XLA_PYTHON_CLIENT_MEM_FRACTION=.5\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("without %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "PREALLOCATE") {
		t.Errorf("has this program's own environment:\n%s", out.String())
	}
	if want := "gpumem: process " + pid + " has loaded no framework known here: explained as jax; --as names another\n"; errs.String() != want {
		t.Errorf("stderr %q, want %q", errs.String(), want)
	}

	// With --as, --diff and --json.
	out.Reset()
	errs.Reset()
	run(t.Context(), []string{"explain", "--pid", pid, "--as", "jax", "--device", "sim:80GiB", "--json", "--diff", "0.4.31", "0.4.32"}, &out, &errs)
	var got struct {
		A struct {
			Settings []struct{ Name, Value string }
		}
		Process *struct {
			PID        int
			Frameworks []any
			Used       *uint64 `json:"used_bytes"`
		}
		Differences []struct{ Field string }
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if p := got.Process; p == nil || fmt.Sprint(p.PID) != pid || p.Frameworks == nil || p.Used != nil {
		t.Errorf("process %+v", p)
	}
	if s := got.A.Settings; len(s) != 1 || s[0].Name != "XLA_PYTHON_CLIENT_MEM_FRACTION" || s[0].Value != ".5" {
		t.Errorf("settings %+v", s)
	}
	if d := got.Differences; len(d) != 1 || d[0].Field != "settings.XLA_PYTHON_CLIENT_MEM_FRACTION" || errs.Len() > 0 {
		t.Errorf("differences %+v, stderr %s", d, errs.String())
	}
}

// TestExplainHolder: what a process holds on a shared device is told, and was
// free when it started.
func TestExplainHolder(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("shared simulated devices are Linux's")
	}
	words := "sim@" + filepath.Join(t.TempDir(), "gpu")
	spec, err := open.Parse(words + ",total=8GiB,create")
	if err != nil {
		t.Fatal(err)
	}
	d, err := spec.Device()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Alloc(6 << 30); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprint(os.Getpid())
	var out, errs bytes.Buffer
	run(t.Context(), []string{"explain", "--pid", pid, "--as", "jax@0.11.0", "--device", words, "--json"}, &out, &errs)
	var got struct {
		Gets    uint64 `json:"gets_bytes"`
		First   uint64 `json:"taken_at_first_operation_bytes"`
		Process struct {
			Used uint64 `json:"used_bytes"`
		}
		Device struct {
			Free uint64 `json:"free_bytes"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	if got.Process.Used != 6<<30 || got.Device.Free != 2<<30 || got.Gets != got.First || got.First != 6<<30 {
		t.Errorf("%+v", got)
	}
}

func TestExplainOutputFails(t *testing.T) {
	for _, args := range [][]string{
		{"explain", "--device", "sim:1GiB"},
		{"explain", "--device", "sim:1GiB", "--json"},
		{"explain", "--device", "sim:1GiB", "--diff", "0.4.0", "0.11.0"},
		{"explain", "--device", "sim:1GiB", "--diff", "0.4.0", "0.11.0", "--json"},
	} {
		var errs bytes.Buffer
		if code := run(t.Context(), args, failing{}, &errs); code != exitUsage || errs.String() != "gpumem: no space left\n" {
			t.Errorf("%v: status %d, stderr %q", args, code, errs.String())
		}
	}
}
