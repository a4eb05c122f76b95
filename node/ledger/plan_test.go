package ledger

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const second = Moment(time.Second)

// now is the time of the tests: 1,000 s.
const now = 1000 * second

// process reads a process as testdata/plans.txt has it.
func process(slot int, text string) Entry {
	e := Entry{Slot: slot}
	e.Seen = now
	words := strings.Fields(text)
	for i := 0; i < len(words); i++ {
		number := func() uint64 {
			var n uint64
			i++
			if _, err := fmt.Sscan(words[i], &n); err != nil {
				panic(text)
			}
			return n
		}
		switch words[i] {
		case "holds":
			e.Held = number()
			e.Movable = e.Held
		case "stays":
			e.Outside = number()
		case "idle":
			e.LendAfter, e.Worked = 30*time.Second, now-Moment(number())*second
		case "lends":
			e.LendAfter, e.Worked = 30*time.Second, now
		case "turn":
			e.Quantum, e.Since = 10*time.Second, now-Moment(number())*second
		case "turns":
			e.Quantum, e.Since = 10*time.Second, now-second
		case "since":
			e.Since = now - Moment(number())*second
		case "ticket":
			e.Ticket = number()
		case "wants":
			e.Wants = number()
		case "seen":
			e.Seen = now - Moment(number())*second
		case "moves":
			e.Movable = number()
		case "paused":
			e.Asked = Pause
		case "resumed":
			e.Asked = Resume
		case "nccl":
			e.Reason = Communicating
		case "leaving":
			e.State = Leaving
		case "away":
			e.State = Away
		case "waiting":
			e.State = Waiting
		case "returning":
			e.State = Returning
		default:
			panic(text)
		}
	}
	return e
}

func TestPlan(t *testing.T) {
	file, err := os.ReadFile("testdata/plans.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split("\n"+string(file), "\n# ")[1:]
	for _, text := range cases {
		name, text, _ := strings.Cut(text, "\n")
		processes, want, ok := strings.Cut(text, "----\n")
		var all []Entry
		for line := range strings.Lines(processes) {
			all = append(all, process(len(all), line))
		}
		if got := planText(PlanTurns(now, 100, all)); !ok || strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("%s:\n%s----\n%swant\n%s", name, processes, got, want)
		}
	}
	if len(cases) < 50 {
		t.Errorf("%d cases", len(cases))
	}
}

// TestFewOfThoseAheadAreLookedAt: the time that a plan takes is bounded by that.
func TestFewOfThoseAheadAreLookedAt(t *testing.T) {
	for ahead, want := range map[int][]int{7: {8}, 8: nil} {
		all := []Entry{process(0, "holds 80 lends")}
		for i := range ahead {
			all = append(all, process(1+i, fmt.Sprintf("waiting ticket %d wants 80", 1+i)))
		}
		all = append(all, process(1+ahead, "waiting ticket 50 wants 5"))
		if plan := PlanTurns(now, 100, all); !slices.Equal(plan.Serve, want) || len(plan.Blocked) != ahead {
			t.Errorf("behind %d: serve %v, want %v; blocked %s", ahead, plan.Serve, want, planText(plan))
		}
	}
}

// planText returns a plan, a line for each thing that happens.
func planText(plan Plan) string {
	var b strings.Builder
	slots := func(what string, slots []int) {
		if len(slots) > 0 {
			fmt.Fprintf(&b, "%s %v\n", what, strings.Trim(fmt.Sprint(slots), "[]"))
		}
	}
	slots("leave", plan.Leave)
	slots("serve", plan.Serve)
	for _, w := range plan.Blocked {
		never := ""
		if w.Never {
			never = ", never"
		}
		fmt.Fprintf(&b, "blocked %d: wants %d, left %d%s\n", w.Slot, w.Wants, w.Left, never)
		for _, h := range w.Holders {
			fmt.Fprintf(&b, "  %d holds %d: %v\n", h.Slot, h.Bytes, h.Reason)
		}
	}
	return b.String()
}

func TestTurnTimeOfWhatASwapCosts(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		0: 2 * time.Second, 200 * time.Millisecond: 2 * time.Second,
		time.Second: 10 * time.Second, 7 * time.Second: time.Minute,
	} {
		if got := (&Turn{Quantum: AutoQuantum, Cost: cost}).TurnTime(); got != want {
			t.Errorf("a cost of %v: %v, want %v", cost, got, want)
		}
		if got := (&Turn{Quantum: 3, Cost: cost}).TurnTime(); got != 3 {
			t.Errorf("a quantum of 3 ns: %v", got)
		}
	}
}

// model is what a test says of a process by itself: a smaller rank leaves earlier, and the older
// one of a rank.
type model struct{ rank, age int }

