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

	"github.com/google/go-cmp/cmp"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// TestChooseLoaded: which of the frameworks that a process has loaded is
// explained, and what is said of the others.
func TestChooseLoaded(t *testing.T) {
	jax, old, bare := proc.Framework{Name: "jax", Version: "0.4.30"}, proc.Framework{Name: "jax", Version: "0.0.1"}, proc.Framework{Name: "jax"}
	own := proc.Framework{Name: "gpumem"} // the one other name that takes part in every version
	strange := proc.Framework{Name: "mxnet", Version: "1.9.1"}
	for _, tc := range []struct {
		name   string
		loaded []proc.Framework
		as     string // "": not given
		want   string
		notes  []string
	}{
		{"none", nil, "", "jax", []string{"process 7 has loaded no framework known here: explained as jax; --as names another"}},
		{"one", []proc.Framework{jax}, "", "jax@0.4.30", nil},
		{"several", []proc.Framework{jax, own}, "", "jax@0.4.30", []string{"process 7 has also loaded gpumem; --as names the one to explain"}},
		{"not explained", []proc.Framework{strange, jax}, "", "jax@0.4.30", []string{"process 7 has loaded mxnet@1.9.1, which this version does not explain"}},
		{"only such", []proc.Framework{strange}, "", "jax", []string{
			"process 7 has loaded mxnet@1.9.1, which this version does not explain",
			"process 7 has loaded no framework known here: explained as jax; --as names another",
		}},
		{"no release", []proc.Framework{bare}, "", "jax", []string{"process 7: the release of jax cannot be told: the newest is explained; --as jax@VERSION names it"}},
		{"no such release", []proc.Framework{old}, "", "jax", []string{"process 7: JAX 0.0.1 is not known; the oldest known release is 0.1.16; the newest is explained"}},
		{"named", []proc.Framework{strange, jax, own}, "jax", "jax@0.4.30", nil},
		{"named with a release", []proc.Framework{jax}, "jax@0.5.0", "jax@0.5.0", nil},
		{"named, and not loaded", []proc.Framework{jax}, "gpumem", "gpumem", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := &question{as: frameworks.Release{Name: "jax"}, process: &process{pid: 7, frameworks: tc.loaded}}
			if tc.as != "" {
				f, err := frameworks.ParseRelease(tc.as)
				if err != nil {
					t.Fatal(err)
				}
				q.as, q.versioned = f, f.Version != ""
			}
			q.chooseLoaded(tc.as != "")
			if got := q.as.String(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if diff := cmp.Diff(tc.notes, q.notes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSetDevice: what the process holds was free when it started, and free that
// is not known is not 0.
func TestSetDevice(t *testing.T) {
	const gib = 1 << 30
	holding := []device.Process{{PID: 9, Used: 2 * gib, Known: true}, {PID: 7, Used: 3 * gib, Known: true}, {PID: 7, Kind: "graphics", Used: 3 * gib, Known: true}}
	for _, tc := range []struct {
		name   string
		status device.Status
		pid    int // 0: none
		free   uint64
		line   string
		json   string
	}{
		{"plain", device.Status{Free: 5 * gib, Used: 5 * gib, Processes: holding}, 0, 5 * gib,
			"cuda:0, H200: 10 GiB, 5 GiB free", `{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":5368709120}`},
		{"held", device.Status{Free: 5 * gib, Used: 5 * gib, Processes: holding}, 7, 8 * gib,
			"cuda:0, H200: 10 GiB, 5 GiB free, 3 GiB held by process 7", `{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":5368709120}`},
		{"not told", device.Status{Free: 5 * gib, Used: 5 * gib, Processes: []device.Process{{PID: 7}}}, 7, 5 * gib,
			"cuda:0, H200: 10 GiB, 5 GiB free", `{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":5368709120}`},
		{"all free", device.Status{Free: 10 * gib}, 0, 10 * gib,
			"cuda:0, H200: 10 GiB, all of it free", `{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":10737418240}`},
		{"full", device.Status{Used: 10 * gib}, 0, 0,
			"cuda:0, H200: 10 GiB, 0 B free", `{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":0}`},
		{"without NVML", device.Status{}, 0, 10 * gib,
			"cuda:0, H200: 10 GiB, how much of it is free is not known", `{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":null}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := &question{}
			if tc.pid != 0 {
				q.process = &process{pid: tc.pid}
			}
			tc.status.Info = device.Info{Name: "H200", Ordinal: 2, HasPages: true, Total: 10 * gib, Granularity: 512, CCMajor: 9}
			tc.status.Notes = []string{"NVML: no\npermission"}
			q.setDevice(open.Listed{Words: "cuda:0", Status: tc.status})
			want := policy.Device{Ordinal: 2, Total: 10 * gib, Free: tc.free, Granularity: 512, CCMajor: 9}
			if got := q.policyDevice(); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			if got := q.deviceLine(); got != tc.line {
				t.Errorf("%s, want %s", got, tc.line)
			}
			got, err := json.Marshal(q.deviceJSON())
			if err != nil || string(got) != tc.json {
				t.Errorf("%s, %v, want %s", got, err, tc.json)
			}
			var b strings.Builder
			if q.writeNotes(&b); b.String() != "gpumem: cuda:0: NVML: no; permission\n" {
				t.Errorf("%q", b.String())
			}
		})
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
