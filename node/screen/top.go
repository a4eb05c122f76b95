// The program on a terminal.

package screen

import (
	"context"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/term"

	"gpumem/internal/report"
	"gpumem/node/internal/history"
	"gpumem/node/machine"
)

// source takes a snapshot.
type source func() (*machine.Snapshot, error)

// CanRun reports whether Run can show a screen on f: f is a terminal that moves its
// cursor.
func CanRun(f *os.File) bool { return term.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb" }

// Run shows the snapshots of a source on a terminal, one each time, until its reader
// ends it or the context does, of which it returns the error. s is the first one.
func Run(ctx context.Context, terminal *os.File, s *machine.Snapshot, source source, every time.Duration) error {
	m := newModel(s, source, every)
	m.view.ASCII = !utf8Locale(os.Getenv)
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithOutput(terminal), tea.WithoutSignalHandler()} // signals are the caller's
	if os.Getenv("NO_COLOR") != "" {
		m.plain = true
		options = append(options, tea.WithColorProfile(colorprofile.ASCII))
	}
	_, err := tea.NewProgram(m, options...).Run()
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	return err
}

// utf8Locale reports whether the terminal is taken to show all characters: unless the
// locale names another encoding.
func utf8Locale(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(getenv(name)); locale != "" {
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return true
}

// model is the state of the program. Its methods are called one at a time.
type model struct {
	source source
	s      *machine.Snapshot
	h      *history.History
	view   screenView
	plain  bool // no colours, whatever the terminal has
}

func newModel(s *machine.Snapshot, source source, every time.Duration) *model {
	m := &model{source: source, h: history.New(history.Keep), view: screenView{Every: every, By: history.ByMemory}}
	m.see(s)
	return m
}

func (m *model) see(s *machine.Snapshot) {
	m.s = s
	m.h.See(s, nil)
}

// seen is the message with a snapshot.
type seen struct {
	s   *machine.Snapshot
	err error
}

// again is the message that it is time for another snapshot.
type again struct{}

// Init begins the rounds: a snapshot follows a pause, and a pause a snapshot, so that
// slow ones do not pile up.
func (m *model) Init() tea.Cmd { return m.pause() }

func (m *model) pause() tea.Cmd {
	return tea.Tick(m.view.Every, func(time.Time) tea.Msg { return again{} })
}

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.view.Width, m.view.Height = msg.Width, msg.Height
	case tea.ColorProfileMsg:
		switch {
		case m.plain || msg.Profile < colorprofile.ANSI:
			m.view.Colours = noColours
		case msg.Profile == colorprofile.ANSI:
			m.view.Colours = colours16
		default:
			m.view.Colours = colours256
		}
	case again:
		return m, func() tea.Msg {
			s, err := m.source()
			return seen{s, err}
		}
	case seen:
		if m.view.Err = msg.err; msg.err == nil {
			m.see(msg.s)
		}
		return m, m.pause()
	case tea.PasteMsg:
		if m.view.Typing {
			m.view.Filter += report.OneLine(msg.Content)
		}
	case tea.KeyPressMsg:
		if m.view.Typing {
			return m, m.typed(msg)
		}
		return m, m.key(msg.String())
	}
	return m, nil
}

// typed handles a key while the filter is typed.
func (m *model) typed(key tea.KeyPressMsg) tea.Cmd {
	switch v := &m.view; key.String() {
	case "ctrl+c":
		return tea.Quit
	case "enter":
		v.Typing = false
	case "esc":
		v.Typing, v.Filter = false, ""
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(v.Filter)
		v.Filter = v.Filter[:len(v.Filter)-n]
	case "ctrl+u":
		v.Filter = ""
	default:
		v.Filter += key.Text
	}
	return nil
}

func (m *model) key(key string) tea.Cmd {
	v := &m.view
	page := max(1, v.room()-1)
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "esc": // leaves what is open, and then the program
		switch {
		case v.Help:
			v.Help = false
		case v.Filter != "":
			v.Filter = ""
		default:
			return tea.Quit
		}
	case "ctrl+z":
		return tea.Suspend
	case "m":
		v.By = history.ByMemory
	case "p":
		v.By = history.ByPID
	case "a":
		v.By = history.ByAge
	case "g":
		v.By = history.ByGrowth
	case "n":
		v.By = history.ByName
	case "/":
		v.Typing, v.Help = true, false
	case "?", "h":
		v.Help, v.Down = !v.Help, 0
	case "down", "j":
		v.Down++
	case "up", "k":
		v.Down--
	case "pgdown", "space":
		v.Down += page
	case "pgup":
		v.Down -= page
	case "home":
		v.Down = 0
	}
	if v.Width > 0 {
		v.Down = v.clamp(len(v.body(m.s, m.h)))
	}
	return nil
}

func (m *model) View() tea.View {
	if m.view.Width == 0 { // the size comes first
		return tea.NewView("")
	}
	v := tea.NewView(drawFrame(m.s, m.h, m.view))
	v.AltScreen = true
	return v
}