// randomProcess returns one that waits for nobody but those with a ticket below 100, or is none
// to be asked: rank 9.
func randomProcess(r *rand.Rand, slot int) (Entry, model) {
	age, bytes := r.IntN(40), r.IntN(30)
	kinds := []struct {
		rank int
		text string
	}{
		{0, "leaving"}, {1, "lends paused"},
		{2, fmt.Sprintf("idle %d", 30+age)},
		{3, fmt.Sprintf("turns wants 5 ticket %d", 101+age)},
		{4, fmt.Sprintf("turn %d", 10+age)},
		{9, "turns"}, {9, "lends"}, {9, "nccl"}, {9, "idle 99 seen 6"}, {9, "returning turn 99"}, {9, ""},
	}
	k := kinds[r.IntN(len(kinds))]
	if k.text == "leaving" {
		k.text = "lends leaving"
	}
	return process(slot, fmt.Sprintf("holds %d stays %d %s", bytes, r.IntN(2), k.text)), model{k.rank, age}
}

// chooseSlowly returns the least choice of all that is enough: of the choices as numbers, in which
// the process that leaves last is the first digit.
func chooseSlowly(all []Entry, models []model, need uint64) (leave []int) {
	var order []int
	for i, e := range all {
		switch m := models[i]; {
		case m.rank < 2 && e.Movable > 0:
			leave = append(leave, e.Slot)
			need = less(need, e.Movable)
		case m.rank < 9 && e.Movable > 0:
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return (models[a].rank-models[b].rank)*1e6 + (models[b].age-models[a].age)*1e3 + a - b
	})
	for mask := range 1 << len(order) {
		var slots []int
		var free uint64
		for k, i := range order {
			if mask>>k&1 == 1 {
				slots, free = append(slots, i), free+all[i].Movable
			}
		}
		if free >= need {
			return append(leave, slots...)
		}
	}
	return nil
}

// TestChoiceIsThatOfASlowModel: whatever the processes are, and in whatever order they are read,
// the choice is the least of all that are enough.
func TestChoiceIsThatOfASlowModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	served := 0
	for range 20000 {
		n := r.IntN(9)
		var all []Entry
		var models []model
		var sum uint64
		for i := range n {
			e, m := randomProcess(r, i)
			all, models, sum = append(all, e), append(models, m), sum+e.Sum()
		}
		limit := sum + r.Uint64N(40)
		waiter := process(n, fmt.Sprintf("waiting ticket 100 wants %d", limit-sum+1+r.Uint64N(60)))
		want := chooseSlowly(all, models, waiter.Wants-(limit-sum))
		isServed := want != nil
		for i, e := range all {
			if !isServed && models[i].rank == 1 && e.Movable > 0 {
				want = append(want, e.Slot) // the paused leave anyway
			}
		}
		all = append(all, waiter)
		for range 2 {
			plan := PlanTurns(now, limit, all)
			got := slices.Sorted(slices.Values(plan.Leave))
			isBlocked := slices.ContainsFunc(plan.Blocked, func(b Blocked) bool { return b.Slot == n })
			if isBlocked == isServed || isServed && !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Fatalf("limit %d: %swant %v (%t), of\n%+v", limit, planText(plan), want, isServed, all)
			}
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		if isServed && len(want) > 0 {
			served++
		}
	}
	if served < 5000 {
		t.Errorf("of 20000 cases only %d are served by others", served)
	}
}

// program is one of the simulation, see [simulation.step].
type program struct {
	Entry
	size    uint64 // of its blocks
	grows   uint64 // it wants so much more before its next work
	work    Moment // that it has to do before it idles, in ns; 0: none
	idle    Moment // after its work
	until   Moment // when its way out or in ends
	queued  Moment // when it took its ticket
	inSince Moment // when it came in
}

// simulation is several programs on one GPU that behave as the pool library has them behave.
type simulation struct {
	*testing.T
	r        *rand.Rand
	now      Moment
	limit    uint64
	programs []*program
	tickets  uint64
	longest  Moment // that one waited
	swaps    int
}

const (
	tick = second / 5
	rate = 25 // bytes a second
)

// upTo is a time at random.
func (s *simulation) upTo(d Moment) Moment { return Moment(s.r.Int64N(int64(d))) }

func (s *simulation) swapTime(p *program) Moment { return Moment(p.size) * second / rate }

func (s *simulation) plan() Plan {
	var all []Entry
	var sum uint64
	for _, p := range s.programs {
		p.Seen = s.now
		all, sum = append(all, p.Entry), sum+p.Sum()
	}
	if sum > s.limit {
		s.Fatalf("%d bytes are held of %d", sum, s.limit)
	}
	return PlanTurns(s.now, s.limit, all)
}

// enter changes the state of a program.
func (s *simulation) enter(p *program, to State, takes Moment) {
	p.State, p.Since, p.until = to, s.now, s.now+takes
}

// wait makes a program wait for bytes.
func (s *simulation) wait(p *program, bytes uint64) {
	if p.Wants = bytes; p.Ticket == 0 {
		s.tickets++
		p.Ticket, p.queued = s.tickets, s.now
	}
}

