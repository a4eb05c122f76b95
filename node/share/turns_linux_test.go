package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/internal/ofd"
	"gpumem/node/internal/account"
	"gpumem/node/internal/registry"
	"gpumem/node/ledger"
)

// turnsPath is the name of this user's ledger by turns.
func turnsPath(r *Registry, gpu string) string { return r.r.GPU(gpu).TurnsPath(os.Geteuid()) }

// limitNow returns the limit in this user's ledger by turns.
func limitNow(t reporter, r *Registry, gpu string) uint64 {
	t.Helper()
	l, err := ledger.Open(turnsPath(r, gpu))
	must(t, err)
	defer l.Close()
	return l.Limit()
}

// program is a process in the ledger of a lease, in the lease's part of it.
type program struct {
	*Lease
	byTurns bool
	member  *ledger.Member
}

// begin starts the program of a lease by turns.
func begin(t reporter, l *Lease) program {
	t.Helper()
	p := program{Lease: l, byTurns: true}
	book, err := ledger.Open(l.Ledger())
	must(t, err)
	defer book.Close()
	p.member, err = book.Join(ledger.Part{ID: l.Part(), Limit: l.Bytes()})
	must(t, err)
	return p
}

// TestModelOfTurns: leases by turns and others are taken and given back, while the programs of the
// former hold what they get. The model is a list: those by turns hold at most the limit that they had
// with the last of them, and no more than their leases come to. What is granted is what the rest of
// the GPU allows, and never can more be held than can be shared.
func TestModelOfTurns(t *testing.T) {
	dir := t.TempDir()
	defer func(old time.Duration) { account.Recently = old }(account.Recently)
	account.Recently = 0
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		r, err := Open(filepath.Join(dir, strconv.Itoa(round)))
		must(t, err)
		w := &world{total: rapid.Uint64Range(20, 200).Draw(t, "total"), held: map[int]uint64{}}
		var list []program
		limit := uint64(0) // of the last ledger
		defer func() {
			for _, p := range list {
				p.Close()
			}
		}()
		sum := func(byTurns bool) (n uint64) {
			for _, p := range list {
				if p.byTurns == byTurns {
					n += p.Bytes()
				}
			}
			return n
		}
		request := func(t *rapid.T) Request {
			return Request{Device: "gpu", Meter: w, Bytes: rapid.Uint64Range(1, w.total+5).Draw(t, "bytes"), Copies: rapid.IntRange(1, 3).Draw(t, "copies")}
		}
		acquire := func(t *rapid.T, q Request, fits bool) []*Lease {
			got, err := r.Acquire(context.Background(), q)
			if _, no := err.(*InsufficientMemoryError); err != nil && !no {
				t.Fatal(err)
			}
			if fits != (err == nil) {
				t.Fatalf("%d leases of %d, by turns %t: %v; %d by turns with a limit of %d, %d others, of %d",
					q.Copies, q.Bytes, q.Turns, err, sum(true), limit, sum(false), w.total)
			}
			return got
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				q := request(t)
				want := q.Bytes * uint64(q.Copies)
				for _, l := range acquire(t, q, min(limit, sum(true))+sum(false)+want <= w.total) {
					list = append(list, program{Lease: l})
				}
			},
			"join": func(t *rapid.T) {
				q := request(t)
				q.Turns = true
				got := acquire(t, q, sum(false)+q.Bytes <= w.total)
				for _, l := range got {
					list = append(list, begin(t, l))
				}
				if len(got) > 0 {
					limit = min(sum(true), w.total-sum(false))
				}
			},
			"give": func(t *rapid.T) {
				if len(list) == 0 {
					t.Skip("no lease is there to be given back")
				}
				i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
				p := list[i]
				list = slices.Delete(list, i, i+1)
				if p.byTurns {
					must(t, p.member.Leave())
				}
				must(t, p.Close())
			},
			"hold": func(t *rapid.T) {
				for _, p := range list {
					if n := rapid.Uint64Range(0, w.total).Draw(t, "held"); p.byTurns {
						must(t, p.member.Give(ledger.Held, p.member.Own().Held))
						for p.member.Take(ledger.Held, n) != nil {
							n /= 2
						}
					}
				}
			},
			"": func(t *rapid.T) {
				var held uint64
				for _, p := range list {
					if p.byTurns {
						held += p.member.Own().Held
					}
				}
				may := min(limit, sum(true))
				if held > may || may+sum(false) > w.total {
					t.Fatalf("%d held of %d by turns, %d leased to others, of %d", held, may, sum(false), w.total)
				}
				if sum(true) > 0 && limitNow(t, r, "gpu") != limit {
					t.Fatalf("limit %d, want %d", limitNow(t, r, "gpu"), limit)
				}
			},
		})
	})
}

