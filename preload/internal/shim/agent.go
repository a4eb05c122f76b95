// When the memory of a process leaves the GPU, and when it comes back.

package shim

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"gpumem/node/ledger"
	"gpumem/size"
)

// Seat is a process's place in a ledger by turns: [ledger.Member] is one.
type Seat interface {
	Slot() int
	Turn() (ledger.Turn, error)
	SetTurn(change func(t *ledger.Turn)) error
	Queue(bytes uint64) (ticket uint64, err error)
	Unqueue() error
	Turns() (limit uint64, list []ledger.Entry, err error)
	LookAtTurns() (limit uint64, list []ledger.Entry, err error)
}

// Agent moves a process's memory as the ledger's plan has it. It looks by itself, every lookAgain;
// one goroutine does, so that there is one decision at a time.
//
//	in         the plan has this process leave: the gate is closed, the work is waited for,
//	           the memory leaves                                                    -> away
//	away       a thread stands at the gate, or waits for memory                     -> waiting
//	waiting    the plan serves it: the memory returns, and the gate is opened       -> in
//	           it is asked by hand to pause                                         -> away
//
// What cannot be done is undone: the gate is open, the program goes on, and its record in the
// ledger has the reason. It is not asked again before notAgain has passed. What cannot return
// waits on, and so does the program, in the same place of the queue.
//
// In the queue is one that waits for its memory, or has threads that wait for more: queue takes a
// ticket for all of that, and gives it up when there is nothing left to wait for. Nothing else does.
type Agent struct {
	AgentConfig

	// What follows is the one goroutine's.
	state    ledger.State
	reason   ledger.Reason
	until    time.Time // when the reason is forgotten; zero: never
	passed   uint64    // calls that the gate had let pass at the last look
	worked   time.Time // when that was seen to change
	since    time.Time // when the state began
	told     time.Time // when the ledger was last written
	movable  uint64    // as written there
	cost     time.Duration
	swaps    uint64
	onHost   uint64
	draining chan error    // of a wait for the GPU that was not over in time; nil for none
	within   time.Duration // of the next drain; 0: drainWithin
	said     string        // the last line that was said: what goes on is said once
	asked    ledger.Ask    // by hand, and the number of that request, as of the last plan: away, of the one that had it leave
	asks     uint64
	looked   time.Time // when the last look was
	waits    bool      // at the last look the program had work and no memory for it
	wants    uint64    // bytes that it was in the queue for at the last look; 0: it was not
	queued   *request  // whose ticket it is; nil: that of the memory
	served   bool      // the turn begins when the thread that was served has what it asked for
	blocked  time.Time // since when nobody could make room for what it waits for; zero: somebody could

	mu       sync.Mutex // guards what follows
	totals   Totals
	requests []*request // that wait for memory
	closed   bool
	ended    chan struct{} // closed when the goroutine has ended
}

// Waiter is a thread's wait for memory that others hold.
type Waiter interface {
	// Again waits until there may be room, and reports whether the request is to be tried again. It is
	// false where the others cannot make room, and after [Agent.Close].
	Again() bool
	// End ends the wait when the request was served, or is given up. Until then nobody who came later
	// takes what was made free for it, and the memory of the process stays.
	End()
}

// request is the Waiter of an agent.
type request struct {
	agent *Agent
	bytes uint64
	asks  bool      // a thread waits in Again; guarded by the agent's mu
	again chan bool // true: try again; false: there will not be enough
	said  bool      // that it waits for what others may be able to do later
}

// Totals are what turns have cost a process.
type Totals struct {
	Swaps  uint64        // number of times that its memory has left
	Bytes  uint64        // that were copied to the host; nearly as many are copied back
	Moving time.Duration // that the ways out and back took
	Waited time.Duration // with work and no memory, its ways back included
}

