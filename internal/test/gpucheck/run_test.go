//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/internal/test/gpucheck/report"
)

// TestMain makes the test binary the program that a check runs in.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "--one" {
		if err := child(os.Args[2]); err != nil {
			os.Exit(2)
		}
		return
	}
	os.Exit(m.Run())
}

// withEnvironment lists the processes whose environment has a value.
func withEnvironment(value string) (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte(value)) {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			found = append(found, strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// A check that hangs, crashes or finds a wrong figure is reported as that, with what it had
// measured before and a log, and leaves no process behind.
func TestPlanted(t *testing.T) {
	b := &bundle{root: t.TempDir(), out: t.TempDir(), scratch: t.TempDir()}
	if err := os.Mkdir(b.logFolder(), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		outcome report.Outcome
		says    string
		figures int
	}{
		{"planted-hang", report.Hung, "killed after 2 s", 1},
		{"planted-crash", report.Crashed, "exit status 2: panic: planted", 1},
		{"planted-wrong", report.Wrong, "figure: measured 3 bytes, the documents say 2 bytes", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _ := find(tc.name)
			r := b.one(c, c.limit)
			if r.Outcome != tc.outcome || len(r.Figures) != tc.figures || !strings.HasPrefix(r.Why+strings.Join(r.Faults, "\n"), tc.says) {
				t.Errorf("%+v, want %s, %d figures, and %q", r, tc.outcome, tc.figures, tc.says)
			}
			if left := withEnvironment(scratchVar + "=" + b.scratch); len(left) > 0 {
				t.Errorf("processes are left: %q", left)
			}
		})
	}
}

// What cannot run, or has no time, says so and is not run.
func TestNotRun(t *testing.T) {
	b := &bundle{out: t.TempDir(), options: options{python: "python9", simulated: true}}
	c, _ := find("planted-wrong")
	for _, tc := range []struct {
		name    string
		needs   []string
		left    float64
		outcome report.Outcome
		why     string
	}{
		{"real GPU", []string{"gpu"}, 100, report.Skipped, "a simulated GPU cannot answer this"},
		{"package", []string{"jax"}, 100, report.Skipped, "python9 has no jax"},
		{"Python", []string{"python"}, 100, report.Skipped, "python9 is not there"},
		{"time", nil, 1, report.NotReached, "the time was up"},
		{"no time", nil, -1, report.NotReached, "the time was up"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.needs = tc.needs
			if r := b.one(c, seconds(tc.left)); r.Outcome != tc.outcome || r.Why != tc.why || r.Figures != nil {
				t.Errorf("%+v, want %s, %q", r, tc.outcome, tc.why)
			}
		})
	}
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

func TestChoose(t *testing.T) {
	for _, tc := range []struct{ only, plant, want string }{
		{"reset,driver", "", "reset driver"},
		{"reset", "wrong", "planted-wrong reset"},
		{"nothing", "", `--only "nothing": no check has that name; --list has them`},
		{"", "fire", `--plant "fire": want hang, crash, wrong`},
	} {
		got, err := choose(tc.only, tc.plant)
		var names []string
		for _, c := range got {
			names = append(names, c.name)
		}
		if err != nil {
			names = []string{err.Error()}
		}
		if strings.Join(names, " ") != tc.want {
			t.Errorf("--only %q --plant %q: %q, want %q", tc.only, tc.plant, names, tc.want)
		}
	}
	if got, err := choose("", ""); err != nil || len(got) != len(checks) {
		t.Errorf("%d of %d checks: %v", len(got), len(checks), err)
	}
}

// Each check says what it settles and where that stands, in a document that there is, and the
// page of checks has its name.
func TestClaims(t *testing.T) {
	page, err := os.ReadFile("../../../docs/gpu.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, c := range checks {
		if names[c.name] {
			t.Errorf("two checks are called %s", c.name)
		}
		names[c.name] = true
		if c.claim == "" || c.limit <= 0 || c.run == nil {
			t.Errorf("%s: %+v, want a claim, a limit and a function", c.name, c)
		}
		if _, err := os.Stat(filepath.Join("../../..", c.doc)); err != nil {
			t.Errorf("%s: its document: %v", c.name, err)
		}
		if !bytes.Contains(page, []byte("| `"+c.name+"` | "+c.claim+" |")) {
			t.Errorf("docs/gpu.md has no row | `%s` | %s |", c.name, c.claim)
		}
	}
}

func TestReadMedians(t *testing.T) {
	got := readMedians("# x\n| call | n | least us | median us | p99 us | most us |\n|---|---|---|---|---|---|\n| cuMemMap 2 MiB | 4 | 1.00 | 2.50 | 3.00 | 4.00 |\n* a fact\n")
	if len(got) != 1 || got["cuMemMap 2 MiB"] != 2.5 {
		t.Errorf("%v", got)
	}
	slope := cost{row: "a", large: "b", betweenMiB: 4}
	for _, tc := range []struct {
		medians map[string]float64
		want    float64
		ok      bool
	}{
		{map[string]float64{"a": 2, "b": 10}, 2, true},
		{map[string]float64{"a": 2, "b": 1}, 0, true},
		{map[string]float64{"a": 2}, 0, false},
	} {
		if got, ok := slope.from(tc.medians); ok != tc.ok || ok && got != tc.want {
			t.Errorf("%v: %v, %v, want %v, %v", tc.medians, got, ok, tc.want, tc.ok)
		}
	}
}
