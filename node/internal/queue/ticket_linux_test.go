package queue

import (
	"path/filepath"
	"testing"

	"gpumem/node/internal/registry"
)

// TestWaitsForIsCheckedOnTheOtherGPU: a waiter lets others pass only while a ticket that
// it names stands, on a GPU that they do not want.
func TestWaitsForIsCheckedOnTheOtherGPU(t *testing.T) {
	r, err := registry.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.GPU("B").MakeTicket(registry.Record{Kind: registry.TicketKind, ID: registry.TicketID(1), Device: "B", PID: 1, Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.CloseTicket(f)
	first := registry.KeyOf("B") + "." + registry.TicketID(1)
	for _, tc := range []struct {
		name     string
		waitsFor []string
		wants    []string
		want     bool
	}{
		{"names none", nil, []string{"A"}, false},
		{"a ticket that stands", []string{first}, []string{"A"}, true},
		{"a ticket that stands, after one that is gone", []string{registry.KeyOf("C") + "." + registry.TicketID(1), first}, []string{"A"}, true},
		{"on a GPU that the other wants, too", []string{first}, []string{"A", "B"}, false},
		{"a ticket that is gone", []string{registry.KeyOf("B") + "." + registry.TicketID(2)}, []string{"A"}, false},
		{"no number", []string{registry.KeyOf("B") + ".1"}, []string{"A"}, false},
		{"a path", []string{"../" + filepath.Base(r.Dir()) + "/" + first}, []string{"A"}, false},
		{"no key", []string{registry.TicketID(1)}, []string{"A"}, false},
	} {
		var gpus []registry.GPU
		for _, device := range tc.wants {
			gpus = append(gpus, r.GPU(device))
		}
		ticket := NewLine(gpus).Tickets[0]
		if got := ticket.mayPass(registry.Record{WaitsFor: tc.waitsFor}); got != tc.want {
			t.Errorf("%s: may pass: %t, want %t", tc.name, got, tc.want)
		}
	}
}