// String returns the totals behind other figures, from a semicolon on; it is empty for none.
func (t Totals) String() string {
	text := ""
	if t.Swaps > 0 {
		times := "times" // package report has words for it, and would make the library larger by a megabyte
		if t.Swaps == 1 {
			times = "time"
		}
		text = fmt.Sprintf("; memory moved to the host %d %s (%s) and back, in %v", t.Swaps, times, size.Format(t.Bytes), inTenths(t.Moving))
	}
	if t.Waited > 0 {
		text += fmt.Sprintf("; waited %v for its turn", inTenths(t.Waited))
	}
	return text
}

// inTenths rounds a duration that is read by people, who know tenths of seconds.
func inTenths(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// AgentConfig is how an agent is made.
type AgentConfig struct {
	Gate      Gate
	Seat      Seat
	LendAfter time.Duration // without work; 0: it lends nothing
	Quantum   time.Duration // of a turn, or ledger.AutoQuantum; 0: it has no turns
	// Pool returns the process's pool; nil while there is none. It must be the same one until it is closed.
	Pool func() *Pool
	// Reason returns why the process must not be asked, of what the agent cannot see; it may be asked often.
	// Look does of what takes time to find out: it is asked when the memory is about to leave. nil: there is nothing.
	Reason, Look func() ledger.Reason
	Say          func(string)
}

const (
	// lookAgain is how often an agent looks. A request waits half of it on average before anything
	// happens, which is small beside the copy of a gibibyte.
	lookAgain = 20 * time.Millisecond
	// drainWithin is how long calls that are under way and work that was queued may take to end, while
	// threads wait at the closed gate: a host function or a kernel that waits for one of them would wait
	// for ever. Some programs queue more, or copy and wait in one call, so each failure doubles it, up to
	// mostDrain.
	drainWithin = 2 * time.Second
	mostDrain   = 16 * time.Second
	// notAgain is how long a process is not asked after it could not leave; more where the wait was longer,
	// so that one whose work never ends stands still for a sixth of its time at most.
	notAgain = 10 * time.Second
	// neverFor is how long nobody must be able to make room for a request before it is refused: what
	// the others say of themselves may be a look older.
	neverFor = 500 * time.Millisecond
	// tellEvery is how often a process that has nothing new says that it lives, see ledger.Silence.
	tellEvery = time.Second
)

// passesIn is how long nobody must be able to make room for a request before it is refused, where the
// reason of one of the others may pass: some of its tries to leave.
var passesIn = time.Minute

// passes reports whether a reason may be another one soon.
func passes(r ledger.Reason) bool {
	switch r {
	case ledger.NotDrained, ledger.Capturing, ledger.NoHostMemory, ledger.NotReleased, ledger.Silent, ledger.Unreadable:
		return true
	}
	return false
}

// NewAgent starts an agent.
func NewAgent(c AgentConfig) *Agent {
	now := time.Now()
	a := &Agent{AgentConfig: c, state: ledger.In, worked: now, since: now, ended: make(chan struct{})}
	go a.run()
	return a
}

// Close ends the agent. Who waits for memory is refused. Memory that is away stays so, and the gate closed.
func (a *Agent) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	<-a.ended
}

func (a *Agent) run() {
	defer close(a.ended)
	defer a.refuseAll() // those that come later see that it is closed
	defer a.recovered()
	for !a.isClosed() {
		a.look()
		a.pause()
	}
}

// recovered ends the agent after a fault of this package, and not the program.
func (a *Agent) recovered() {
	fault := recover()
	if fault == nil {
		return
	}
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	then := "its memory stays on the GPU from now on"
	if a.isAway() {
		then = "its memory is on the host, and cannot come back: end the program"
	} else {
		a.Gate.Open()
	}
	a.Say(fmt.Sprintf("a fault of gpumem: %v; %s\n%s", fault, then, debug.Stack()))
}

func (a *Agent) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

// pause waits for the next look: less where a thread comes to the closed gate.
func (a *Agent) pause() {
	if a.state == ledger.Away {
		a.Gate.Waiting(lookAgain)
		return
	}
	time.Sleep(lookAgain)
}

