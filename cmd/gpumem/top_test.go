package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"pgregory.net/rapid"

	"gpumem/machine"
	"gpumem/share"
)

// topKey is a key as the terminal sends it.
func topKey(name string) tea.KeyPressMsg {
	switch name {
	case "esc":
		return tea.KeyPressMsg{Code: tea.KeyEscape}
	case "ctrl+c":
		return tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
	case "down":
		return tea.KeyPressMsg{Code: tea.KeyDown}
	case "up":
		return tea.KeyPressMsg{Code: tea.KeyUp}
	case "pgdown":
		return tea.KeyPressMsg{Code: tea.KeyPgDown}
	case "pgup":
		return tea.KeyPressMsg{Code: tea.KeyPgUp}
	case "home":
		return tea.KeyPressMsg{Code: tea.KeyHome}
	}
	return tea.KeyPressMsg{Code: rune(name[0]), Text: name}
}

func topExample(t testing.TB) *topModel {
	return &topModel{s: psExample(t), by: "memory", every: time.Second, snapshot: func() (*machine.Snapshot, error) { return psExample(t), nil }}
}

// screen is what the model shows, by lines.
func screen(m tea.Model) []string { return strings.Split(m.View().Content, "\n") }

func TestTopScreen(t *testing.T) {
	m := topExample(t)
	m.Update(tea.WindowSizeMsg{Width: 60, Height: 9})
	const want = `gpumem top 12:00:00, 5 programs, 1 whose parent is gone
cuda:0 NVIDIA H200: 139.80 GiB, 100.74 GiB used, 39.06 GiB
  free, 30 GiB leased
  pid        holds   lease  mark         command
   11       20 GiB  22 GiB  -            python3 train.py
   12        1 GiB       -  parent gone  ray::f?[31m
    -  nothing yet   4 GiB  -            python3 x.py
   13      unknown       -  -            unknown
lines 1 to 7 of 18; by memory; m memory, p pid, a age, q end`
	if got := m.View().Content; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !m.View().AltScreen {
		t.Error("the terminal's own text is written over")
	}
	// Sorted another way, further down, and a look that fails.
	m.Update(topKey("p"))
	m.Update(topKey("down"))
	if s := screen(m); !strings.HasPrefix(s[3], "    -") || !strings.HasPrefix(s[8], "lines 2 to 8 of 18; by pid") {
		t.Errorf("%q", s)
	}
	m.Update(topSeen{nil, errors.New("the file\nis gone")})
	if s := screen(m); s[0] != "gpumem top: as of 12:00:00; now the file; is gone" || len(s) != 9 {
		t.Errorf("%q", s)
	}
	later := psExample(t)
	later.Time, later.Devices = later.Time.Add(time.Second), later.Devices[1:]
	m.Update(topSeen{later, nil})
	if s := screen(m); s[0] != "gpumem top 12:00:01, 0 programs" || len(s) != 9 || s[8] != "by pid; m memory, p pid, a age, q end" {
		t.Errorf("%q", s)
	}
}

// TestTopWithoutDriverSaysWhy: on the screen, where stderr is not seen.
func TestTopWithoutDriverSaysWhy(t *testing.T) {
	m := topExample(t)
	m.width, m.height = 60, 9
	m.s = &machine.Snapshot{Notes: []string{"no usable NVIDIA driver: why"}}
	if got := m.frame(); !strings.Contains(got, "no devices\nno usable NVIDIA driver: why\n") {
		t.Errorf("%s", got)
	}
}

// TestTopRounds: a look follows each pause, a pause each look.
func TestTopRounds(t *testing.T) {
	m := topExample(t)
	m.every = 1 // a nanosecond
	m.s = &machine.Snapshot{}
	cmd := m.Init()
	for range 3 {
		if msg := cmd(); msg != (topAgain{}) {
			t.Fatalf("%#v after a pause", msg)
		}
		_, cmd = m.Update(topAgain{})
		seen, ok := cmd().(topSeen)
		if !ok || seen.s == nil {
			t.Fatalf("%#v after a look", seen)
		}
		if _, cmd = m.Update(seen); m.s != seen.s {
			t.Fatal("what was seen is not shown")
		}
	}
}

