// The books alone, on accounts made by hand.

package agent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gpumem/device"
	"gpumem/kube/claim"
)

// accounts opens books with accounts of theGPU: each a list of "BOX/CONTAINER", with a !
// behind those that have stopped. Their leases are of the given bytes.
func accounts(t *testing.T, bytes uint64, lists ...[]string) *books {
	t.Helper()
	r := (&cluster{}).rig(t)
	for i, list := range lists {
		a := &account{lease: lease{Lease: claim.Lease{Bytes: bytes, Shares: []string{fmt.Sprint("s", i)}}, UUID: theGPU, Total: 16 * gib}, members: map[string]member{}, boxes: map[string]podRef{}}
		a.path = filepath.Join(r.books.dir, fileName(a.Shares), "ledger")
		if err := os.MkdirAll(filepath.Dir(a.path), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, text := range list {
			var m member
			name := text
			if name[len(name)-1] == '!' {
				m.stopped, name = true, name[:len(name)-1]
			}
			m.box, m.Name = filepath.Split(name)
			m.box = filepath.Clean(m.box)
			m.Container.ID = idOf(m.Name)
			a.boxes[m.box] = podRef{namespace: "default", name: m.box}
			a.members[idOf(m.Name)] = m
		}
		r.books.accounts[a.Key()] = a
	}
	return r.books
}

// left returns the sandboxes and the containers that the books have.
func (b *books) left() (list []string) {
	b.all(func(a *account) {
		for box := range a.boxes {
			list = append(list, box)
			for _, m := range a.members {
				if m.box == box {
					list = append(list, box+"/"+m.Name)
				}
			}
		}
	})
	slices.Sort(list)
	return list
}

// TestIdle: a sandbox ends when the runtime has said of all its containers that they have
// stopped, and none of them has a process. Another sandbox of the account stays.
func TestIdle(t *testing.T) {
	for _, c := range []struct {
		name  string
		list  []string
		procs []string
		want  []string
	}{
		{"all stopped", []string{"p/a!", "p/b!"}, nil, nil},
		{"one runs on", []string{"p/a!", "p/b"}, nil, []string{"p", "p/a", "p/b"}},
		{"stopped, and a process is left", []string{"p/a!", "p/b!"}, []string{"b"}, []string{"p", "p/a", "p/b"}},
		{"the other pod's process", []string{"p/a!", "q/b!"}, []string{"b"}, []string{"q", "q/b"}},
		{"the other pod runs", []string{"p/a!", "q/b"}, nil, []string{"q", "q/b"}},
		{"no word yet, and no process yet", []string{"p/a"}, nil, []string{"p", "p/a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := accounts(t, gib, c.list)
			var list []process
			for _, p := range c.procs {
				list = append(list, process{pid: 1 << 30, container: idOf(p)})
			}
			b.idle(list)
			if got := b.left(); !slices.Equal(got, c.want) {
				t.Errorf("%v are left, want %v", got, c.want)
			}
		})
	}
}

// TestReconcile: what a runtime that was away does not know any more has ended.
func TestReconcile(t *testing.T) {
	for _, c := range []struct {
		name              string
		list              []string
		boxes, containers []string
		want              []string
	}{
		{"all there", []string{"p/a", "q/b"}, []string{"p", "q"}, []string{"a", "b"}, []string{"p", "p/a", "q", "q/b"}},
		{"a container is gone", []string{"p/a", "p/b"}, []string{"p"}, []string{"b"}, []string{"p", "p/b"}},
		{"a sandbox is gone", []string{"p/a", "q/b"}, []string{"q"}, []string{"b"}, []string{"q", "q/b"}},
		{"a sandbox whose containers are gone stays", []string{"p/a"}, []string{"p"}, nil, []string{"p"}},
		{"all gone", []string{"p/a", "q/b"}, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := accounts(t, gib, c.list)
			boxes, containers := map[string]bool{}, map[string]bool{}
			for _, n := range c.boxes {
				boxes[n] = true
			}
			for _, n := range c.containers {
				containers[idOf(n)] = true
			}
			b.reconcile(boxes, containers)
			if got := b.left(); !slices.Equal(got, c.want) {
				t.Errorf("%v are left, want %v", got, c.want)
			}
			files, err := os.ReadDir(b.dir)
			if err != nil || len(files) != min(len(c.want), 1) {
				t.Errorf("files %v, %v", files, err)
			}
		})
	}
}