// Totals returns what turns have cost so far.
func (a *Agent) Totals() Totals {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.totals
}

// count changes the totals.
func (a *Agent) count(change func(t *Totals)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.totals)
}

// countWait counts the time since the last look if the program waited then.
func (a *Agent) countWait(now time.Time) {
	if a.waits {
		a.count(func(t *Totals) { t.Waited += now.Sub(a.looked) })
	}
	a.looked, a.waits = now, a.state == ledger.Waiting || a.firstRequest() != nil
}

// look is one decision.
func (a *Agent) look() {
	now := time.Now()
	a.countWait(now)
	if !a.until.IsZero() && now.After(a.until) {
		a.reason, a.until = ledger.NoReason, time.Time{}
	}
	if passed := a.Gate.Passed(); passed != a.passed {
		a.passed, a.worked = passed, now
	}
	a.tell(now, false)
	if a.state != ledger.In && !a.isAway() {
		a.isGone()
	}
	switch a.state {
	case ledger.In:
		a.lookIn()
	case ledger.Away:
		a.lookAway()
	case ledger.Waiting:
		a.lookWaiting()
	}
}

func (a *Agent) isAway() bool {
	p := a.Pool()
	if p == nil {
		return false
	}
	_, away := p.IsAway()
	return away
}

// isGone follows the end of a pool whose memory was away: the program has ended the context.
func (a *Agent) isGone() {
	a.onHost = 0
	a.become(ledger.In)
	a.queue()
	a.Gate.Open()
}

// tell writes what this process says, if there is news or it was silent for long.
func (a *Agent) tell(now time.Time, news bool) {
	movable := a.movableNow()
	if !news && movable == a.movable && now.Sub(a.told) < tellEvery {
		return
	}
	reason := a.reason
	if reason == ledger.NoReason {
		reason = a.Reason()
	}
	err := a.Seat.SetTurn(func(t *ledger.Turn) {
		t.State, t.Reason, t.OnHost, t.Movable = a.state, reason, a.onHost, movable
		t.Worked, t.Since = ledger.MomentOf(a.worked), ledger.MomentOf(a.since)
		t.LendAfter, t.Quantum, t.Cost, t.Swaps = a.LendAfter, a.Quantum, a.cost, a.swaps
	})
	if err == nil {
		a.told, a.movable = now, movable
	}
}

// movableNow returns the bytes that would be free if the memory left.
func (a *Agent) movableNow() uint64 {
	p := a.Pool()
	if p == nil {
		return 0
	}
	return p.movable()
}

// showLife says that the process lives until stop is called: a move takes longer than [ledger.Silence],
// and who waits for one that is silent is refused.
func (a *Agent) showLife() (stop func()) {
	end := make(chan struct{})
	go func() {
		for tick := time.Tick(tellEvery); ; {
			select {
			case <-end:
				return
			case <-tick:
				_ = a.Seat.SetTurn(func(*ledger.Turn) {})
			}
		}
	}()
	return func() { close(end) }
}

// become enters a state.
func (a *Agent) become(s ledger.State) {
	now := time.Now()
	a.state, a.since = s, now
	a.tell(now, true)
}

// plan returns what is to happen as it looks, and whether it could be found out.
func (a *Agent) plan(look func() (limit uint64, list []ledger.Entry, err error)) (p ledger.Plan, ok bool) {
	limit, all, err := look()
	if err != nil {
		a.unusable(err)
		return p, false
	}
	slot := a.Seat.Slot()
	if own := slices.IndexFunc(all, func(e ledger.Entry) bool { return e.Slot == slot }); own >= 0 {
		a.asked, a.asks = all[own].Asked, all[own].Asks
	}
	return ledger.PlanTurns(ledger.Now(), limit, all), true
}

