package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"gpumem/machine"
	"gpumem/machine/probe"
	"gpumem/report"
)

// topLeast is the shortest time between two snapshots: each costs some milliseconds.
const topLeast = 100 * time.Millisecond

func topCommand() *cobra.Command {
	var (
		o      probe.Options
		asJSON bool
		once   bool
		every  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Monitor the programs on each GPU and their memory",
		Args:  noWords("top"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := startRounds(o, every)
			if err != nil {
				return err
			}
			m := &topModel{snapshot: p.Snapshot, every: every, s: s, by: "memory"}
			screen, ok := cmd.OutOrStdout().(*os.File)
			if asJSON || once || !ok || !term.IsTerminal(screen.Fd()) {
				return writeSnapshot(cmd, s, asJSON, m.frame)
			}
			// Signals are main's to handle.
			_, err = tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithOutput(screen), tea.WithoutSignalHandler()).Run()
			if ended := cmd.Context().Err(); ended != nil {
				return ended
			}
			return err
		},
	}
	psFlags(cmd, &o, &asJSON)
	cmd.Flags().BoolVar(&once, "once", false, "print one snapshot and end")
	cmd.Flags().DurationVar(&every, "every", time.Second, "`TIME` between updates")
	return cmd
}

// startRounds takes the first of the snapshots that follow each other after a time.
func startRounds(o probe.Options, every time.Duration) (*probe.Probe, *machine.Snapshot, error) {
	if every < topLeast || every > 24*time.Hour {
		return nil, nil, fmt.Errorf("--every %v: want a time from %v to 24h, such as 2s", every, topLeast)
	}
	return startProbe(o)
}

// topModel is what the screen shows. The program calls its methods one at a
// time.
type topModel struct {
	snapshot func() (*machine.Snapshot, error)
	every    time.Duration

	s             *machine.Snapshot
	err           error // of the last snapshot; s is the one before
	by            string
	width, height int // of the screen; 0: there is none
	down          int // lines that have gone off at the top
}

// topSeen is the message with a snapshot.
type topSeen struct {
	s   *machine.Snapshot
	err error
}

// topAgain is the message that it is time for another snapshot.
type topAgain struct{}

// Init begins the rounds: a snapshot follows a pause, and a pause a snapshot, so that
// slow ones do not pile up.
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
			s, err := m.snapshot()
			return topSeen{s, err}
		}
	case topSeen:
		if m.err = msg.err; m.err == nil {
			m.s = msg.s
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

// room returns the number of lines on the screen for the body.
func (m *topModel) room() int {
	if m.height == 0 {
		return 1 << 30
	}
	return max(0, m.height-2) // a line above, one below
}

// body returns the lines about devices, without the frame.
func (m *topModel) body() []string {
	for i := range m.s.Devices {
		m.s.Devices[i].Sort(m.by)
	}
	text := psText(m.s, m.width)
	if m.height > 0 { // else they are on stderr
		var b strings.Builder
		for _, n := range m.s.Notes {
			psLine(&b, report.OneLine(n), m.width)
		}
		text += b.String()
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// frame returns all that is on the screen. With no screen it is the text alone, with
// the time above.
func (m *topModel) frame() string {
	programs, gone := 0, 0
	for _, d := range m.s.Devices {
		programs += len(d.Programs)
		for _, p := range d.Programs {
			if parentGone(p) {
				gone++
			}
		}
	}
	head := fmt.Sprintf("gpumem top %s, %d %s", m.s.Time.Format(time.TimeOnly), programs, report.Plural(uint64(programs), "program"))
	if gone > 0 {
		head += fmt.Sprintf(", %d whose parent is gone", gone)
	}
	body := m.body()
	if m.height == 0 {
		return head + "\n\n" + strings.Join(body, "\n") + "\n"
	}
	if m.err != nil {
		head = "gpumem top: as of " + m.s.Time.Format(time.TimeOnly) + "; now " + report.OneLine(m.err.Error())
	}
	// The size may have changed since the key, and the list since the snapshot.
	down := max(0, min(m.down, len(body)-m.room()))
	shown := body[down:min(len(body), down+m.room())]
	foot := "by " + m.by + "; m memory, p pid, a age, q end"
	if hidden := len(body) - len(shown); hidden > 0 {
		foot = fmt.Sprintf("lines %d to %d of %d; ", down+1, down+len(shown), len(body)) + foot
	}
	lines := append([]string{report.Fit(head, m.width)}, shown...)
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, report.Fit(foot, m.width))
	return strings.Join(lines[:max(1, min(len(lines), m.height))], "\n")
}