// TestTurnsOfTwoTerminals: the second of two programs of 16 of 24 GiB has its lease beside the first,
// and both count in one ledger. Others are refused with the name of what the two share. The ledger
// goes when the last of them has gone.
func TestTurnsOfTwoTerminals(t *testing.T) {
	r, gpu := newGPU(t)
	one, err := takeTurns(r, gpu, 16, 1)
	must(t, err)
	if limit := limitNow(t, r, gpu); limit != 16*gib {
		t.Errorf("limit %d", limit)
	}
	two, err := takeTurns(r, gpu, 16, 1)
	must(t, err)
	if limit := limitNow(t, r, gpu); limit != 24*gib || one[0].Ledger() != two[0].Ledger() || one[0].Part() == two[0].Part() {
		t.Errorf("limit %d, ledgers %s and %s", limit, one[0].Ledger(), two[0].Ledger())
	}
	for _, e := range listed(t, r) {
		if want := map[string]uint64{one[0].ID(): one[0].Part(), two[0].ID(): two[0].Part()}[e.ID]; e.Ledger != one[0].Ledger() || e.Part != want || want == 0 {
			t.Errorf("listed: %+v, want part %x", e, want)
		}
	}
	_, err = take(r, gpu, 1, 1)
	if err == nil || !strings.Contains(err.Error(), "available 0 B (of") || !strings.Contains(err.Error(), "; 2 of these leases share 24 GiB by turns; ") {
		t.Errorf("another: %v", err)
	}
	must(t, two[0].Close())
	other, err := take(r, gpu, 8, 1)
	must(t, err)
	_, err = takeTurns(r, gpu, 17, 1)
	if err == nil || !strings.Contains(err.Error(), "requested 17 GiB, available 16 GiB by turns (of 24 GiB shareable") {
		t.Errorf("too much by turns: %v", err)
	}
	for _, l := range []*Lease{one[0], other[0]} {
		must(t, l.Close())
	}
	all, err := r.Acquire(background, Request{Device: gpu, Meter: simulated(gpu)})
	must(t, err)
	must(t, all[0].Close())
	if all := files(t, r); len(all) != 0 {
		t.Errorf("left: %q", all)
	}
}

