//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"gpumem/internal/test/gpucheck/report"
)

// asMain makes the test binary the program `check`.
const asMain = "CHECK_IS_MAIN"

// shortAsk makes the limit of gpumem devices a second.
const shortAsk = "CHECK_ASKS_SHORTLY"

// Checks of this test's own.
func init() {
	lastWordsIn = 10 * time.Second // many tests run at once
	if os.Getenv(shortAsk) != "" {
		askLimit = time.Second
	}
	planted = append(planted,
		check{name: "planted-early", limit: 10 * time.Second, run: func(*call) error {
			_, _ = os.Stdout.WriteString("the last words\n")
			os.Exit(0)
			return nil
		}},
		check{name: "planted-noise", limit: 10 * time.Second, run: func(c *call) error {
			noise := "\x1b[31m" + strings.Repeat("\xffé\r", 1<<20)
			c.fault("%s", noise)
			c.note("%s", noise)
			_, _ = os.Stdout.WriteString(noise)
			panic(noise)
		}},
		check{name: "planted-late", limit: 10 * time.Second, run: func(c *call) error {
			_, err := c.exec(process{args: []string{"sleep", "1000"}, limit: 100 * time.Millisecond})
			return err
		}},
		check{name: "planted-missing", limit: 10 * time.Second, run: func(c *call) error { return c.gpumem(nil, nil, "ps") }},
		check{name: "planted-costs", limit: time.Minute, run: costs},
		check{name: "planted-unsaved", limit: 10 * time.Second, run: func(*call) error {
			return errors.Join(os.RemoveAll("gpu-check"), os.WriteFile("gpu-check", nil, 0o644))
		}},
		check{name: "planted-saved", limit: 10 * time.Second, run: func(*call) error {
			return errors.Join(os.Remove("gpu-check"), os.Mkdir("gpu-check", 0o755))
		}},
		check{name: "planted-skipped", limit: 10 * time.Second, run: func(*call) error { return skipped("not there") }},
		check{name: "planted-environment", limit: 10 * time.Second, run: func(*call) error { return errors.New(strings.Join(os.Environ(), " ")) }},
	)
}

// TestMain makes the test binary the program that a check runs in.
func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	if len(os.Args) == 3 && os.Args[1] == "--one" {
		if err := child(os.Args[2]); err != nil {
			os.Exit(2)
		}
		return
	}
	os.Exit(m.Run())
}

// withEnvironment lists the command lines of processes whose environment has a value.
func withEnvironment(value string) (found []string) {
	for _, pid := range pidsWithEnvironment(value) {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		found = append(found, strings.ReplaceAll(string(cmdline), "\x00", " "))
	}
	return found
}

