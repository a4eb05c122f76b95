package preload

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/node/ledger"
	"gpumem/node/share"
	"gpumem/node/turns"
)

// TestPauseAndResume: a program that is paused leaves its room to another, stands still at its
// next work, and finds what it wrote when it is resumed and the other has ended.
func TestPauseAndResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lease.ledger")
	must(t, ledger.Create(path, ledger.Header{Limit: 100 << 20, Total: 1 << 30, Turns: true}))
	l, err := ledger.Open(path)
	must(t, err)
	defer l.Close()
	request := func(p *program) turns.Request {
		return turns.Request{PID: p.pid, Wait: time.Minute, Leases: func([]string) ([]share.Entry, error) {
			return []share.Entry{{Ledger: path, UID: os.Geteuid()}}, nil
		}}
	}
	const lends = "GPUMEM_LEND=3600000000000" // by itself it leaves for nobody
	first, second := startIn(t, path, "elastic", lends), startIn(t, path, "elastic", lends)
	if codes := first.do("alloc 60", "fill 0"); codes != "0 0" {
		t.Fatalf("codes %s", codes)
	}
	for range 2 { // the second time it is away already
		a, err := turns.Pause(t.Context(), request(first))
		if want := (turns.Answer{PID: first.pid, Done: true, Paused: true, State: "away", OnHost: 60 << 20}); err != nil || a != want {
			t.Fatalf("%+v, %v, want %+v", a, err, want)
		}
	}
	if codes := second.do("alloc 80", "fill 0"); codes != "0 0" {
		t.Errorf("beside a program that is paused: codes %s", codes)
	}

	read := make(chan string)
	go func() { read <- first.do("read 0") }()
	a, err := turns.Resume(t.Context(), request(first))
	if err != nil || !a.Done || a.State != "waiting" {
		t.Errorf("%+v, %v", a, err)
	}
	if line, why := a.String(), fmt.Sprintf("process %d holds 80 MiB (it is at work)", second.pid); !strings.HasSuffix(line, why) && !strings.Contains(line, why+";") {
		t.Errorf("%s; want it to say that %s", line, why)
	}
	select {
	case codes := <-read:
		t.Errorf("work is done while there is no room for it: codes %s", codes)
	default:
	}
	if codes := second.do("free 0", "reset 0"); codes != "0 0" {
		t.Errorf("codes %s", codes)
	}
	if codes := <-read; codes != "0" {
		t.Errorf("what was written is read with code %s", codes)
	}
	if a, err := turns.Resume(t.Context(), request(first)); err != nil || !a.Done || a.State != "in" || a.OnGPU != 60<<20 {
		t.Errorf("%+v, %v", a, err)
	}

	fixed := startIn(t, path, "async", lends)
	if codes := fixed.do("async 10"); codes != "0" {
		t.Fatalf("codes %s", codes)
	}
	a, err = turns.Pause(t.Context(), request(fixed))
	if want := (turns.Answer{PID: fixed.pid, Why: "its pool's policy cannot leave", State: "in", OnGPU: a.OnGPU}); err != nil || a != want {
		t.Errorf("%+v, %v, want %+v", a, err, want)
	}
}