// TestLedgerByTurnsIsReplacedWhereNobodyIsInIt: whatever has its name. With one who is, a damaged one
// is an error, and of one that was removed the leases count in full.
func TestLedgerByTurnsIsReplacedWhereNobodyIsInIt(t *testing.T) {
	r, gpu := newGPU(t)
	path := turnsPath(r, gpu)
	for name, make := range map[string]func() error{
		"nothing":              func() error { return nil },
		"no ledger":            func() error { return os.WriteFile(path, []byte("x"), 0o600) },
		"one of another GPU":   func() error { return ledger.Create(path, ledger.Header{Limit: 5, Total: 7, Turns: true}) },
		"a link to none":       func() error { return os.Symlink("/nothing", path) },
		"one that others read": func() error { return errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(path, 0o666)) },
	} {
		_ = os.Remove(path)
		must(t, make())
		l, err := takeTurns(r, gpu, 16, 1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if limit := limitNow(t, r, gpu); limit != 16*gib {
			t.Errorf("%s: limit %d", name, limit)
		}
		must(t, l[0].Close())
	}

	one, err := takeTurns(r, gpu, 12, 1)
	must(t, err)
	whole, err := os.ReadFile(path)
	must(t, err)
	other := slices.Clone(whole)
	binary.LittleEndian.PutUint64(other[16:], 30*gib) // the total
	must(t, os.WriteFile(path, other, 0o600))
	if _, err := takeTurns(r, gpu, 12, 1); err == nil || !strings.Contains(err.Error(), "it is of another GPU") {
		t.Errorf("one of another GPU: %v", err)
	}
	must(t, os.Truncate(path, 100))
	if _, err := takeTurns(r, gpu, 12, 1); !errors.Is(err, ledger.ErrDamaged) || !strings.Contains(err.Error(), "by turns with other leases of this user (1)") {
		t.Errorf("a damaged one: %v", err)
	}
	program, err := os.Open(path) // as one that counts there has it: so no other file has its inode
	must(t, err)
	defer program.Close()
	must(t, os.Remove(path))
	if _, err := takeTurns(r, gpu, 16, 1); err == nil {
		t.Error("16 GiB beside 12 that count elsewhere")
	}
	two, err := takeTurns(r, gpu, 12, 1)
	must(t, err)
	if limit := limitNow(t, r, gpu); limit != 12*gib {
		t.Errorf("limit %d beside a lease that counts elsewhere", limit)
	}
	if _, err := take(r, gpu, 1, 1); err == nil {
		t.Error("1 GiB beside 12 in one ledger and 12 in another")
	}
	must(t, errors.Join(one[0].Close(), two[0].Close()))
}

// TestRequestByTurnsWaitsOnlyForOthersToEnd: what may fit once leases have ended that are about to is
// not refused. Those that it shares with take nothing from it.
func TestRequestByTurnsWaitsOnlyForOthersToEnd(t *testing.T) {
	r, gpu := newGPU(t)
	for _, tc := range []struct {
		group bool
		turns bool
		want  bool
	}{{true, true, true}, {true, false, false}, {false, true, false}} {
		b := &bid{gpu: r.r.GPU(gpu), q: Request{Turns: true, Copies: 1}, each: 16 * gib}
		one := account.Lease{Bytes: 16 * gib}
		if tc.group {
			one.Group = b.group()
		}
		b.q.Turns = tc.turns
		found := reading{Figures: account.Figures{Most: 24 * gib}, leases: make([]registry.Claim, 1), counts: []account.Lease{one}}
		if got := b.wouldFitInTheEnd(found); got != tc.want {
			t.Errorf("a lease by turns %t, a request by turns %t: would fit %t", tc.group, tc.turns, got)
		}
	}
}

// TestLedgerByTurnsOfAnotherUserIsRefused names it, and the way out.
func TestLedgerByTurnsOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: the ledger is to be another user's, and only root gives a file away")
	}
	r, gpu := newGPU(t)
	path := turnsPath(r, gpu)
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Chown(path, 7, 7))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	must(t, ofd.Lock{FD: f.Fd()}.Try(ofd.Write)) // or root removes it
	_, err = takeTurns(r, gpu, 4, 1)
	if want := path + ": it belongs to user 7"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), registry.EnvDir) {
		t.Errorf("%v; want %q", err, want)
	}
}