func pidsWithEnvironment(value string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(append(env, 0), []byte(value+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// testBundle is a bundle without programs.
func testBundle(t *testing.T) *bundle {
	b := &bundle{root: t.TempDir(), scratch: t.TempDir()}
	if err := os.Mkdir(b.logFolder(), 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

// A check that hangs, crashes or finds a wrong figure is reported as that, with what it had
// measured before and logs of where it was, and leaves no process behind.
func TestPlanted(t *testing.T) {
	b := testBundle(t)
	for _, tc := range []struct {
		name    string
		outcome report.Outcome
		says    string
		figures int
		logs    map[string]string // and what they have
	}{
		{"planted-hang", report.Hung, "killed after 2 s", 1, map[string]string{"planted-hang.check.log": "gpucheck.hang(", "planted-hang.1.log": "\nthe hang begins\n"}},
		{"planted-crash", report.Crashed, "exit status 2: panic: planted", 1, map[string]string{"planted-crash.check.log": "gpucheck.child("}},
		{"planted-wrong", report.Wrong, "figure: measured 3 bytes, the documents say 2 bytes", 1, nil},
		{"planted-early", report.Crashed, "it ended without an answer: the last words", 0, map[string]string{"planted-early.check.log": "the last words\n"}},
		{"planted-late", report.Crashed, "failed to run: sleep 1000: no end after 100ms", 0, map[string]string{"planted-late.1.log": "$ sleep 1000\n"}},
		{"planted-missing", report.Crashed, "failed to run: fork/exec bin/gpumem: no such file or directory", 0, map[string]string{"planted-missing.1.log": "--- not started"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _ := find(tc.name)
			r := b.one(t.Context(), c, c.limit)
			if r.Outcome != tc.outcome || len(r.Figures) != tc.figures || !strings.HasPrefix(r.Why+strings.Join(r.Faults, "\n"), tc.says) {
				t.Errorf("%+v, want %s, %d figures, and %q", r, tc.outcome, tc.figures, tc.says)
			}
			if len(r.Logs) != len(tc.logs) {
				t.Errorf("logs %q, want %v", r.Logs, tc.logs)
			}
			for name, want := range tc.logs {
				if text, err := os.ReadFile(filepath.Join(b.logFolder(), name)); err != nil || !bytes.Contains(text, []byte(want)) {
					t.Errorf("%s: %v: %s\nwant %q", name, err, text, want)
				}
			}
			if left := withEnvironment(scratchVar + "=" + b.scratch); len(left) > 0 {
				t.Errorf("processes are left: %q", left)
			}
		})
	}
}

// Sentences of a result are lines that any terminal and any reader of the JSON can show, whatever a program wrote.
func TestLinesOfAResultArePrintableAndShort(t *testing.T) {
	b := testBundle(t)
	c, _ := find("planted-noise")
	r := b.one(t.Context(), c, c.limit)
	if len(r.Faults) != 1 || len(r.Notes) != 1 || r.Why == "" {
		t.Fatalf("%d faults, %d notes, %d bytes of a reason, want one of each", len(r.Faults), len(r.Notes), len(r.Why))
	}
	for _, line := range []string{r.Faults[0], r.Notes[0], r.Why} {
		bad := strings.IndexFunc(line, func(letter rune) bool { return !unicode.IsPrint(letter) })
		if bad >= 0 || len(line) > 2000 || !utf8.ValidString(line) {
			t.Errorf("a line of %d bytes, with the first letter that cannot be printed at %d", len(line), bad)
		}
	}
}

// A process that the kernel does not let go, as one that waits in a driver, is reported, and the
// next check runs.
func TestWhatCannotBeKilledStopsNothing(t *testing.T) {
	b := testBundle(t)
	hang, _ := find("planted-hang")
	words := lastWordsIn
	grace, lastWordsIn, kill = 300*time.Millisecond, 100*time.Millisecond, func(int, unix.Signal) error { return nil }
	t.Cleanup(func() {
		grace, lastWordsIn, kill = 5*time.Second, words, unix.Kill
		stuck.Range(func(pid, _ any) bool { _ = unix.Kill(-pid.(int), unix.SIGKILL); return true })
		stuck.Clear()
		for len(children()) > 0 {
			killOrphans()
		}
	})
	begun := time.Now()
	r := b.one(t.Context(), hang, hang.limit)
	if r.Outcome != report.Hung || !strings.Contains(r.Why, "hung, and could not be killed") || len(r.Figures) != 1 {
		t.Errorf("%+v, want it to be hung and left", r)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	wrong, _ := find("planted-wrong")
	if r := b.one(t.Context(), wrong, wrong.limit); r.Outcome != report.Wrong {
		t.Errorf("after it: %+v", r)
	}
}

// A signal ends the check that runs, and those after it are not begun. What one found wrong before is kept.
func TestJudge(t *testing.T) {
	fault, done := event{Fault: "off"}, event{Done: true}
	late := context.DeadlineExceeded
	for _, tc := range []struct {
		name    string
		w       watched
		limit   float64 // of 10 s
		outcome report.Outcome
		why     string
	}{
		{"interrupted", watched{err: signalError(unix.SIGINT), killed: true}, 10, report.NotReached, "interrupted by SIGINT"},
		{"interrupted after a fault", watched{events: []event{fault}, err: signalError(unix.SIGTERM), killed: true}, 10, report.Wrong, "interrupted by SIGTERM"},
		{"out of time", watched{err: late, killed: true}, 4, report.NotReached, "the time was up after 4 of its 10 seconds"},
		{"out of time after a fault", watched{events: []event{fault}, err: late, killed: true}, 4, report.Wrong, "the time was up after 4 of its 10 seconds"},
		{"hung after a fault", watched{events: []event{fault}, err: late, killed: true}, 10, report.Hung, "killed after 10 s"},
		{"failed", watched{events: []event{{Failed: "no context"}, done}}, 10, report.Crashed, "failed to run: no context"},
		{"failed in a part, and wrong", watched{events: []event{fault, {Failed: "too late"}, done}}, 10, report.Wrong, "failed to run: too late"},
		{"skipped", watched{events: []event{{Skip: "not there"}, done}}, 10, report.Skipped, "not there"},
		{"held", watched{events: []event{done}}, 10, report.Held, ""},
		{"held with a note", watched{events: []event{{Note: "unknown"}, done}}, 10, report.Held, ""},
	} {
		r := report.Result{Limit: 10}
		tc.w.judge(&r, seconds(tc.limit))
		if r.Outcome != tc.outcome || r.Why != tc.why {
			t.Errorf("%s: %s, %q, want %s, %q", tc.name, r.Outcome, r.Why, tc.outcome, tc.why)
		}
		if noted := len(r.Notes) == 1 && r.Notes[0] == "unknown"; noted != strings.HasSuffix(tc.name, "note") {
			t.Errorf("%s: notes %q", tc.name, r.Notes)
		}
	}
}

// What cannot run, or has no time, says so and is not run.
func TestNotRun(t *testing.T) {
	b := &bundle{options: options{python: "python9", simulated: true}}
	c, _ := find("planted-wrong")
	for _, tc := range []struct {
		name    string
		needs   []string
		python  error
		left    float64
		outcome report.Outcome
		why     string
	}{
		{"real GPU", []string{"gpu"}, nil, 100, report.Skipped, "a simulated GPU cannot answer this"},
		{"package", []string{"jax"}, nil, 100, report.Skipped, "python9 has no jax"},
		{"Python", []string{"jax"}, os.ErrNotExist, 100, report.Skipped, "python9 cannot be started: file does not exist"},
		{"time", nil, nil, 1, report.NotReached, "the time was up"},
		{"no time", nil, nil, -1, report.NotReached, "the time was up"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.needs, b.pythonError = tc.needs, tc.python
			if r := b.one(t.Context(), c, seconds(tc.left)); r.Outcome != tc.outcome || r.Why != tc.why || r.Figures != nil {
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
		{"reset,driver,reset", "wrong,wrong", "planted-wrong reset driver"},
		{",", "", `--only "," names no check; --list has them`},
		{"", ",", `--plant ",": want hang, crash, wrong`},
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