// TestSweep: files that no account has go, those of accounts stay, and those of one that is
// being opened or closed.
func TestSweep(t *testing.T) {
	b := accounts(t, gib, []string{"p/a"})
	b.moving["key"] = moving{shares: []string{"moves"}}
	for _, name := range []string{fileName([]string{"moves"}), fileName([]string{"nobody"})} {
		if err := os.MkdirAll(filepath.Join(b.dir, name, "more"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{fileName([]string{"moves"}), fileName([]string{"s0"})}
	slices.Sort(want)
	if err := b.sweep(); err != nil {
		t.Fatal(err)
	}
	var got []string
	files, _ := os.ReadDir(b.dir)
	for _, f := range files {
		got = append(got, f.Name())
	}
	if !slices.Equal(got, want) || !b.swept {
		t.Errorf("%v are left, want %v; swept %v", got, want, b.swept)
	}
	b.dir = filepath.Join(b.dir, "none")
	if err := b.sweep(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the folder: %v", err)
	}
}

// TestCrowdMeter: of a reading goes what the containers of a crowd hold within their lease,
// and nothing else.
func TestCrowdMeter(t *testing.T) {
	members := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("p%d/c%d", i, i))
		}
		return list
	}
	// Processes 1<<30+i are of container i; the others are of none of the account.
	used := func(bytes ...uint64) (list fixed) {
		for i, n := range bytes {
			list = append(list, device.Process{PID: 1<<30 + i, Used: n, Known: true})
		}
		return list
	}
	const stranger = 3 * gib
	for _, c := range []struct {
		name    string
		members int
		uuid    string
		used    fixed
		want    []uint64 // by process
		free    uint64
	}{
		{"a crowd within its lease", crowd + 1, theGPU, used(gib, 2*gib), []uint64{0, 0}, 16*gib - stranger},
		{"over its lease", crowd + 1, theGPU, used(3*gib, 2*gib), []uint64{0, gib}, 16*gib - stranger - gib},
		{"over it in the first", crowd + 1, theGPU, used(5*gib, 2*gib), []uint64{gib, 2 * gib}, 16*gib - stranger - 3*gib},
		{"as many as the record names", crowd, theGPU, used(gib), []uint64{gib}, 16*gib - stranger - gib},
		{"of another GPU", crowd + 1, another, used(gib), []uint64{gib}, 16*gib - stranger - gib},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := accounts(t, 4*gib, members(c.members))
			procs := []process{{1 << 29, 1, 5, idOf("stranger")}}
			for i := range c.used {
				procs = append(procs, process{1<<30 + i, 1, 5, idOf(fmt.Sprint("c", i))})
			}
			b.proc = fakeProc(t, procs...)
			reading := append(fixed{{PID: 1 << 29, Used: stranger, Known: true}}, c.used...)
			st, err := crowdMeter{reading, b, c.uuid}.Status()
			if err != nil {
				t.Fatal(err)
			}
			got := map[int]uint64{}
			for _, p := range st.Processes {
				got[p.PID] = p.Used
			}
			want := map[int]uint64{1 << 29: stranger}
			for i, n := range c.want {
				if n > 0 {
					want[1<<30+i] = n
				}
			}
			if !maps.Equal(got, want) || st.Free != c.free || st.Used != 16*gib-c.free {
				t.Errorf("%v, %d free, %d used; want %v, %d free", got, st.Free, st.Used, want, c.free)
			}
		})
	}
	b := accounts(t, gib, members(crowd+1))
	if _, err := (crowdMeter{broken{}, b, theGPU}).Status(); err == nil {
		t.Error("a meter that does not answer")
	}
}

type broken struct{}

func (broken) Status() (device.Status, error) { return device.Status{}, errors.New("no answer") }

// TestAgain: a lease that was not to be had is taken when it is, but not for an account
// that no container has any more.
func TestAgain(t *testing.T) {
	b := accounts(t, gib, []string{"p/a"}, []string{"q/b"})
	b.all(func(a *account) {
		if a.Shares[0] == "s1" {
			clear(a.members)
		}
		a.gpu.Key = theGPU
	})
	b.again(t.Context())
	b.all(func(a *account) {
		if has := a.held != nil; has != (a.Shares[0] == "s0") {
			t.Errorf("%v: lease taken %v", a.Shares, has)
		}
	})
	if list, err := b.registry.List(theGPU); err != nil || len(list) != 1 || list[0].Bytes != gib {
		t.Errorf("the registry has %+v, %v", list, err)
	}
}
