package ledger

import (
	"testing"
)

// BenchmarkTakeGive is one driver allocation counted and given back, with 15 others in
// the ledger.
func BenchmarkTakeGive(b *testing.B) {
	l := openLedger(b, makeLedger(b))
	m := join(b, l)
	for range 15 {
		join(b, l)
	}
	for b.Loop() {
		must(b, m.Take(Held, 1))
		must(b, m.Give(Held, 1))
	}
}

// BenchmarkWanted is the look for announcements.
func BenchmarkWanted(b *testing.B) {
	m := join(b, openLedger(b, makeLedger(b)))
	for b.Loop() {
		m.Wanted()
	}
}

// BenchmarkLeft is what a program's question for free memory costs, with 15 others.
func BenchmarkLeft(b *testing.B) {
	l := openLedger(b, makeLedger(b))
	m := join(b, l)
	for range 15 {
		join(b, l)
	}
	for b.Loop() {
		m.Left()
	}
}

// BenchmarkTurns is what a process by turns does every few milliseconds: it reads all, and plans.
func BenchmarkTurns(b *testing.B) {
	l := byTurns(b)
	m := join(b, l)
	for range 15 {
		_, err := join(b, l).Queue(200)
		must(b, err)
	}
	for b.Loop() {
		limit, all, err := m.Turns()
		must(b, err)
		PlanTurns(Now(), limit, all)
	}
}
