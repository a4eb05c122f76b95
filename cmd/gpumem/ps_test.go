package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/machine"
	"gpumem/share"
)

var psNow = time.Date(2026, 9, 21, 12, 0, 0, 0, time.UTC)

// psExample is a state that has everything.
func psExample(t testing.TB) *machine.Snapshot {
	t.Helper()
	known := func(pid int, ago time.Duration, command ...string) machine.Program {
		gone, parent, started := false, 1, psNow.Add(-ago)
		return machine.Program{PID: pid, Name: "python3", ParentGone: &gone, Parent: &parent, User: "ann", Command: command, Frameworks: []string{}, Started: &started}
	}
	gib := func(n uint64) *uint64 { n <<= 30; return &n }
	first := known(11, 26*time.Hour, "/usr/bin/python3", "train.py")
	first.Kind, first.Used, first.Frameworks, first.Releases = "compute", gib(20), []string{"jax"}, []string{"0.4.30"}
	first.Asks = &machine.Asks{Framework: "jax", Version: "0.4.30", Summary: "Takes 20 GiB of the 80 GiB at the first operation, and keeps it.",
		Brief: "20 GiB at once (1 warning)", Allocator: "bfc", First: 20 << 30, Limit: gib(20), Warnings: 1}
	first.Lease = &machine.Lease{Bytes: 22 << 30, Programs: 1}
	second := known(12, 65*time.Minute, "ray::f\x1b[31m")
	second.Kind, second.Used, second.Frameworks, second.Container = "compute", gib(1), nil, "0123456789ab"
	*second.ParentGone = true
	fourth := known(14, 3*time.Second)
	fourth.Lease = &machine.Lease{Bytes: 4 << 30}
	var devices []machine.Device
	for _, l := range listed {
		devices = append(devices, machine.Device{Index: l.Ordinal, Spec: l.Words, Name: l.Name, UUID: l.UUID, Total: l.Total, Free: &l.Free, Used: &l.Used, Display: l.Display, Notes: l.Notes})
	}
	d := &devices[0]
	d.Leased = 30 << 30
	d.Programs = []machine.Program{first, second,
		{PID: 13, Name: "Xorg", Kind: "graphics", Unknown: "process 13: there is no such process"},
		fourth,
		{Lease: &machine.Lease{Bytes: 4 << 30}, User: "3999999999", Command: []string{"python3", "x.py"}, Unknown: "its process cannot be seen from here"},
	}
	d.Waiting = []machine.Waiting{
		{Wants: 30 << 30, PID: 15, Command: []string{"./a"}, Since: psNow.Add(-90 * time.Second)},
		{Place: 1, Since: psNow.Add(-time.Second), Stopped: true},
	}
	return &machine.Snapshot{Time: psNow, Devices: devices}
}

func TestPsText(t *testing.T) {
	const want = `cuda:0 NVIDIA H200: 139.80 GiB, 100.74 GiB used, 39.06 GiB free, 30 GiB leased
  pid  user          age        holds   lease  framework   asks for                    container     mark         command
   11  ann         1d02h       20 GiB  22 GiB  jax 0.4.30  20 GiB at once (1 warning)  -             -            python3 train.py
   12  ann         1h05m        1 GiB       -  unknown     -                           0123456789ab  parent gone  ray::f?[31m
   13  -               -      unknown       -  -           -                           -             -            unknown
   14  ann            3s  nothing yet   4 GiB  -           -                           -             -            [python3]
    -  3999999999      -  nothing yet   4 GiB  -           -                           -             -            python3 x.py
  process 15 has waited for 30 GiB for 1m (next): a
  a program has waited for all that can be shared for 1s (1 before it, stopped: it is passed over)
  unknown: process 13: there is no such process
  unknown: its process cannot be seen from here

cuda:1 NVIDIA A100 MIG 1g.5gb: 4.75 GiB, 0 B used, 4.75 GiB free, drives a display
  no program holds memory
  NVML: no permission
`
	if diff := cmp.Diff(want, psText(psExample(t), 0)); diff != "" {
		t.Error(diff)
	}
	if got := psText(&machine.Snapshot{}, 0); got != "no devices\n" {
		t.Errorf("%q", got)
	}
	blind := machine.Device{Spec: "cuda:0", Name: "cuda:0", Total: 1 << 30}
	if got := psText(&machine.Snapshot{Devices: []machine.Device{blind}}, 0); !strings.HasPrefix(got, "cuda:0: 1 GiB, used unknown\n") {
		t.Errorf("%q", got)
	}
}

