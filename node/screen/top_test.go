package screen_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"gpumem/internal/test/machinetest"
	"gpumem/node/internal/history"
	"gpumem/node/machine"
	"gpumem/node/screen"
)

// key is a key as the terminal sends it.
func key(name string) tea.KeyPressMsg {
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
	case "enter":
		return tea.KeyPressMsg{Code: tea.KeyEnter}
	case "backspace":
		return tea.KeyPressMsg{Code: tea.KeyBackspace}
	case "pgup":
		return tea.KeyPressMsg{Code: tea.KeyPgUp}
	case "home":
		return tea.KeyPressMsg{Code: tea.KeyHome}
	}
	return tea.KeyPressMsg{Code: rune(name[0]), Text: name}
}

// example returns a program on a screen that looks at the example each nanosecond.
func example(width, height int) tea.Model {
	m := screen.NewModel(machinetest.Example(), func() (*machine.Snapshot, error) { return machinetest.Example(), nil }, 1)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return m
}

// lines returns what the program shows.
func lines(m tea.Model) []string { return strings.Split(m.View().Content, "\n") }

// how returns how it looks at its snapshot.
func how(m tea.Model) *screen.View { return m.(interface{ How() *screen.View }).How() }

func TestKeys(t *testing.T) {
	for _, tt := range []struct {
		name string
		keys string
		want func(*screen.View) bool
	}{
		{"at first", "", func(v *screen.View) bool { return v.By == history.ByMemory && v.Down == 0 }},
		{"by process", "p", func(v *screen.View) bool { return v.By == history.ByPID }},
		{"by age", "a", func(v *screen.View) bool { return v.By == history.ByAge }},
		{"by growth", "g", func(v *screen.View) bool { return v.By == history.ByGrowth }},
		{"by name", "n", func(v *screen.View) bool { return v.By == history.ByName }},
		{"by memory again", "n m", func(v *screen.View) bool { return v.By == history.ByMemory }},
		{"down", "down j k", func(v *screen.View) bool { return v.Down == 1 }},
		{"no further up", "up k", func(v *screen.View) bool { return v.Down == 0 }},
		{"no further down", strings.Repeat("pgdown ", 20), func(v *screen.View) bool { return v.Down > 5 && v.Down < 30 }},
		{"home", "pgdown home", func(v *screen.View) bool { return v.Down == 0 }},
		{"a page back", "pgdown pgup", func(v *screen.View) bool { return v.Down == 0 }},
		{"help and back", "? ?", func(v *screen.View) bool { return !v.Help }},
		{"help, left by escape", "? esc", func(v *screen.View) bool { return !v.Help }},
		{"a filter is typed", "/ q p", func(v *screen.View) bool { return v.Typing && v.Filter == "qp" && v.By == history.ByMemory }},
		{"a filter is kept", "/ x y backspace enter", func(v *screen.View) bool { return !v.Typing && v.Filter == "x" }},
		{"nothing to take back", "/ backspace", func(v *screen.View) bool { return v.Typing && v.Filter == "" }},
		{"a filter is dropped", "/ x esc", func(v *screen.View) bool { return !v.Typing && v.Filter == "" }},
		{"a kept one, too", "/ x enter esc", func(v *screen.View) bool { return v.Filter == "" }},
		{"another key", "x", func(v *screen.View) bool { return v.By == history.ByMemory && !v.Help && v.Down == 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := example(60, 9)
			for _, k := range strings.Fields(tt.keys) {
				if _, cmd := m.Update(key(k)); cmd != nil {
					t.Fatalf("%s ends it", k)
				}
			}
			if !tt.want(how(m)) {
				t.Errorf("%+v", *how(m))
			}
		})
	}
}

func TestKeysThatEnd(t *testing.T) {
	for _, keys := range []string{"q", "esc", "ctrl+c", "/ ctrl+c", "? q"} {
		m := example(60, 9)
		var cmd tea.Cmd
		for _, k := range strings.Fields(keys) {
			_, cmd = m.Update(key(k))
		}
		if cmd == nil {
			t.Fatalf("%s does nothing", keys)
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not end it", keys)
		}
	}
}

