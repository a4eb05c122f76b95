// The error returned when a lease does not fit.

package share

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"gpumem/device"
	"gpumem/node/internal/queue"
	"gpumem/size"
)

// InsufficientMemoryError is the refusal of a request, with the holders of the memory. All sizes
// are bytes.
type InsufficientMemoryError struct {
	Device    string
	Want      uint64 // of all leases together, or by turns of each
	Copies    int    // the number of leases
	Total     uint64 // memory of the GPU
	Shareable uint64 // see the package comment
	Free      uint64 // the part of Shareable that no lease has, or none but those that it would share by turns
	Turns     bool   // as [Request].Turns
	Never     bool   // it would not fit if no other program used the GPU
	Holders   []Entry
	ByTurns   []TurnGroup      // of the holders, those that together hold less than their leases come to
	Ahead     []Entry          // the first of the waiters before this request
	Before    int              // the number of all of those
	Inside    *Entry           // the lease that this process runs in, which is too small; then only Device, Want, Copies and Free are set
	Foreign   []device.Process // programs on the GPU that belong to no lease
	Display   uint64           // left for the desktop; 0 without a display
	Reserve   uint64           // left as [Request].Reserve
	Blocked   error            // names a lease of another version, which is waited for; then only Device, Want, Copies, Ahead and Before are set
	Waited    error            // why the wait ended; nil if there was none
	After     time.Duration    // how long the wait was
}

// Unwrap returns Waited, so errors.Is(err, context.DeadlineExceeded) reports whether
// the time was up.
func (e *InsufficientMemoryError) Unwrap() error { return e.Waited }

// Error returns one line: the request, what can be shared, its holders, and a remedy.
func (e *InsufficientMemoryError) Error() string {
	var b strings.Builder
	want := size.Format(e.Want)
	if e.Want == 0 {
		want = "all that can be shared"
	}
	fmt.Fprintf(&b, "not enough free memory on %s: requested %s", printable(e.Device), want)
	switch {
	case e.Copies > 1 && e.Turns:
		fmt.Fprintf(&b, " for each of %d", e.Copies)
	case e.Copies > 1:
		fmt.Fprintf(&b, " (%d x %s)", e.Copies, size.Format(e.Want/uint64(e.Copies)))
	}
	if e.Inside != nil && len(e.Inside.Containers) > 0 {
		fmt.Fprintf(&b, "; this container has a lease of %s; ask for at most that, or for more in the ResourceClaim of its pod", size.Format(e.Inside.Bytes))
		return b.String()
	}
	if e.Inside != nil {
		fmt.Fprintf(&b, "; this program runs inside the lease of %s that an outer gpumem run took", size.Format(e.Inside.Bytes))
		if e.Free < e.Inside.Bytes {
			fmt.Fprintf(&b, ", and has %s of it", size.Format(e.Free))
		}
		fmt.Fprintf(&b, "; ask for at most %s, or start it outside of the lease", size.Format(e.Free))
		return b.String()
	}
	if e.Blocked != nil {
		fmt.Fprintf(&b, "; %s", strings.ReplaceAll(e.Blocked.Error(), "\n", "; "))
		e.waited(&b)
		return b.String()
	}
	how := ""
	if e.Turns {
		how = " by turns"
	}
	fmt.Fprintf(&b, ", available %s%s (of %s shareable, %s total", size.Format(e.Free), how, size.Format(e.Shareable), size.Format(e.Total))
	var kept []string
	if e.Display > 0 {
		kept = append(kept, size.Format(e.Display)+" for the display")
	}
	if e.Reserve > 0 {
		kept = append(kept, size.Format(e.Reserve)+" in reserve")
	}
	if len(kept) > 0 {
		fmt.Fprintf(&b, "; %s", strings.Join(kept, " and "))
	}
	b.WriteString(")")
	if !e.Never { // no end of a lease would help
		list(&b, "leases", e.Holders, len(e.Holders), entryText)
		for _, g := range e.ByTurns {
			fmt.Fprintf(&b, "; %s", g)
		}
	}
	list(&b, "waiting before", e.Ahead, max(e.Before, len(e.Ahead)), entryText)
	list(&b, "without a lease", e.Foreign, len(e.Foreign), foreignText)
	switch {
	case e.Never && e.Reserve > 0 && e.Want <= e.Total:
		fmt.Fprintf(&b, "; with this reserve that much can never be shared: take a smaller --reserve")
	case e.Never:
		fmt.Fprintf(&b, "; that is more than can ever be shared here: ask for less")
	case e.Before > 0 || len(e.Ahead) > 0:
		fmt.Fprintf(&b, "; wait for a turn, or ask again later")
	case e.Free > 0:
		fmt.Fprintf(&b, "; ask for at most %s, wait for room, or end one of these programs", size.Format(e.Free))
	case len(e.ByTurns) > 0 && !e.Turns: // the end of one frees nothing while the others together hold as much
		fmt.Fprintf(&b, "; wait for room, end those that share by turns, or share with them: --pool elastic --turns")
	default:
		fmt.Fprintf(&b, "; wait for room, or end one of these programs")
	}
	for _, h := range e.Ahead {
		if h.Stopped {
			fmt.Fprintf(&b, "; process %d is stopped: continue it (kill -CONT %d) or end it", h.PID, h.PID)
		}
	}
	e.waited(&b)
	return b.String()
}

