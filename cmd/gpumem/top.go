package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
)

// topLeast is the shortest time between two looks: each costs some milliseconds.
const topLeast = 100 * time.Millisecond

func topCommand() *cobra.Command {
	var (
		words  []string
		asJSON bool
		once   bool
		every  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Monitor GPU memory by program",
		Long: `top shows what gpumem ps shows, and looks again every second.

  m, p, a       sort by memory, process number, age
  arrows, j, k  further down, and up
  q, Esc        end, as does Ctrl-C

With --once, --json or without a terminal it looks once, prints that, and ends.`,
		Example: `  gpumem top
  gpumem top --device sim@/dev/shm/gpu --every 5s
  gpumem top --once`,
		Args: noWords("top"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < topLeast || every > 24*time.Hour {
				return fmt.Errorf("--every %v: want a time from %v to 24h, such as 2s", every, topLeast)
			}
			look, err := psLooker(words)
			if err != nil {
				return err
			}
			// What is wrong with the words shows now, not on the screen.
			state, err := look()
			if err != nil {
				return err
			}
			if asJSON {
				state.writeNotes(cmd.ErrOrStderr())
				return writePsJSON(cmd.OutOrStdout(), state)
			}
			m := &topModel{look: look, every: every, state: state, by: "memory"}
			screen, ok := cmd.OutOrStdout().(*os.File)
			if once || !ok || !term.IsTerminal(screen.Fd()) {
				state.writeNotes(cmd.ErrOrStderr())
				_, err := io.WriteString(cmd.OutOrStdout(), m.frame())
				return err
			}
			// Signals are main's to handle.
			_, err = tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithOutput(screen), tea.WithoutSignalHandler()).Run()
			if ended := cmd.Context().Err(); ended != nil {
				return ended
			}
			return err
		},
	}
	psFlags(cmd, &words, &asJSON)
	cmd.Flags().BoolVar(&once, "once", false, "look once, print that and end")
	cmd.Flags().DurationVar(&every, "every", time.Second, "look again after `TIME`")
	return cmd
}

// topModel is what the screen shows. The program calls its methods one at a
// time.
type topModel struct {
	look  func() (*psState, error)
	every time.Duration

	state         *psState
	err           error // of the last look; the state is the one before
	by            string
	width, height int // of the screen; 0: there is none
	down          int // lines that have gone off at the top
}

// topSeen is the answer to a look.
type topSeen struct {
	state *psState
	err   error
}

// topAgain says that it is time for another look.
type topAgain struct{}

// Init begins the rounds: a look follows a pause, and a pause a look, so that
// looks that take long do not pile up.
func (m *topModel) Init() tea.Cmd { return m.pause() }

func (m *topModel) pause() tea.Cmd {
	return tea.Tick(m.every, func(time.Time) tea.Msg { return topAgain{} })
}

func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case topAgain:
		return m, func() tea.Msg {
			state, err := m.look()
			return topSeen{state, err}
		}
	case topSeen:
		if m.err = msg.err; m.err == nil {
			m.state = msg.state
		}
		return m, m.pause()
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

func (m *topModel) key(key string) tea.Cmd {
	page := max(1, m.room()-1)
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "m":
		m.by = "memory"
	case "p":
		m.by = "pid"
	case "a":
		m.by = "age"
	case "down", "j":
		m.down++
	case "up", "k":
		m.down--
	case "pgdown", "space":
		m.down += page
	case "pgup":
		m.down -= page
	case "home":
		m.down = 0
	}
	m.down = max(0, min(m.down, len(m.body())-m.room()))
	return nil
}

func (m *topModel) View() tea.View {
	v := tea.NewView(m.frame())
	v.AltScreen = true
	return v
}

// room is how many lines of the screen are for the body.
func (m *topModel) room() int {
	if m.height == 0 {
		return 1 << 30
	}
	return max(0, m.height-2) // a line above, one below
}

// body is the lines about devices, without the frame.
func (m *topModel) body() []string {
	for i := range m.state.devices {
		m.state.devices[i].sort(m.by)
	}
	text := psText(m.state, m.width)
	if m.height > 0 { // else they are on stderr
		var b strings.Builder
		for _, n := range m.state.notes {
			psLine(&b, oneLine(n), m.width)
		}
		text += b.String()
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// frame is all that is on the screen. With no screen it is the text alone, with
// the time above.
func (m *topModel) frame() string {
	programs, gone := 0, 0
	for _, d := range m.state.devices {
		programs += len(d.programs)
		for _, p := range d.programs {
			if p.info != nil && p.info.ParentGone {
				gone++
			}
		}
	}
	head := fmt.Sprintf("gpumem top %s, %d %s", m.state.at.Format(time.TimeOnly), programs, plural(programs, "program"))
	if gone > 0 {
		head += fmt.Sprintf(", %d whose parent is gone", gone)
	}
	body := m.body()
	if m.height == 0 {
		return head + "\n\n" + strings.Join(body, "\n") + "\n"
	}
	if m.err != nil {
		head = "gpumem top: as of " + m.state.at.Format(time.TimeOnly) + "; now " + oneLine(m.err.Error())
	}
	// The size may have changed since the key, and the list since the look.
	down := max(0, min(m.down, len(body)-m.room()))
	shown := body[down:min(len(body), down+m.room())]
	foot := "by " + m.by + "; m memory, p pid, a age, q end"
	if hidden := len(body) - len(shown); hidden > 0 {
		foot = fmt.Sprintf("lines %d to %d of %d; ", down+1, down+len(shown), len(body)) + foot
	}
	lines := append([]string{fit(head, m.width)}, shown...)
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, fit(foot, m.width))
	return strings.Join(lines[:max(1, min(len(lines), m.height))], "\n")
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
