package share

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/node/internal/account"
)

// world is a GPU with programs, and leases that some have.
type world struct {
	total, hidden uint64
	held          map[int]uint64 // by pid
}

func (w *world) Status() (device.Status, error) {
	st := device.Status{Info: device.Info{Total: w.total}, Used: w.hidden}
	for pid, n := range w.held {
		st.Processes = append(st.Processes, process(pid, n))
		st.Used += n
	}
	st.Free = w.total - st.Used
	return st, nil
}

// TestModel: leases are taken and given back while programs come, grow and go.
// A model that lease.KeepEvery them in a list says what must be given: exactly what fits,
// so never more than can be shared.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	// Nothing moves but between the calls.
	defer func(old time.Duration) { account.Recently = old }(account.Recently)
	account.Recently = 0
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		// A registry remembers each GPU by its lock, and List looks at all of them.
		r, err := Open(filepath.Join(dir, strconv.Itoa(round)))
		must(t, err)
		w := &world{total: rapid.Uint64Range(1, 1000).Draw(t, "total"), held: map[int]uint64{}}
		q := Request{Device: "gpu", Meter: w, Reserve: rapid.Uint64Range(0, 100).Draw(t, "reserve")}
		var leases []*Lease
		defer func() {
			for _, l := range leases {
				l.Close()
			}
		}()
		room := func() uint64 { // for foreign use to grow
			st, _ := w.Status()
			return st.Free
		}
		sum := func() (n uint64) {
			for _, l := range leases {
				n += l.Bytes()
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				q := q
				q.Bytes = rapid.Uint64Range(1, 400).Draw(t, "bytes")
				q.Copies = rapid.IntRange(1, 3).Draw(t, "copies")
				st, _ := w.Status()
				// The leases are this process's, whose pid is no program's here, so
				// all that is used is foreign.
				shareable := int(w.total) - int(st.Used) - int(q.Reserve)
				want := int(q.Bytes) * q.Copies
				got, err := r.Acquire(context.Background(), q)
				if _, no := err.(*InsufficientMemoryError); err != nil && !no {
					t.Fatal(err)
				}
				if fits := int(sum())+want <= shareable; fits != (err == nil) || err == nil && len(got) != q.Copies {
					t.Fatalf("%d leases of %d, %d leased, %d can be shared: %v", q.Copies, q.Bytes, sum(), shareable, err)
				}
				leases = append(leases, got...)
			},
			"give": func(t *rapid.T) {
				if len(leases) == 0 {
					t.Skip("no lease is there to be given back")
				}
				i := rapid.IntRange(0, len(leases)-1).Draw(t, "which")
				if err := leases[i].Close(); err != nil {
					t.Fatal(err)
				}
				leases = append(leases[:i:i], leases[i+1:]...)
			},
			"others": func(t *rapid.T) {
				pid := 1<<30 + rapid.IntRange(0, 3).Draw(t, "pid")
				delete(w.held, pid)
				w.held[pid] = rapid.Uint64Range(0, room()).Draw(t, "held")
			},
			"hidden": func(t *rapid.T) {
				w.hidden = 0
				w.hidden = rapid.Uint64Range(0, room()).Draw(t, "hidden")
			},
			"": func(t *rapid.T) {
				all, err := r.List()
				if err != nil || len(all) != len(leases) {
					t.Fatalf("%d listed of %d, %v", len(all), len(leases), err)
				}
			},
		})
	})
}