// serve gives a program what it waits for, if it is its turn.
func (s *simulation) serve(p *program) {
	if !slices.Contains(s.plan().Serve, p.Slot) {
		s.longest = max(s.longest, s.now-p.queued)
		return
	}
	p.Held += p.Wants
	p.Ticket, p.Wants, p.Since = 0, 0, s.now
	p.size, p.grows = p.Held, 0
	if p.State == Waiting {
		s.enter(p, Returning, s.swapTime(p))
	} else {
		p.Movable, p.inSince = p.Held, s.now
	}
}

// mayLeave says by other words than PlanTurns whether it is right to ask a program.
func (s *simulation) mayLeave(p *program) bool {
	if p.Ticket != 0 {
		return slices.ContainsFunc(s.programs, func(o *program) bool { return o.Ticket != 0 && o.Ticket < p.Ticket })
	}
	isIdle := p.LendAfter > 0 && s.now.Sub(max(p.Worked, p.inSince)) >= p.LendAfter
	quantum := p.Quantum
	if quantum == AutoQuantum {
		quantum = min(max(10*p.Cost, 2*time.Second), time.Minute)
	}
	return isIdle || quantum > 0 && s.now.Sub(p.inSince) >= quantum
}

// step lets a program go on for a tick.
func (s *simulation) step(p *program) {
	hasWork := p.work > 0
	switch p.State {
	case In:
		switch {
		case p.Ticket != 0:
			s.serve(p)
		case hasWork && p.grows > 0:
			s.wait(p, p.grows)
		case hasWork:
			p.Worked = s.now
			if p.work -= tick; p.work <= 0 {
				p.work, p.idle = 0, s.upTo(20*second)
			}
		}
		if slices.Contains(s.plan().Leave, p.Slot) {
			if !s.mayLeave(p) {
				s.Fatalf("at %d s one that works is asked: %+v", s.now/second, p)
			}
			s.swaps++
			s.enter(p, Leaving, s.swapTime(p))
		}
	case Leaving:
		if s.now >= p.until {
			p.Held, p.Movable, p.OnHost = 0, 0, p.size
			s.enter(p, Away, 0)
		}
	case Away:
		if hasWork || p.Ticket != 0 {
			s.wait(p, p.size+p.grows)
			s.enter(p, Waiting, 0)
		}
	case Waiting:
		s.serve(p)
	case Returning:
		if s.now >= p.until {
			p.OnHost, p.Movable, p.inSince = 0, p.Held, s.now
			p.Cost = time.Duration(2 * s.swapTime(p))
			s.enter(p, In, 0)
		}
	}
	if p.idle > 0 && p.work == 0 {
		if p.idle -= tick; p.idle <= 0 {
			p.idle, p.work = 0, 1+s.upTo(40*second)
		}
	}
}

// TestEveryoneIsServed simulates programs of random sizes with random work: nobody waits for
// longer than the others' turns, nobody is asked who has neither idled nor had its turn, and
// nobody leaves while all fit.
func TestEveryoneIsServed(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	var swaps int
	for seed := range uint64(rounds) {
		s := &simulation{T: t, r: rand.New(rand.NewPCG(seed, 3)), now: now, limit: 100}
		n := 2 + s.r.IntN(5)
		var all uint64
		var turn, most time.Duration
		for i := range n {
			p := &program{Entry: process(i, "away stays 1"), size: 1 + s.r.Uint64N(80), work: 1}
			p.grows = s.r.Uint64N(min(12, 93-p.size))
			switch s.r.IntN(3) {
			case 0:
				p.Quantum, turn = time.Duration(1+s.upTo(20*second)), 20*time.Second
			case 1:
				p.Quantum, turn = AutoQuantum, time.Minute
			default: // its work lasts for 40 s, and after at most 20 s it has some again
				p.LendAfter = time.Duration(1 + s.upTo(5*second))
				p.Quantum, turn = time.Minute, time.Minute
			}
			most = max(most, turn+time.Duration(3*s.swapTime(p)))
			all += p.size + p.grows + 1
			s.programs = append(s.programs, p)
		}
		for range 10 * 60 * second / tick {
			s.now += tick
			for _, i := range s.r.Perm(n) {
				s.step(s.programs[i])
			}
		}
		if bound := Moment(n) * Moment(most); s.longest > bound {
			t.Errorf("seed %d: of %d programs one waited for %d s of at most %d", seed, n, s.longest/second, bound/second)
		}
		if all <= s.limit && s.swaps > 0 {
			t.Errorf("seed %d: %d swaps, and all fit", seed, s.swaps)
		}
		swaps += s.swaps
	}
	if swaps < 20*rounds {
		t.Errorf("%d swaps in %d rounds: nothing is tested", swaps, rounds)
	}
	t.Logf("%d swaps", swaps)
}