func TestPaste(t *testing.T) {
	m := example(60, 9)
	m.Update(tea.PasteMsg{Content: "x"})
	m.Update(key("/"))
	m.Update(tea.PasteMsg{Content: "a\x1bb"})
	if got := how(m).Filter; got != "a?b" {
		t.Errorf("%q", got)
	}
}

func TestColoursOfTheTerminal(t *testing.T) {
	for profile, want := range map[colorprofile.Profile]screen.Palette{
		colorprofile.NoTTY: screen.NoColours, colorprofile.ASCII: screen.NoColours, colorprofile.ANSI: screen.Colours16,
		colorprofile.ANSI256: screen.Colours256, colorprofile.TrueColor: screen.Colours256,
	} {
		m := example(60, 9)
		m.Update(tea.ColorProfileMsg{Profile: profile})
		if got := how(m).Colours; got != want {
			t.Errorf("%v: %v, want %v", profile, got, want)
		}
		if escapes := strings.Contains(m.View().Content, "\x1b"); escapes != (want != screen.NoColours) {
			t.Errorf("%v: escapes %t", profile, escapes)
		}
	}
}

// TestRounds: a look follows each pause, a pause each look, and what was seen is shown.
func TestRounds(t *testing.T) {
	second := 0
	m := tea.Model(screen.NewModel(shared(0), func() (*machine.Snapshot, error) {
		if second++; second == 3 {
			return nil, errors.New("gone")
		}
		return shared(second), nil
	}, 1))
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	if !m.View().AltScreen {
		t.Error("the terminal's own text is written over")
	}
	cmd := m.Init()
	for _, want := range []string{"gpumem top 12:00:01, 6 programs", "gpumem top 12:00:02, 6 programs", "gpumem top: as of 12:00:02; now gone", "gpumem top 12:00:04, 6 programs"} {
		msg := cmd()
		if screen.Looked(msg) {
			t.Fatal("no pause before a look")
		}
		_, cmd = m.Update(msg)
		if msg = cmd(); !screen.Looked(msg) {
			t.Fatalf("%#v after a pause", msg)
		}
		_, cmd = m.Update(msg)
		if got := lines(m)[0]; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAnySizesAndKeys: whatever the screen's size becomes, whatever keys are pressed and
// programs come and go, the screen is full and no line is too wide.
func TestAnySizesAndKeys(t *testing.T) {
	keys := []string{"m", "p", "a", "g", "n", "/", "?", "x", "1", "esc", "enter", "backspace", "down", "up", "pgdown", "pgup", "home", "j", "k"}
	rapid.Check(t, func(rt *rapid.T) {
		m := example(rapid.IntRange(1, 200).Draw(rt, "width"), rapid.IntRange(1, 40).Draw(rt, "height"))
		for n := range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 2).Draw(rt, "what") {
			case 0:
				m.Update(tea.WindowSizeMsg{Width: rapid.IntRange(1, 200).Draw(rt, "width"), Height: rapid.IntRange(1, 40).Draw(rt, "height")})
			case 1:
				m.Update(key(rapid.SampledFrom(keys).Draw(rt, "key"))) // those that end it change nothing
			case 2:
				s := machinetest.Example()
				s.Time = s.Time.Add(time.Duration(n) * time.Second)
				for i := range rapid.IntRange(0, 50).Draw(rt, "programs") {
					s.Devices[0].Programs = append(s.Devices[0].Programs, machine.Program{PID: 1000 + i, Kind: "compute", Used: machinetest.GiB(1)})
				}
				m.Update(screen.Seen(s))
			}
			v, list := how(m), lines(m)
			if len(list) > v.Height || v.Height >= 2 && len(list) != v.Height {
				rt.Fatalf("%d lines on a screen of %d", len(list), v.Height)
			}
			for _, l := range list {
				if ansi.StringWidth(l) > v.Width {
					rt.Fatalf("%q on a screen of %d", l, v.Width)
				}
			}
		}
	})
}

// TestProgram runs it as it runs in a terminal, with keys from a pipe.
func TestProgram(t *testing.T) {
	in, keys := io.Pipe()
	var out bytes.Buffer
	looked := make(chan bool)
	m := screen.NewModel(machinetest.Example(), func() (*machine.Snapshot, error) { looked <- true; return machinetest.Example(), nil }, time.Millisecond)
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
