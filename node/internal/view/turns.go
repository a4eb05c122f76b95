// The turns of programs whose memory leaves the GPU and comes back, in words.

package view

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpumem/internal/report"
	"gpumem/node/machine"
	"gpumem/size"
)

// IsPaused reports whether a process has left for a pause by hand.
func IsPaused(t *machine.Turn) bool {
	return t.Paused && (t.State == "away" || t.State == "waiting")
}

// TurnWord returns where a program's memory is in a word or two; "" if it has no turns.
func TurnWord(t *machine.Turn) string {
	switch {
	case t == nil:
		return ""
	case IsPaused(t):
		return "paused"
	case t.Paused && t.State == "in":
		return "to pause"
	case t.Place != nil:
		return "waits"
	}
	return t.State
}

// TurnLines returns what there is to say of the turns of a device's programs, each in a line.
func TurnLines(d *machine.Device, now time.Time) (lines []string) {
	for i := range d.Programs {
		p := &d.Programs[i]
		if text := TurnText(p.Turn, p.PID, now); text != "" {
			lines = append(lines, processName(p.PID)+": "+text)
		}
	}
	return lines
}

// TurnText returns what there is to say of a process's turn; "" for nothing, as of one that is on
// the GPU and was never asked to leave.
func TurnText(t *machine.Turn, pid int, now time.Time) string {
	if t == nil {
		return ""
	}
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	long := ""
	if !t.Since.IsZero() {
		long = " for " + Age(now.Sub(t.Since))
	}
	switch word := TurnWord(t); word {
	case "unknown":
		return "its turn is unknown: " + t.NotAsked
	case "paused":
		add("paused, away%s, %s on the host; gpumem resume %d has it come back", long, size.Format(t.OnHost), pid)
	case "to pause":
		if t.Movable == 0 && t.NotAsked == "" {
			add("asked to pause, with nothing on the GPU that could leave")
		} else {
			add("asked to pause, and still on the GPU")
		}
	case "away":
		add("away%s, %s on the host, and it has no work", long, size.Format(t.OnHost))
	case "leaving", "returning":
		if long == "" {
			add("is %s", word)
		} else {
			add("has been %s%s", word, long)
		}
	case "waits":
		parts = append(parts, waitText(t, long))
	}
	if t.NotAsked != "" {
		add("not asked to leave: %s", t.NotAsked)
	}
	if t.Swaps > 0 {
		add("%s so far, the last took %s", report.Counted(t.Swaps, "swap"), report.Seconds(t.Seconds))
	}
	return strings.Join(parts, "; ")
}

// mostHolders is how many of those are named that hold what a process waits for.
const mostHolders = 3

// waitText describes a wait in the queue. Since when a process waits is known of one whose memory
// is on the host.
func waitText(t *machine.Turn, long string) string {
	text := "waits" + long + " for " + size.Format(t.Wants)
	if t.State == "in" {
		text = "waits for " + size.Format(t.Wants) + " more"
	}
	if *t.Place == 0 {
		text += " (next)"
	} else {
		text += fmt.Sprintf(" (%d before it)", *t.Place)
	}
	if t.OnHost > 0 {
		text += ", with " + size.Format(t.OnHost) + " on the host"
	}
	if len(t.HeldBy) == 0 {
		return text
	}
	if t.Never {
		text += ", which turns alone do not give it"
	}
	var holders []string
	for i, h := range t.HeldBy {
		if i == mostHolders {
			holders = append(holders, fmt.Sprintf("%d more hold some, too", len(t.HeldBy)-i))
			break
		}
		holders = append(holders, fmt.Sprintf("%s holds %s (%s)", processName(h.PID), size.Format(h.Bytes), h.Why))
	}
	return text + ": " + strings.Join(holders, ", ")
}

func processName(pid int) string {
	if pid == 0 {
		return "a process that cannot be seen from here"
	}
	return "process " + strconv.Itoa(pid)
}