// unusable refuses who waits for memory of a ledger that cannot be used: nothing is served without it.
func (a *Agent) unusable(err error) {
	if waits := a.refuseAll(); waits || a.state != ledger.In {
		a.say(fmt.Sprintf("it waits in vain: the ledger of its lease cannot be used: %v", err))
	}
}

// lookIn looks without the lock of the ledger, which another process may have that is stopped, and
// leaves only by what holds under it. It leaves no thread that was served without what it takes.
func (a *Agent) lookIn() {
	if a.isTrying() {
		return
	}
	if a.served {
		a.served = false
		a.become(ledger.In)
	}
	if !a.queue() {
		return
	}
	p, ok := a.plan(a.Seat.LookAtTurns)
	if !ok {
		return
	}
	if a.wants > 0 {
		a.serveRequest(p)
	}
	slot := a.Seat.Slot()
	if !slices.Contains(p.Leave, slot) || a.served {
		return
	}
	if p, ok = a.plan(a.Seat.Turns); ok && slices.Contains(p.Leave, slot) {
		a.leave()
	}
}

// queue brings the place of this process in the queue in line with what it waits for: its memory,
// and what its first thread requests, which waits in the same place while the memory is away. It
// reports whether the ledger can be used.
func (a *Agent) queue() bool {
	a.wants = 0
	r := a.firstRequest()
	if r != nil {
		a.wants = r.bytes
	}
	if p := a.Pool(); p != nil && a.state == ledger.Waiting {
		needs, _ := p.IsAway() // which changes with what the program frees meanwhile
		a.wants += needs
	}
	var err error
	if a.wants == 0 || a.state == ledger.In && a.queued != nil && a.queued != r {
		err = a.Seat.Unqueue()
	}
	if a.wants > 0 && err == nil {
		_, err = a.Seat.Queue(a.wants)
	}
	if a.queued = r; err != nil {
		a.unusable(err)
	}
	return err == nil
}

// stays withdraws: the process is not asked for a while.
func (a *Agent) stays(r ledger.Reason, why string) {
	a.reason, a.until = r, time.Now().Add(notAgain)
	a.become(ledger.In)
	a.say("its memory stays on the GPU: " + why)
}

// say says a line, unless it was the last one.
func (a *Agent) say(line string) {
	if line != a.said {
		a.said = line
		a.Say(line)
	}
}

// leave moves the memory to the host.
func (a *Agent) leave() {
	p := a.Pool()
	if p == nil {
		return
	}
	begun := time.Now()
	if a.Reason() != ledger.NoReason { // news, which the plan does not know
		a.tell(begun, true)
		return
	}
	if a.Look != nil {
		if r := a.Look(); r != ledger.NoReason {
			a.stays(r, r.String())
			return
		}
	}
	defer a.showLife()()
	if err := a.stopWork(p, begun); err != nil {
		return
	}
	m, err := p.Leave()
	if _, away := p.IsAway(); !away {
		a.Gate.Open()
		a.stays(reasonOf(err), err.Error())
		return
	}
	if err != nil { // it could neither leave as a whole nor be brought back
		a.say(fmt.Sprintf("its memory left the GPU in part, and returns with the next work: %v", err))
	}
	a.onHost, a.cost = m.Host, time.Since(begun)
	a.swaps++
	a.count(func(t *Totals) {
		t.Swaps++
		t.Bytes += m.Host
		t.Moving += a.cost
	})
	a.become(ledger.Away)
	a.queue()
}