func (e *InsufficientMemoryError) waited(b *strings.Builder) {
	if e.Waited != nil {
		fmt.Fprintf(b, "; gave up after %v", e.After.Round(100*time.Millisecond))
	}
}

// list writes the first of some entries, of all of which there are more.
func list[T any](b *strings.Builder, title string, some []T, all int, text func(T) string) {
	some = some[:min(len(some), queue.Shown)]
	for i, x := range some {
		if i == 0 {
			fmt.Fprintf(b, "; %s: ", title)
		} else {
			b.WriteString(", ")
		}
		b.WriteString(text(x))
	}
	if n := all - len(some); n > 0 && len(some) > 0 {
		fmt.Fprintf(b, ", and %d more", n)
	}
}

// holderText names the containers that a lease is for, else the process that has it or waits,
// if that is known here.
func holderText(e Entry) string {
	if n := len(e.Containers); n > 0 {
		text := "container " + printable(e.Containers[0].String())
		if n += e.MoreContainers - 1; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		return text
	}
	var holder string
	if len(e.HeldBy) > 0 {
		holder = processText(e.HeldBy[0].PID, e.HeldBy[0].Command)
		if n := len(e.HeldBy) - 1; n > 0 {
			holder += fmt.Sprintf(" and %d more", n)
		}
	}
	its := processText(e.PID, e.Command)
	switch {
	case e.Elsewhere && holder != "":
		return holder + " in another pid namespace"
	case e.Elsewhere:
		return its + " of another pid namespace"
	case e.PID == 0 && holder != "":
		return holder
	case e.PID == 0:
		return "an unknown process"
	case e.Ended && holder != "":
		return holder + ", left by " + its + " that has ended,"
	case e.Ended:
		return "an unknown process, left by " + its + " that has ended,"
	}
	return its
}

func processText(pid int, command []string) string {
	s := fmt.Sprintf("process %d", pid)
	if len(command) > 0 {
		s += " (" + printable(strings.Join(command, " ")) + ")"
	}
	return s
}

// entryText names the holder of a lease or the waiter, and its bytes.
func entryText(e Entry) string {
	s := holderText(e)
	if e.State == Waits && e.Bytes == 0 {
		return s
	}
	s += " " + size.Format(e.Bytes)
	if e.Over > 0 {
		s += " (and holds " + size.Format(e.Over) + " more than it has)"
	}
	return s
}

func foreignText(p device.Process) string {
	var command []string
	if p.Name != "" {
		command = []string{p.Name}
	}
	s := processText(p.PID, command)
	if !p.Known {
		return s + " of unknown size"
	}
	return s + " " + size.Format(p.Used)
}

// printable returns another user's text in a form that is safe on a terminal.
func printable(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "..."
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