func TestTopEnds(t *testing.T) {
	for _, key := range []string{"q", "esc", "ctrl+c"} {
		_, cmd := topExample(t).Update(topKey(key))
		if cmd == nil {
			t.Fatalf("%s does nothing", key)
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not end it", key)
		}
	}
	if _, cmd := topExample(t).Update(topKey("x")); cmd != nil {
		t.Error("x does something")
	}
}

// TestTopResize: whatever the screen's size becomes and whatever keys are
// pressed, the picture fits, and the lines that are shown are some that are
// there.
func TestTopResize(t *testing.T) {
	many := func(n int) *machine.Snapshot {
		s := psExample(t)
		for i := range n {
			holds := uint64(1 << 20)
			s.Devices[0].Programs = append(s.Devices[0].Programs, machine.Program{PID: 1000 + i, Kind: "compute", Used: &holds})
		}
		return s
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := topExample(t)
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			var msg tea.Msg
			switch rapid.IntRange(0, 2).Draw(rt, "what") {
			case 0:
				msg = tea.WindowSizeMsg{Width: rapid.IntRange(1, 200).Draw(rt, "width"), Height: rapid.IntRange(1, 40).Draw(rt, "height")}
			case 1:
				msg = topKey(rapid.SampledFrom([]string{"m", "p", "a", "down", "up", "pgdown", "pgup", "home", "j", "k", "x"}).Draw(rt, "key"))
			case 2:
				msg = topSeen{many(rapid.IntRange(0, 50).Draw(rt, "programs")), nil}
			}
			m.Update(msg)
			if m.height == 0 {
				continue
			}
			lines := screen(m)
			if len(lines) > m.height || m.height >= 2 && len(lines) != m.height {
				rt.Fatalf("%d lines on a screen of %d", len(lines), m.height)
			}
			for _, l := range lines {
				if utf8.RuneCountInString(l) > m.width {
					rt.Fatalf("%q on a screen of %d", l, m.width)
				}
			}
			if body := strings.Join(m.body(), "\n"); len(lines) > 2 && !strings.Contains(body, strings.TrimRight(strings.Join(lines[1:len(lines)-1], "\n"), "\n")) {
				rt.Fatalf("%q is not in\n%s", lines, body)
			}
		}
	})
}

// TestTopProgram runs it as it runs in a terminal, with keys from a pipe.
func TestTopProgram(t *testing.T) {
	in, keys := io.Pipe()
	var out bytes.Buffer
	looked := make(chan bool)
	m := topExample(t)
	m.every = time.Millisecond
	m.snapshot = func() (*machine.Snapshot, error) { looked <- true; return psExample(t), nil }
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(&out), tea.WithWindowSize(80, 24), tea.WithoutSignalHandler(), tea.WithEnvironment([]string{"TERM=xterm"}))
	ended := make(chan error)
	go func() { _, err := p.Run(); ended <- err }()
	<-looked
	<-looked
	go func() { fmt.Fprint(keys, "q") }()
	for {
		select {
		case <-looked:
			continue
		case err := <-ended:
			if err != nil || !strings.Contains(out.String(), "train.py") {
				t.Errorf("%v: %q", err, out.String())
			}
		}
		break
	}
}

// TestTopOnce: without a terminal it looks once.
func TestTopOnce(t *testing.T) {
	t.Setenv(share.EnvDir, t.TempDir())
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a device, and no terminal
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var out, errs bytes.Buffer
	for _, tc := range []struct {
		stdout io.Writer
		args   []string
	}{{&out, nil}, {&out, []string{"--once"}}, {null, nil}, {&out, []string{"--json"}}} {
		out.Reset()
		if code := run(t.Context(), append([]string{"top", "--device", "sim:24GiB"}, tc.args...), tc.stdout, &errs); code != 0 || errs.Len() > 0 {
			t.Errorf("%v: %d, %s", tc.args, code, errs.String())
		}
		if tc.stdout == &out && !strings.Contains(out.String(), "sim:24GiB") {
			t.Errorf("%v: %s", tc.args, out.String())
		}
	}
	for _, args := range [][]string{{"top", "--device", "sim:1GiB"}, {"top", "--device", "sim:1GiB", "--json"}} {
		errs.Reset()
		if code := run(t.Context(), args, failing{}, &errs); code != exitUsage || errs.String() != "gpumem: no space left\n" {
			t.Errorf("%v: status %d, stderr %q", args, code, errs.String())
		}
	}
}
