//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testCall is a call of a check whose events go nowhere.
func testCall(t *testing.T) *call {
	t.Helper()
	events, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	return &call{check: check{name: "it"}, bundle: testBundle(t), events: events}
}

// A program that prints without end fills neither the disk nor the memory.
func TestLogIsCut(t *testing.T) {
	c := testCall(t)
	e, err := c.exec(process{args: []string{"sh", "-c", "yes | head -c 40000000; echo end >&2"}})
	if err != nil || len(e.stdout) != logLimit || e.stderr != "end\n" {
		t.Errorf("%d bytes and %q are kept: %v", len(e.stdout), e.stderr, err)
	}
	text, err := os.ReadFile(filepath.Join(c.logFolder(), "it.1.log"))
	if err != nil {
		t.Fatal(err)
	}
	end := string(text[len(text)-120:])
	if len(text) > logLimit+200 || !strings.Contains(end, "--- cut here: the program wrote more than 16 MiB\n") || !strings.Contains(end, "--- exit status 0, ") {
		t.Errorf("a log of %d bytes with the end %q", len(text), end)
	}
}

// What a program that talks writes is in its log before its end, and lines are answers however they arrive.
func TestLogIsWrittenAtOnce(t *testing.T) {
	c := testCall(t)
	r, err := c.begin(process{args: []string{"sh", "-c", `echo no; printf '{"a"'; sleep .1; echo ':1}'; read x; echo '{"b":'$x'}'; exit 3`}, talks: true, answers: "{"})
	if err != nil {
		t.Fatal(err)
	}
	if line, err := r.answer(10 * time.Second); err != nil || line != `{"a":1}` {
		t.Errorf("%q: %v", line, err)
	}
	if text, _ := os.ReadFile(filepath.Join(c.logFolder(), "it.1.log")); !strings.Contains(string(text), "\nno\n{\"a\":1}\n") {
		t.Errorf("the log has %q", text)
	}
	if _, err := r.answer(time.Millisecond); !isUnanswered(err) {
		t.Errorf("%v, want it to be late", err)
	}
	_, _ = r.in.Write([]byte("2\n"))
	if line, err := r.answer(10 * time.Second); err != nil || line != `{"b":2}` {
		t.Errorf("%q: %v", line, err)
	}
	if _, err := r.answer(10 * time.Second); err == nil || isUnanswered(err) || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v, want the end", err)
	}
	c.finish(r)
}

// c/grants says on its output why it ends.
func TestReasonIsWhatAProgramSays(t *testing.T) {
	c := testCall(t)
	for script, want := range map[string]string{
		"echo no context: 999; exit 1": ": exit status 1: no context: 999",
		"echo 17; echo oh >&2; exit 2": ": exit status 2: oh",
		"exit 4":                       ": exit status 4",
	} {
		if _, err := c.must(process{args: []string{"sh", "-c", script}}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
}

// Memory that was given back by somebody else meanwhile is a small number.
func TestTakenSinceMayBeNegative(t *testing.T) {
	if got := (gpu{UsedBytes: 1}).takenSince(gpu{UsedBytes: 3}); got != -2 {
		t.Errorf("%v, want -2", got)
	}
}

// A program in Python that is too late says where it is.
func TestPythonThatIsLateSaysWhere(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not there")
	}
	c := testCall(t)
	c.python, c.root = "python3", c.scratch
	program := "import time\nimport talk\ntalk.answer(stage='ready')\ntime.sleep(1000)\n"
	if err := os.Mkdir(filepath.Join(c.root, "python"), 0o755); err != nil {
		t.Fatal(err)
	}
	talk, err := os.ReadFile("programs/talk.py")
	if err := errors.Join(err, os.WriteFile(filepath.Join(c.root, "python/talk.py"), talk, 0o644), os.WriteFile(filepath.Join(c.root, "python/late.py"), []byte(program), 0o644)); err != nil {
		t.Fatal(err)
	}
	p, err := c.talk("late", nil, nil, "late")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.answer("ready", nil, 20*time.Second); err != nil {
		t.Error(err)
	}
	if err := p.answer("done", nil, time.Millisecond); !isUnanswered(err) || err.Error() != "late: the program was not done after 1ms" {
		t.Errorf("%v, want that it was too late", err)
	}
	c.stop(p)
	if text, _ := os.ReadFile(filepath.Join(c.logFolder(), "it.1.log")); !strings.Contains(string(text), "late.py\", line 4 in <module>") {
		t.Errorf("the log does not say where it was: %s", text)
	}
}
