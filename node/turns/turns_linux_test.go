package turns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/probe"
	"gpumem/node/share"
)

// TestJudge: what a process says of its turn, and what that means for who waits for it.
func TestJudge(t *testing.T) {
	const silent = "it gives no sign of life"
	now := time.Now()
	before, after := ledger.MomentOf(now.Add(-time.Second)), ledger.MomentOf(now.Add(time.Hour))
	for _, tt := range []struct {
		name     string
		turn     ledger.Turn
		notAsked string // as it is shown
		left     verdict
		back     verdict // within the first second
		late     verdict // and after it
	}{
		{"on the GPU", ledger.Turn{State: ledger.In, Movable: 1}, "", verdict{}, verdict{done: true}, verdict{done: true}},
		{"with nothing before", ledger.Turn{State: ledger.In, Seen: before}, "", verdict{}, verdict{done: true}, verdict{done: true}},
		{"with nothing", ledger.Turn{State: ledger.In, Seen: after}, "", verdict{done: true}, verdict{done: true}, verdict{done: true}},
		{"not drained", ledger.Turn{State: ledger.In, Movable: 1, Reason: ledger.NotDrained}, ledger.NotDrained.String(), verdict{}, verdict{done: true}, verdict{done: true}},
		{"stays", ledger.Turn{State: ledger.In, Reason: ledger.OtherPolicy}, ledger.OtherPolicy.String(), verdict{refused: ledger.OtherPolicy.String()},
			verdict{done: true}, verdict{done: true}},
		{"stopped", ledger.Turn{State: ledger.In, Movable: 1}, silent, verdict{refused: silent}, verdict{done: true}, verdict{done: true}},
		{"leaving", ledger.Turn{State: ledger.Leaving, Movable: 1}, "", verdict{}, verdict{}, verdict{}},
		{"away", ledger.Turn{State: ledger.Away}, "", verdict{done: true}, verdict{}, verdict{}},
		{"away, and stopped", ledger.Turn{State: ledger.Away}, silent, verdict{done: true}, verdict{refused: silent}, verdict{refused: silent}},
		{"waiting", ledger.Turn{State: ledger.Waiting}, "", verdict{done: true}, verdict{}, verdict{done: true, waits: true}},
		{"returning", ledger.Turn{State: ledger.Returning}, "", verdict{}, verdict{}, verdict{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &probe.Seat{Entry: ledger.Entry{Turn: tt.turn}, Turn: &machine.Turn{NotAsked: tt.notAsked}}
			if left, back, late := hasLeft(s, now), isBack(s, now.Add(time.Hour)), isBack(s, now.Add(-queued)); left != tt.left || back != tt.back || late != tt.late {
				t.Errorf("left %+v, back %+v, later %+v", left, back, late)
			}
		})
	}
}