// TestPsNarrow: no line is wider than the screen, each program keeps its line,
// and the command stays as long as there is room for it.
func TestPsNarrow(t *testing.T) {
	state := psExample(t)
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(1, 200).Draw(t, "width")
		text := psText(state, width)
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Fatalf("%d characters: %q", n, line)
			}
		}
		if width < 40 {
			return
		}
		for _, want := range []string{"\n   11  ", "  20 GiB  ", "  python3 train.py\n", "\n   13  ", " nothing yet  "} {
			if !strings.Contains(text, want) {
				t.Fatalf("%q is missing:\n%s", want, text)
			}
		}
	})
	// What matters least goes first.
	for width, want := range map[int]string{
		200: "pid user age holds lease framework asks for container mark command",
		120: "pid user age holds lease framework asks for mark command",
		80:  "pid user age holds lease mark command",
		60:  "pid holds lease mark command",
		40:  "pid holds command",
	} {
		_, text, _ := strings.Cut(psText(state, width), "\n  pid")
		head, _, _ := strings.Cut("pid"+text, "\n")
		if got := strings.Join(strings.Fields(head), " "); got != want {
			t.Errorf("%d: %s, want %s", width, got, want)
		}
	}
}

func TestPsSort(t *testing.T) {
	for by, want := range map[string][]int{
		"memory": {11, 12, 0, 13, 14}, "pid": {0, 11, 12, 13, 14}, "age": {11, 12, 14, 0, 13},
	} {
		d := psExample(t).Devices[0]
		d.Sort(by)
		var got []int
		for _, p := range d.Programs {
			got = append(got, p.PID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", by, diff)
		}
	}
}

// TestPsJSON: the names of a state file, and what is not told is absent.
func TestPsJSON(t *testing.T) {
	var b bytes.Buffer
	if err := encode(&b, psExample(t)); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Devices []struct {
			Index     int
			Name      string
			Total     uint64 `json:"total_bytes"`
			Used      uint64 `json:"used_bytes"`
			Display   bool   `json:"display_active"`
			Processes []map[string]any
			Waiting   []map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	d := got.Devices[0]
	if len(got.Devices) != 2 || d.Index != 0 || d.Name != "NVIDIA H200" || d.Total != 143156<<20 || d.Used != 103156<<20 || d.Display || !got.Devices[1].Display {
		t.Errorf("%+v", got)
	}
	for i, p := range []string{
		`{"pid":11,"name":"python3","kind":"compute","used_bytes":21474836480,"frameworks":["jax"],"releases":["0.4.30"],"parent_gone":false,"parent":1,"user":"ann",
			"command":["/usr/bin/python3","train.py"],"started":"2026-09-20T10:00:00Z","lease_bytes":23622320128,"lease_programs":1,
			"asks":{"framework":"jax","version":"0.4.30","summary":"Takes 20 GiB of the 80 GiB at the first operation, and keeps it.","allocator":"bfc",
			"taken_at_first_operation_bytes":21474836480,"limit_bytes":21474836480,"warnings":1,"errors":0}}`,
		`{"pid":12,"name":"python3","kind":"compute","used_bytes":1073741824,"parent_gone":true,"parent":1,"user":"ann","command":["ray::f\u001b[31m"],"container":"0123456789ab","started":"2026-09-21T10:55:00Z"}`,
		`{"pid":13,"name":"Xorg","kind":"graphics","not_told":"process 13: there is no such process"}`,
		`{"pid":14,"name":"python3","frameworks":[],"parent_gone":false,"parent":1,"user":"ann","started":"2026-09-21T11:59:57Z","lease_bytes":4294967296}`,
		`{"user":"3999999999","command":["python3","x.py"],"lease_bytes":4294967296,"not_told":"its process cannot be seen from here"}`,
	} {
		var want map[string]any
		if err := json.Unmarshal([]byte(p), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.Processes[i]); diff != "" {
			t.Errorf("%d: %s", i, diff)
		}
	}
	if w := d.Waiting; len(w) != 2 || w[0]["pid"] != 15.0 || w[0]["wants_bytes"] != float64(30<<30) || w[1]["place"] != 1.0 {
		t.Errorf("%v", w)
	}
	if err := encode(failing{}, psExample(t)); err == nil {
		t.Error("an output that is full is no error")
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", time.Hour - 1: "59m",
		time.Hour: "1h00m", 24*time.Hour - 1: "23h59m", 24 * time.Hour: "1d00h", 1000 * time.Hour: "41d16h",
	} {
		if got := age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestPsOutputFails(t *testing.T) {
	t.Setenv(share.EnvDir, t.TempDir())
	for _, args := range [][]string{{"ps", "--device", "sim:1GiB"}, {"ps", "--device", "sim:1GiB", "--json"}} {
		var errs bytes.Buffer
		if code := run(t.Context(), args, failing{}, &errs); code != exitUsage || errs.String() != "gpumem: no space left\n" {
			t.Errorf("%v: status %d, stderr %q", args, code, errs.String())
		}
	}
	var errs bytes.Buffer
	writeNotes(&errs, []string{"a\nb"})
	if errs.String() != "gpumem: a; b\n" {
		t.Errorf("%q", errs.String())
	}
}

// TestPsPool: the pools of a lease's programs have columns, and the lease a line.
func TestPsPool(t *testing.T) {
	started := psNow.Add(-5 * time.Second)
	program := func(pid int, pool machine.PoolUse, l *machine.Lease) machine.Program {
		l.Programs++
		if l.Sum == nil {
			l.Sum = new(machine.PoolUse)
		}
		l.Sum.Add(pool)
		return machine.Program{PID: pid, Name: "python3", Kind: "compute", User: "ann", Command: []string{"python3", "train.py"}, Frameworks: []string{}, Started: &started, Pool: &pool, Lease: l}
	}
	l := &machine.Lease{Bytes: 6 << 30, Holder: 11}
	d := machine.Device{Spec: "cuda:0", Total: 80 << 30, Leased: 6 << 30, Waiting: []machine.Waiting{}, Programs: []machine.Program{
		program(11, machine.PoolUse{Held: 2 << 30, InUse: 1 << 30, PeakHeld: 3 << 30, PeakInUse: 3 << 30, Outside: 1 << 29, Refused: 1, DriverCalls: 40}, l),
		program(12, machine.PoolUse{Held: 1 << 30, InUse: 1 << 30, PeakHeld: 1 << 30, PeakInUse: 1 << 30, Outside: 1 << 29, Charged: 1 << 28, Refused: 1}, l),
	}}
	const want = `cuda:0: 80 GiB, used unknown, 6 GiB leased
  pid  user  age    holds  lease   pool  in use   peak  command
   11  ann    5s  unknown  6 GiB  2 GiB   1 GiB  3 GiB  python3 train.py
   12  ann    5s  unknown  6 GiB  1 GiB   1 GiB  1 GiB  python3 train.py
  the lease of process 11: 4.25 GiB of its 6 GiB held (pool 3 GiB, 2 GiB of it in use, 256 MiB by the program itself, 1 GiB outside), at most 4 GiB in use so far, 2 requests refused
`
	if diff := cmp.Diff(want, psText(&machine.Snapshot{Time: psNow, Devices: []machine.Device{d}}, 0)); diff != "" {
		t.Error(diff)
	}
	var b bytes.Buffer
	if err := encode(&b, d.Programs[0]); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Bytes uint64            `json:"lease_bytes"`
		Own   map[string]uint64 `json:"pool"`
		Lease map[string]uint64 `json:"lease_pool"`
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	own := map[string]uint64{"held_bytes": 2 << 30, "in_use_bytes": 1 << 30, "held_peak_bytes": 3 << 30, "in_use_peak_bytes": 3 << 30, "charged_bytes": 0, "outside_bytes": 1 << 29, "refused": 1, "driver_calls": 40}
	lease := map[string]uint64{"held_bytes": 3 << 30, "in_use_bytes": 2 << 30, "held_peak_bytes": 4 << 30, "in_use_peak_bytes": 4 << 30, "charged_bytes": 1 << 28, "outside_bytes": 1 << 30, "refused": 2, "driver_calls": 40}
	if diff := cmp.Diff(own, got.Own) + cmp.Diff(lease, got.Lease); diff != "" || got.Bytes != 6<<30 {
		t.Errorf("lease %d %s", got.Bytes, diff)
	}
}