// TestTurnsOfAnotherUserCountInFull: what its ledger says cannot be read, or is not believed.
func TestTurnsOfAnotherUserCountInFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: two users take leases here, and only root can be both")
	}
	r, gpu := newGPU(t)
	must(t, os.Chmod(filepath.Dir(filepath.Dir(r.r.Dir())), 0o755))
	must(t, os.Chmod(filepath.Dir(r.r.Dir()), 0o755))
	must(t, os.Chmod(gpu, 0o666))
	asOther := func() *child {
		c := command("turns", r.r.Dir(), gpu, 8, 2)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 7, Gid: 7}}
		return c.begin(t)
	}
	one, two := asOther(), asOther()
	one.said(t, "have")
	two.said(t, "have")
	if limit := ledger.LimitOf(r.r.GPU(gpu).TurnsPath(7), 7); limit != 24*gib {
		t.Errorf("limit %d of the other user's ledger", limit)
	}
	one.end(t)
	if _, err := take(r, gpu, 9, 1); err == nil {
		t.Error("9 GiB beside 16")
	}
	mine, err := takeTurns(r, gpu, 8, 3)
	must(t, err)
	if limit := limitNow(t, r, gpu); limit != 8*gib {
		t.Errorf("limit %d beside another user's 16 GiB", limit)
	}
	for _, l := range mine {
		must(t, l.Close())
	}
	two.end(t)
}

// childTurns DIR GPU GIB COPIES: takes leases by turns, says "have", and holds them until its input
// ends.
func childTurns(args []string) error {
	r, err := Open(args[0])
	if err != nil {
		return err
	}
	n, _ := strconv.ParseUint(args[2], 10, 64)
	copies, _ := strconv.Atoi(args[3])
	leases, err := takeTurns(r, args[1], n, copies)
	if err != nil {
		return err
	}
	fmt.Println("have")
	os.Stdin.Read(make([]byte, 1))
	for _, l := range leases {
		err = errors.Join(err, l.Close())
	}
	return err
}

// TestCrashWhileJoining kills a child at every step by which it joins a lease by turns. That one
// goes on in the same ledger with all of its size, others have what it leaves, and the next one joins.
func TestCrashWhileJoining(t *testing.T) {
	t.Parallel()
	number := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == "join others by turns" })
	for step, ended := 0, false; !ended; step++ {
		r, gpu := newGPU(t)
		mine, err := takeTurns(r, gpu, 16, 1)
		must(t, err)
		p := begin(t, mine[0])
		must(t, p.member.Take(ledger.Held, 15*gib))
		c := start(t, "step", r.r.Dir(), gpu, number, step)
		said := c.line()
		if ended = said == "done"; said == "" || strings.HasPrefix(said, "error") {
			t.Fatalf("step %d: the child says %q; %s", step, said, &c.errs)
		}
		c.kill(t)
		if err := errors.Join(p.member.Take(ledger.Held, gib), p.member.Give(ledger.Held, gib)); err != nil {
			t.Fatalf("step %d, %s: its own: %v", step, said, err)
		}
		if _, err := take(r, gpu, 9, 1); err == nil {
			t.Fatalf("step %d, %s: 9 GiB beside 16", step, said)
		}
		other, err := take(r, gpu, 8, 1)
		if err != nil {
			t.Fatalf("step %d, %s: 8 GiB beside 16: %v", step, said, err)
		}
		next, err := takeTurns(r, gpu, 16, 1)
		if err != nil {
			t.Fatalf("step %d, %s: the next: %v", step, said, err)
		}
		if limit := limitNow(t, r, gpu); limit != 16*gib || next[0].Ledger() != mine[0].Ledger() {
			t.Fatalf("step %d, %s: limit %d", step, said, limit)
		}
		q := begin(t, next[0])
		if q.member.Take(ledger.Held, gib) != nil || q.member.Take(ledger.Held, 1) == nil {
			t.Fatalf("step %d, %s: they do not count together", step, said)
		}
		must(t, errors.Join(p.member.Leave(), q.member.Leave()))
		starting.RLock()
		for _, l := range append(append(mine, other...), next...) {
			err = errors.Join(err, l.Close())
		}
		starting.RUnlock()
		must(t, err)
	}
}
