package probe

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/proc"
	"gpumem/internal/test/holder"
	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/share"
)

// TestTurnsOf: what a ledger has of processes in each state, as it is shown.
func TestTurnsOf(t *testing.T) {
	at, now := time.Unix(1000, 0), ledger.Moment(time.Hour)
	ago := func(d time.Duration) ledger.Moment { return now.Add(-d) }
	self, ok := proc.ReadStat(os.Getpid())
	if !ok {
		t.Fatal("this process cannot be read")
	}
	seen := ledger.Figures{PID: os.Getpid(), Start: self.Start, Held: 40}
	elsewhere := ledger.Figures{PID: math.MaxInt32, Start: 7, Held: 20}
	turn := func(s ledger.State, change func(t *ledger.Turn)) ledger.Turn {
		t := ledger.Turn{State: s, Since: ago(time.Minute), Seen: ago(0), Worked: ago(0), Movable: 20, Quantum: time.Hour}
		if change != nil {
			change(&t)
		}
		return t
	}
	shown := func(state string, change func(t *machine.Turn)) *machine.Turn {
		t := &machine.Turn{State: state, Since: at.Add(-time.Minute), Movable: 20}
		if change != nil {
			change(t)
		}
		return t
	}
	entries := []ledger.Entry{
		{Slot: 3, Figures: seen, Turn: turn(ledger.In, func(t *ledger.Turn) { t.Swaps, t.Cost = 4, 1500*time.Millisecond })},
		{Slot: 4, Figures: elsewhere, Turn: turn(ledger.In, func(t *ledger.Turn) { t.Reason = ledger.OwnMappings })},
		{Slot: 5, Turn: turn(ledger.Waiting, func(t *ledger.Turn) { t.Ticket, t.Wants, t.OnHost, t.Movable = 9, 50, 45, 0 })},
		{Slot: 6, Turn: turn(ledger.Waiting, func(t *ledger.Turn) { t.Ticket, t.Wants, t.OnHost, t.Movable = 8, 101, 45, 0 })},
		{Slot: 7, Turn: turn(ledger.Waiting, func(t *ledger.Turn) { t.Ticket, t.Wants, t.Asked = 1, 2, ledger.Pause })},
		{Slot: 8, Turn: turn(ledger.Waiting, func(t *ledger.Turn) { t.Ticket, t.Wants, t.Seen = 2, 2, ago(6*time.Second) })},
		{Slot: 9, Turn: turn(ledger.Away, func(t *ledger.Turn) { t.OnHost = 12 })},
		{Slot: 10, Turn: turn(ledger.Leaving, nil)},
		{Slot: 11, Turn: turn(ledger.Returning, func(t *ledger.Turn) { t.Seen = ago(6 * time.Second) })},
		{Slot: 13, Turn: turn(ledger.In, func(t *ledger.Turn) { t.Seen = t.Since })},
		{Slot: 12, Turn: ledger.Turn{Reason: ledger.Unreadable}},
	}
	want := []*machine.Turn{
		shown("in", func(t *machine.Turn) { t.Swaps, t.Seconds = 4, 1.5 }),
		shown("in", func(t *machine.Turn) { t.NotAsked = "it maps memory by itself" }),
		shown("waiting", func(t *machine.Turn) {
			t.Place, t.Wants, t.OnHost, t.Movable = new(1), 50, 45, 0
			t.HeldBy = []machine.TurnHolder{{PID: os.Getpid(), Bytes: 40, Why: "its turn is not over"}, {Bytes: 20, Why: "it maps memory by itself"}}
		}),
		shown("waiting", func(t *machine.Turn) {
			t.Place, t.Wants, t.OnHost, t.Movable, t.Never = new(0), 101, 45, 0, true
			t.HeldBy = []machine.TurnHolder{{PID: os.Getpid(), Bytes: 20, Why: "memory outside of its pool stays on the GPU"}, {Bytes: 20, Why: "it maps memory by itself"}}
		}),
		shown("waiting", func(t *machine.Turn) { t.Paused = true }),
		shown("waiting", func(t *machine.Turn) { t.Wants, t.NotAsked = 2, "it gives no sign of life" }),
		shown("away", func(t *machine.Turn) { t.OnHost = 12 }),
		shown("leaving", nil),
		shown("returning", func(t *machine.Turn) { t.NotAsked = "it gives no sign of life" }),
		shown("in", func(t *machine.Turn) { t.NotAsked = "it takes no turns" }),
		{State: "unknown", NotAsked: "its record in the ledger is damaged"},
	}
	got := turnsOf(at, now, 100, entries, figuresOf(entries))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestTurnOfProgram: a program of a ledger by turns has its turn in the snapshot, and one of
// another ledger has none.
func TestTurnOfProgram(t *testing.T) {
	file, _ := holder.Start(t)
	key := meterOf(t, file).listed(t).Key()
	for _, byTurns := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "ledger")
		if err := ledger.Create(path, ledger.Header{Limit: 100, Total: 100, Turns: byTurns}); err != nil {
			t.Fatal(err)
		}
		l, err := ledger.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		m, err := l.Join()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Take(ledger.Held, 30); err != nil {
			t.Fatal(err)
		}
		if byTurns {
			err = m.SetTurn(func(t *ledger.Turn) { t.State, t.OnHost = ledger.Away, 45 })
		}
		if err != nil {
			t.Fatal(err)
		}
		e := entryOf(t, os.Getpid())
		e.Device, e.Bytes, e.Ledger = key, 100, path
		p, err := New(Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) { return []share.Entry{e}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		turns := 0
		for _, p := range s.Devices[0].Programs {
			if p.Turn == nil {
				continue
			}
			turns++
			if p.PID != os.Getpid() || p.Pool.Held != 30 || p.Turn.State != "away" || p.Turn.OnHost != 45 {
				t.Errorf("%+v, %+v", p, p.Turn)
			}
		}
		if want := map[bool]int{true: 1}[byTurns]; turns != want {
			t.Errorf("by turns: %v: %d programs have turns, want %d", byTurns, turns, want)
		}
		if err := errors.Join(m.Leave(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestStoppedProcessIsSaidToBe: one that gives no sign of life because it is stopped, and the same one before.
func TestStoppedProcessIsSaidToBe(t *testing.T) {
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Skip("SKIPPED: no sleep to start and stop: ", err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	s, ok := proc.ReadStat(c.Process.Pid)
	if !ok {
		t.Fatal("the process cannot be read")
	}
	now := ledger.Moment(time.Hour)
	e := ledger.Entry{Figures: ledger.Figures{PID: c.Process.Pid, Start: s.Start}, Turn: ledger.Turn{Seen: now.Add(-time.Minute)}}
	if got := whySilent(now, &e); got != "it gives no sign of life" {
		t.Errorf("it runs: %q", got)
	}
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(c.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatal(status, err)
	}
	if got := whySilent(now, &e); got != "it is stopped" {
		t.Errorf("it is stopped: %q", got)
	}
	if e.Start++; whySilent(now, &e) != "it gives no sign of life" {
		t.Error("another process had the number")
	}
}