func TestAnswerInWords(t *testing.T) {
	for _, tt := range []struct {
		answer Answer
		want   string
	}{
		{Answer{Done: true, Paused: true, OnHost: 3 << 30, OnGPU: 300 << 20}, "process 7 is paused: 3 GiB of its memory are on the host, and 300 MiB stay on the GPU"},
		{Answer{Done: true, Paused: true, OnGPU: 300 << 20}, "process 7 is paused: it has nothing on the GPU that could leave (300 MiB stay), and what it takes leaves at once"},
		{Answer{Why: "it maps memory by itself"}, "process 7 is not paused: it maps memory by itself"},
		{Answer{Done: true, resumed: true, OnGPU: 3 << 30}, "process 7 is on the GPU, with 3 GiB"},
		{Answer{Done: true, resumed: true, waits: "waits for 1 GiB (next)"}, "process 7 waits for 1 GiB (next)"},
		{Answer{Why: "it gives no sign of life", resumed: true}, "process 7 is not back: it gives no sign of life"},
	} {
		tt.answer.PID = 7
		if got := tt.answer.String(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// member is this process in a new ledger by turns, and what lists its lease.
func member(t *testing.T) (m *ledger.Member, leases func([]string) ([]share.Entry, error)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(path, ledger.Header{Limit: 100, Total: 100, Turns: true}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = l.Join(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Leave(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	entry := share.Entry{Ledger: path, UID: os.Geteuid()}
	none := share.Entry{Ledger: path + " that is gone", UID: os.Geteuid()}
	return m, func([]string) ([]share.Entry, error) {
		_ = m.SetTurn(func(*ledger.Turn) {}) // a sign of life, for each look
		return []share.Entry{{}, none, entry, entry}, nil
	}
}

// TestPauseThatFailsIsWithdrawn: for a reason that stays at once, for one that may pass at the
// end of the time, and when somebody interrupts it. One of somebody else stays.
func TestPauseThatFailsIsWithdrawn(t *testing.T) {
	m, leases := member(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		reason ledger.Reason
		wait   time.Duration
		why    string
		err    error
	}{
		{"it stays", t.Context(), ledger.OwnMappings, time.Hour, "it maps memory by itself", nil},
		{"it takes too long", t.Context(), ledger.NoReason, 50 * time.Millisecond, "it is still on the GPU (waited 50ms)", nil},
		{"for a reason that passes", t.Context(), ledger.NotDrained, 50 * time.Millisecond, "its work did not end in time (waited 50ms)", nil},
		{"interrupted", ended, ledger.NoReason, time.Hour, "it is still on the GPU; it goes on as before", context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := m.SetTurn(func(t *ledger.Turn) { t.Movable, t.Reason = 5, tt.reason }); err != nil {
				t.Fatal(err)
			}
			a, err := Pause(tt.ctx, Request{PID: os.Getpid(), Wait: tt.wait, Leases: leases})
			if a.Done || a.Paused || a.Why != tt.why || !errors.Is(err, tt.err) {
				t.Errorf("%+v, %v", a, err)
			}
			if turn, err := m.Turn(); err != nil || turn.Asked != ledger.NotAsked || turn.Asks == 0 {
				t.Errorf("%+v, %v", turn, err)
			}
		})
	}
	askAll(t, leases, ledger.Pause)
	if a, err := Pause(t.Context(), Request{PID: os.Getpid(), Wait: time.Millisecond, Leases: leases}); a.Done || err != nil {
		t.Errorf("%+v, %v", a, err)
	}
	const why = "it is still on the GPU; it was asked to pause before, and still is"
	if a, err := Pause(ended, Request{PID: os.Getpid(), Wait: time.Hour, Leases: leases}); a.Why != why || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", a, err)
	}
	if turn, err := m.Turn(); err != nil || turn.Asked != ledger.Pause {
		t.Errorf("the pause of another is withdrawn: %+v, %v", turn, err)
	}
}

// TestResumeInterrupted: the request stays, and the answer says so.
func TestResumeInterrupted(t *testing.T) {
	m, leases := member(t)
	if err := m.SetTurn(func(t *ledger.Turn) { t.State, t.OnHost = ledger.Away, 5 }); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a, err := Resume(ended, Request{PID: os.Getpid(), Wait: time.Hour, Leases: leases})
	if a.Why != "it is still away; it comes back once it can" || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", a, err)
	}
	if turn, err := m.Turn(); err != nil || turn.Asked != ledger.Resume {
		t.Errorf("%+v, %v", turn, err)
	}
}

// TestPauseOfWhatCannotLeave: a program without a pool that could leave, which has taken memory from the driver
// itself, is refused, and the request is withdrawn.
func TestPauseOfWhatCannotLeave(t *testing.T) {
	m, leases := member(t)
	if err := errors.Join(m.Take(ledger.Charged, 5), m.Take(ledger.Outside, 7)); err != nil {
		t.Fatal(err)
	}
	a, err := Pause(t.Context(), Request{PID: os.Getpid(), Wait: time.Minute, Leases: leases})
	want := Answer{PID: os.Getpid(), Why: "what it holds (12 B) is outside of a pool that can leave", State: "in", OnGPU: 12}
	if a != want || err != nil {
		t.Errorf("%+v, %v, want %+v", a, err, want)
	}
	if turn, err := m.Turn(); err != nil || turn.Asked != ledger.NotAsked || turn.Asks == 0 {
		t.Errorf("%+v, %v", turn, err)
	}
}

func askAll(t *testing.T, leases func([]string) ([]share.Entry, error), what ledger.Ask) {
	t.Helper()
	seats, err := probe.Seats(leases)
	if err != nil || len(seats) != 1 {
		t.Fatalf("%+v, %v", seats, err)
	}
	if err := ask(seats[0], what); err != nil {
		t.Fatal(err)
	}
}

// TestPauseAndResumeByState: what each returns of a process that is there already, and what it is asked.
func TestPauseAndResumeByState(t *testing.T) {
	m, leases := member(t)
	if err := m.Take(ledger.Outside, 7); err != nil {
		t.Fatal(err)
	}
	r := Request{PID: os.Getpid(), Wait: time.Minute, Leases: leases}
	for _, tt := range []struct {
		name  string
		state ledger.State
		asked ledger.Ask // before
		do    func(context.Context, Request) (Answer, error)
		want  Answer
		asks  ledger.Ask // after
	}{
		{"pause of one that holds nothing", ledger.In, ledger.NotAsked, Pause, Answer{Done: true, Paused: true, State: "in", OnGPU: 7}, ledger.Pause},
		{"pause of one that is away", ledger.Away, ledger.NotAsked, Pause, Answer{Done: true, Paused: true, State: "away", OnHost: 5, OnGPU: 7}, ledger.Pause},
		{"pause of one that is paused", ledger.Away, ledger.Pause, Pause, Answer{Done: true, Paused: true, State: "away", OnHost: 5, OnGPU: 7}, ledger.Pause},
		{"pause of one that waits", ledger.Waiting, ledger.Resume, Pause, Answer{Done: true, Paused: true, State: "waiting", OnHost: 5, OnGPU: 7}, ledger.Pause},
		{"resume of one that was not paused", ledger.In, ledger.NotAsked, Resume, Answer{Done: true, State: "in", OnGPU: 7, resumed: true}, ledger.NotAsked},
		{"resume of one that is paused and holds nothing", ledger.In, ledger.Pause, Resume, Answer{Done: true, State: "in", OnGPU: 7, resumed: true}, ledger.Resume},
		{"resume of one that waits", ledger.Waiting, ledger.NotAsked, Resume, Answer{Done: true, State: "waiting", OnHost: 5, OnGPU: 7, resumed: true,
			waits: "waits for 1 B (next), with 5 B on the host"}, ledger.NotAsked},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := m.SetTurn(func(t *ledger.Turn) {
				t.State, t.Since, t.OnHost = tt.state, ledger.Now(), 0
				if tt.state != ledger.In {
					t.OnHost = 5
				}
			})
			if tt.state == ledger.Waiting {
				_, err = m.Queue(1)
			}
			if err != nil {
				t.Fatal(err)
			}
			askAll(t, leases, tt.asked)
			a, err := tt.do(t.Context(), r)
			tt.want.PID = os.Getpid()
			if a != tt.want || err != nil {
				t.Errorf("%+v, %v, want %+v", a, err, tt.want)
			}
			if turn, err := m.Turn(); err != nil || turn.Asked != tt.asks {
				t.Errorf("it is asked %v, %v, want %v", turn.Asked, err, tt.asks)
			}
		})
	}
}

// TestNoSuchProcess: one line says what is wrong with the number.
func TestNoSuchProcess(t *testing.T) {
	_, leases := member(t)
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Skip("SKIPPED: no sleep to start, of which the number is asked: ", err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	const gone = 1<<22 + 1 // above the largest that Linux gives out
	none := func([]string) ([]share.Entry, error) { return nil, nil }
	damaged := func([]string) ([]share.Entry, error) { return nil, errors.New("damaged") }
	without := fmt.Sprintf("process %d shares no GPU by turns, as programs of gpumem run --lend and --turns do", sleeper.Process.Pid)
	for _, tt := range []struct {
		name   string
		pid    int
		leases func([]string) ([]share.Entry, error)
		want   string
	}{
		{"ended", gone, leases, fmt.Sprintf("process %d: ", gone)},
		{"without turns", sleeper.Process.Pid, leases, fmt.Sprintf("%s; those that do: %d", without, os.Getpid())},
		{"without turns, as all others", sleeper.Process.Pid, none, without},
		{"the registry cannot be read", os.Getpid(), damaged, "leases: damaged"},
	} {
		for _, do := range []func(context.Context, Request) (Answer, error){Pause, Resume} {
			_, err := do(t.Context(), Request{PID: tt.pid, Wait: time.Minute, Leases: tt.leases})
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || tt.pid != gone && err.Error() != tt.want {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
			}
		}
	}
}

// TestAnotherInItsSlot: a process that has the slot and the number of one that has ended is not that.
func TestAnotherInItsSlot(t *testing.T) {
	_, leases := member(t)
	r := Request{PID: os.Getpid(), Leases: leases}
	seats, err := r.find("pause")
	if err != nil || len(seats) != 1 {
		t.Fatalf("%+v, %v", seats, err)
	}
	if now, err := r.lookAgain(seats); err != nil || len(now) != 1 {
		t.Errorf("%+v, %v", now, err)
	}
	seats[0].Start++
	if now, err := r.lookAgain(seats); err == nil {
		t.Errorf("%+v", now)
	}
}

// TestEndWhileItIsWaitedFor: of a process that ends.
func TestEndWhileItIsWaitedFor(t *testing.T) {
	m, leases := member(t)
	if err := m.SetTurn(func(t *ledger.Turn) { t.Movable = 5 }); err != nil {
		t.Fatal(err)
	}
	looks := 0
	ends := func(keys []string) ([]share.Entry, error) {
		if looks++; looks == 3 {
			_ = m.Leave()
		}
		return leases(keys)
	}
	a, err := Pause(t.Context(), Request{PID: os.Getpid(), Wait: time.Minute, Leases: ends})
	if want := fmt.Sprintf("process %d has ended", os.Getpid()); err == nil || err.Error() != want || a.Done {
		t.Errorf("%+v, %v", a, err)
	}
}