// stopWork closes the gate, and waits until the GPU has no work of the program. After an error the gate is
// open, and the process stays. Streams are asked while it is closed: a capture that begins meanwhile
// would be spoilt, and so would be one under way by a wait.
func (a *Agent) stopWork(p *Pool, begun time.Time) error {
	within, lends := max(a.within, drainWithin), a.lendsOnly(begun)
	until := begun.Add(within)
	closeWithin := within
	if lends {
		closeWithin = 0 // with a call under way it is at work
	}
	err := a.Gate.Close(closeWithin)
	switch {
	case errors.Is(err, ErrGateUnseen):
		a.stays(ledger.NoGate, err.Error())
		return err
	case err == nil:
		err = a.Gate.Running()
		mayWait := !lends && !errors.Is(err, ErrCapture)
		if err == nil || mayWait {
			a.become(ledger.Leaving)
			err = a.drain(p, until)
		}
		if err == nil {
			return nil
		}
		a.Gate.Open()
	}
	switch {
	case errors.Is(err, ErrCapture):
		a.stays(ledger.Capturing, ledger.Capturing.String())
	case lends && a.state == ledger.In:
		a.worked = begun
		a.tell(begun, true)
	default:
		a.stays(ledger.NotDrained, fmt.Sprintf("%v, within %v", err, within))
		a.until = time.Now().Add(notAgain / drainWithin * within)
		a.within = min(2*within, mostDrain)
	}
	return err
}

// lendsOnly reports whether this process is asked because it seems to be idle: it lends, and is not
// to leave if it is at work.
func (a *Agent) lendsOnly(now time.Time) bool {
	isIdle := a.LendAfter > 0 && now.Sub(a.worked) >= a.LendAfter
	return a.asked != ledger.Pause && (a.Quantum == 0 || isIdle)
}

// reasonOf returns the reason that stands for an error of [Pool.Leave].
func reasonOf(err error) ledger.Reason {
	switch {
	case errors.Is(err, ErrStays):
		return ledger.OtherPolicy
	case errors.Is(err, ErrKept):
		return ledger.NotReleased
	case errors.Is(err, ErrCapturing):
		return ledger.Capturing
	case errors.Is(err, ErrNoHostMemory):
		return ledger.NoHostMemory
	}
	return ledger.NotDrained
}

var errNotDrained = errors.New("its work did not end")

// drain waits for all work of the program, with a deadline: the wait is the driver's and cannot be
// ended, so it is left alone where it lasts. The next drain waits for that to end, and then once more: what
// was submitted since is not in it, and of the legacy stream nothing else tells.
func (a *Agent) drain(p *Pool, until time.Time) error {
	deadline := time.NewTimer(time.Until(until))
	defer deadline.Stop()
	for begun := false; ; {
		if a.draining == nil {
			done := make(chan error, 1)
			a.draining, begun = done, true
			go func() { done <- flushed(p) }()
		}
		select {
		case err := <-a.draining:
			a.draining = nil
			if !begun {
				continue
			}
			if err != nil {
				return err
			}
			return a.Gate.Running()
		case <-deadline.C:
			return errNotDrained
		}
	}
}

// flushed waits for all work of the program. A fault in it is an error.
func flushed(p *Pool) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("a fault of gpumem: %v\n%s", fault, debug.Stack())
		}
	}()
	return p.flush()
}

func (a *Agent) lookAway() {
	t, err := a.Seat.Turn()
	if err != nil {
		a.unusable(err)
		return
	}
	isResumed := t.Asked == ledger.Resume && t.Asks != a.asks // once: it may leave again
	hasWork := isResumed || a.Gate.Waiting(0) > 0 || a.firstRequest() != nil
	if hasWork && t.Asked != ledger.Pause {
		a.become(ledger.Waiting)
		a.queue()
	}
}

func (a *Agent) lookWaiting() {
	pool := a.Pool()
	if pool == nil || !a.queue() { // nil: the program has ended the context just now
		return
	}
	p, ok := a.plan(a.Seat.LookAtTurns)
	if !ok {
		return
	}
	switch {
	case a.asked == ledger.Pause: // until it is resumed it waits for nothing
		a.become(ledger.Away)
		return
	case a.wants > 0 && !slices.Contains(p.Serve, a.Seat.Slot()):
		a.judge(p)
		return
	}
	begun := time.Now()
	stop := a.showLife()
	_, err := pool.Return() // which is Returning once the whole is taken
	stop()
	if err != nil {
		if !errors.Is(err, ledger.ErrFull) { // else somebody was faster, and nothing has changed
			a.become(ledger.Waiting)
			a.say(fmt.Sprintf("its memory cannot come back, and is tried again: %v", err))
			time.Sleep(lookAgain) // it has the time of the driver's calls, too
		}
		return
	}
	took := time.Since(begun)
	a.count(func(t *Totals) { t.Moving += took })
	a.onHost, a.cost, a.blocked = 0, a.cost+took, time.Time{}
	a.worked = time.Now()
	a.become(ledger.In)
	a.queue() // in the same place: behind those who came meanwhile it would leave at once
	a.Gate.Open()
}

// WaitRoom is a wait for room for a request that was refused.
func (a *Agent) WaitRoom(bytes uint64) Waiter {
	return &request{agent: a, bytes: bytes, again: make(chan bool, 1)}
}

func (r *request) Again() bool {
	a := r.agent
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return false
	}
	r.asks = true
	if !slices.Contains(a.requests, r) {
		a.requests = append(a.requests, r)
	}
	a.mu.Unlock()
	return <-r.again
}

func (r *request) End() {
	a := r.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = slices.DeleteFunc(a.requests, func(x *request) bool { return x == r })
}

// firstRequest returns the first that a thread waits for; nil for none.
func (a *Agent) firstRequest() *request {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests {
		if r.asks {
			return r
		}
	}
	return nil
}

// isTrying reports whether a thread has an answer, and has neither ended its wait nor asked again.
func (a *Agent) isTrying() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.requests, func(r *request) bool { return !r.asks })
}

// refuseAll refuses all that wait, and reports whether any did.
func (a *Agent) refuseAll() (any bool) {
	for r := a.firstRequest(); r != nil; r = a.firstRequest() {
		a.answer(r, false)
		any = true
	}
	return any
}

// answer ends a thread's wait in [request.Again].
func (a *Agent) answer(r *request, again bool) {
	a.blocked = time.Time{}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.asks = false
	r.again <- again
}

// serveRequest has the first thread that waits try again where the plan serves it. Its turn begins: who
// has left for it comes back at once, and would end one that is over.
func (a *Agent) serveRequest(p ledger.Plan) {
	if !slices.Contains(p.Serve, a.Seat.Slot()) {
		a.judge(p)
		return
	}
	a.served = true
	a.become(ledger.In)
	a.answer(a.queued, true)
}

// judge refuses the first thread that waits where nobody can make room, after a while. Where none does,
// it is the memory itself that cannot return, which is said.
func (a *Agent) judge(p ledger.Plan) {
	slot := a.Seat.Slot()
	i := slices.IndexFunc(p.Blocked, func(b ledger.Blocked) bool { return b.Slot == slot && b.Never })
	if i < 0 {
		a.blocked = time.Time{}
		return
	}
	if a.blocked.IsZero() {
		a.blocked = time.Now()
	}
	took := time.Since(a.blocked)
	if took <= neverFor {
		return
	}
	words, passing := whyBlocked(&p.Blocked[i])
	r := a.firstRequest()
	switch {
	case r == nil:
		a.say("its memory cannot come back: " + words)
	case !passing || took > passesIn:
		a.answer(r, false)
		a.say(fmt.Sprintf("a request of %s is refused: %s", size.Format(r.bytes), words))
	case !r.said:
		r.said = true
		a.say(fmt.Sprintf("a request of %s waits: %s", size.Format(r.bytes), words))
	}
}

// whyBlocked says why nobody makes room, and whether that may pass.
func whyBlocked(b *ledger.Blocked) (words string, passing bool) {
	if i := slices.IndexFunc(b.Holders, func(h ledger.Holder) bool { return passes(h.Reason) }); i >= 0 {
		h := b.Holders[i]
		return fmt.Sprintf("another process holds %s, and %v", size.Format(h.Bytes), h.Reason), true
	}
	return "others cannot make room for it", false
}
