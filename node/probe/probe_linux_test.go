package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gpu "gpumem/device"
	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/internal/test/holder"
	"gpumem/node/internal/registry"
	"gpumem/node/internal/view"
	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/share"
)

// TestLeases: a program is under its own lease or that of one it descends
// from; leases without memory, and those who wait, are shown.
func TestLeases(t *testing.T) {
	file, pid := holder.Start(t)
	key := meterOf(t, file).listed(t).Key()
	var o Options
	o.Devices = []string{"sim@" + file}
	look := func() (*machine.Snapshot, error) {
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		return p.Snapshot()
	}
	of := func(pid int, bytes uint64) share.Entry {
		e := entryOf(t, pid)
		e.Device, e.Bytes = key, bytes
		return e
	}
	for _, tc := range []struct {
		name   string
		leases []share.Entry
		lease  uint64 // of the program
		others int    // rows
		waits  int
	}{
		{"none", nil, 0, 0, 0},
		{"its own", []share.Entry{of(pid, 5)}, 5, 0, 0},
		{"two", []share.Entry{of(pid, 5), of(pid, 6)}, 11, 0, 0},
		{"its parent's", []share.Entry{of(os.Getpid(), 7)}, 7, 0, 0},
		{"of another device", []share.Entry{{Device: "GPU-1", PID: pid, Bytes: 5}}, 0, 0, 0},
		{"one that had its number before", []share.Entry{{Device: key, PID: pid, Start: 1, Namespace: of(pid, 5).Namespace, Bytes: 5}}, 0, 1, 0},
		{"one with its number in a container", []share.Entry{{Device: key, PID: pid, Start: of(pid, 5).Start, Namespace: 1, Elsewhere: true, Bytes: 5}}, 0, 1, 0},
		{"left to it by one that has ended", []share.Entry{{Device: key, PID: 1 << 30, Ended: true, Bytes: 5, HeldBy: []registry.Holder{{PID: pid}}}}, 5, 0, 0},
		{"one that holds nothing yet", []share.Entry{of(pid, 5), {Device: key, PID: 1 << 30, Bytes: 8}, {Device: key, Bytes: 9}, {Device: key, Bytes: 9}}, 5, 3, 0},
		{"those who wait", []share.Entry{{Device: key, PID: pid, Bytes: 5, State: share.Waits}, {Device: key, PID: 9, Bytes: 5, State: share.Waits, Place: 1}}, 0, 0, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o.Leases = func([]string) ([]share.Entry, error) { return tc.leases, nil }
			state, err := look()
			if err != nil {
				t.Fatal(err)
			}
			d := state.Devices[0]
			if len(d.Programs) != 1+tc.others || len(d.Waiting) != tc.waits {
				t.Fatalf("%+v", d)
			}
			got := uint64(0)
			if l := d.Programs[0].Lease; l != nil {
				got = l.Bytes
			}
			if d.Programs[0].PID != pid || d.Programs[0].Started == nil || got != tc.lease {
				t.Errorf("%+v", d.Programs[0])
			}
		})
	}
	o.Leases = func([]string) ([]share.Entry, error) { return nil, errors.New("damaged") }
	if state, err := look(); err != nil || len(state.Notes) != 1 || len(state.Devices[0].Programs) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
}

// TestHolderOfAnotherUserIsNamed: a daemon that has given up its user holds the lease on, and
// is seen. One that only has its number is not it.
func TestHolderOfAnotherUserIsNamed(t *testing.T) {
	file, _ := holder.Start(t)
	key := meterOf(t, file).listed(t).Key()
	daemon := exec.Command("sleep", "60")
	if err := daemon.Start(); err != nil {
		t.Skip("skipped: ", err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	held := entryOf(t, daemon.Process.Pid)
	held.Device, held.UID = key, os.Geteuid()+1
	other := held
	other.UID = os.Geteuid()
	other.Start++
	for _, tc := range []struct {
		name  string
		lease share.Entry
		named bool
	}{{"of another user", held, true}, {"another with its number", other, false}} {
		leases := func([]string) ([]share.Entry, error) { return []share.Entry{tc.lease}, nil }
		p, err := New(Options{Devices: []string{"sim@" + file}, Leases: leases})
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		all := s.Devices[0].Programs
		i := slices.IndexFunc(all, func(p machine.Program) bool { return p.PID == daemon.Process.Pid })
		if i < 0 {
			t.Fatalf("%s: it is missing in %+v", tc.name, all)
		}
		user := proc.UserName(os.Geteuid())
		if named := all[i].Unknown == "" && all[i].User == user && slices.Equal(all[i].Command, daemon.Args); named != tc.named {
			t.Errorf("%s: %+v, want it named with its user %s: %v", tc.name, all[i], user, tc.named)
		}
	}
}

// TestLeasesOfContainers: those of one agent are not put together, each names its
// containers, and the agent is no program.
func TestLeasesOfContainers(t *testing.T) {
	file, pid := holder.Start(t)
	d := meterOf(t, file).listed(t)
	used := filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(used, ledger.Header{Limit: 10, Total: 10, Shared: true}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(used)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := l.Join()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	lease := func(id, ledger string, names ...string) share.Entry {
		e := entryOf(t, os.Getpid())
		e.ID, e.Device, e.Bytes, e.Ledger, e.PID = id, d.Key(), 10, ledger, 1<<30
		for _, name := range names {
			e.Containers = append(e.Containers, share.Container{ID: strings.Repeat("a", 64), Namespace: "n", Pod: name, Name: "c"})
		}
		return e
	}
	p, err := New(Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) {
		return []share.Entry{lease("1", "", "p", "q"), lease("2", used, "r")}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]machine.Program{}
	for _, p := range s.Devices[0].Programs {
		rows[view.Where(p.Lease)] = p
	}
	idle, busy := rows["n/p/c and 1 more"], rows["n/r/c"]
	if idle.PID != 0 || idle.Lease == nil || idle.Lease.Bytes != 10 || idle.Lease.ID != "1" || view.CommandLine(&idle) != "no program yet" || idle.Unknown != "" {
		t.Errorf("a lease without a program: %+v", idle)
	}
	if busy.PID != os.Getpid() || busy.Pool == nil || busy.Lease.ID != "2" || busy.Lease.Sum == nil {
		t.Errorf("a lease with this program: %+v", busy)
	}
	if other := rows[""]; other.PID != pid || len(rows) != 3 {
		t.Errorf("%d rows, without a lease %+v", len(rows), other)
	}
}

// TestTranslate: a process of a container is found by its start, among those inside.
func TestTranslate(t *testing.T) {
	self, _ := proc.ReadStat(os.Getpid())
	ms := []ledger.Figures{{PID: 1, Start: self.Start}, {PID: 7, Start: 1}}
	translate(ms, func(pid int) bool { return pid == os.Getpid() })
	if ms[0].PID != os.Getpid() || ms[1].PID != 7 {
		t.Errorf("%+v", ms)
	}
	translate(ms[:1], func(int) bool { return false })
	if ms[0].PID != os.Getpid() {
		t.Errorf("a process outside: %+v", ms[0])
	}
}

// TestNumbered: a simulated GPU's processes of containers get their numbers here, and those
// that it has put together what each of them holds.
func TestNumbered(t *testing.T) {
	inside := aliases{}
	inside.add("sim", []ledger.Figures{{PID: 1, Start: 5}, {PID: 1, Start: 5}, {PID: 1, Start: 6}, {PID: 40, Start: 9}},
		[]ledger.Figures{{PID: 100, Start: 5, Held: 3}, {PID: 101, Start: 5, Held: 4}, {PID: 102, Start: 6, Held: 9}, {PID: 40, Start: 9}})
	list := []gpu.Process{{PID: 1, Start: 5, Used: 7, Known: true, Name: "a"}, {PID: 1, Start: 6, Name: "b"}, {PID: 40, Start: 9}, {PID: 1, Start: 7}}
	for key, want := range map[string][]gpu.Process{
		"sim":   {{PID: 100, Start: 5, Used: 3, Known: true, Name: "a"}, {PID: 101, Start: 5, Used: 4, Known: true, Name: "a"}, {PID: 102, Start: 6, Name: "b"}, {PID: 40, Start: 9}, {PID: 1, Start: 7}},
		"other": list,
	} {
		if got := inside.numbered(key, list); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", key, got)
		}
	}
}

// TestUnread: a GPU that cannot be read has the leases of containers, with what their
// programs hold.
func TestUnread(t *testing.T) {
	const uuid = "GPU-6f1c2a52-1111-4222-8333-0123456789ab"
	used := filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(used, ledger.Header{Limit: 10, Total: 80, Shared: true}); err != nil {
		t.Fatal(err)
	}
	file, _ := holder.Start(t)
	lease := func(device string, containers ...share.Container) share.Entry {
		e := entryOf(t, os.Getpid())
		e.Device, e.Bytes, e.Ledger, e.Containers = device, 10, used, containers
		return e
	}
	one := share.Container{ID: strings.Repeat("a", 64), Namespace: "n", Pod: "p", Name: "c"}
	for _, c := range []struct {
		name    string
		devices []string
		leases  []share.Entry
		want    string
	}{
		{"a container's", nil, []share.Entry{lease(uuid, one), lease(uuid, one)}, uuid},
		{"a program's", nil, []share.Entry{lease(uuid)}, ""},
		{"a simulated GPU's", nil, []share.Entry{lease("sim@/none,device=0", one)}, ""},
		{"others are asked for", []string{"sim@" + file}, []share.Entry{lease(uuid, one)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(Options{Devices: c.devices, Leases: func([]string) ([]share.Entry, error) { return c.leases, nil }})
			if err != nil {
				t.Fatal(err)
			}
			s, err := p.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range s.Devices {
				if strings.HasPrefix(d.UUID, "GPU-6f1c") {
					if got = append(got, d.UUID); d.Total != 80 || d.Used != nil || d.Leased != 20 || len(d.Programs) != 2 || len(d.Notes) != 1 {
						t.Errorf("%+v", d)
					}
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("GPUs %v, want %q", got, c.want)
			}
		})
	}
}

// TestInContainer: the lease file of the container is a lease, and a damaged one a note.
func TestInContainer(t *testing.T) {
	file, _ := holder.Start(t)
	path := filepath.Join(t.TempDir(), "lease.json")
	t.Setenv(share.EnvLease, path)
	err := share.WriteContainerLease(path, share.ContainerLease{Claim: "n/claim", Pod: "p", Container: "c", GPUs: []share.ContainerGPU{
		{UUID: "GPU-of-this", Bytes: 5, Total: 10, Ledger: "/none"}}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if d := s.Devices[0]; d.Leased != 5 || len(d.Programs) != 2 || view.Where(d.Programs[1].Lease) != "n/p/c" {
		t.Errorf("%+v", d)
	}
	if err := os.WriteFile(path, []byte(`{"gpumem":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := p.Snapshot(); err != nil || len(s.Notes) != 1 || !strings.Contains(s.Notes[0], path) || s.Devices[0].Leased != 0 {
		t.Errorf("damaged: %+v, %v", s, err)
	}
}

// entryOf is a lease of a process, as the registry has it.
func entryOf(t *testing.T, pid int) share.Entry {
	t.Helper()
	r, err := share.Open(filepath.Join(t.TempDir(), "registry"))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := r.Acquire(t.Context(), share.Request{Device: "x", Meter: freeGPU{}, Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer leases[0].Close()
	if err := leases[0].Tell(pid); err != nil {
		t.Fatal(err)
	}
	list, err := r.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list[0]
}

// freeGPU is a GPU that nobody uses.
type freeGPU struct{}

func (freeGPU) Status() (gpu.Status, error) {
	return gpu.Status{Info: gpu.Info{Total: 100}, Free: 100}, nil
}

// TestRegistry: the leases are those of the machine's registry.
func TestRegistry(t *testing.T) {
	file, pid := holder.Start(t)
	t.Setenv(share.EnvDir, filepath.Join(t.TempDir(), "run"))
	r, err := share.Open("")
	if err != nil {
		t.Fatal(err)
	}
	m := meterOf(t, file)
	leases, err := r.Acquire(t.Context(), share.Request{Device: m.listed(t).Key(), Meter: m, Bytes: 3 << 30, Command: []string{"mine"}})
	if err != nil {
		t.Fatal(err)
	}
	defer leases[0].Close()
	if err := leases[0].Tell(pid); err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Devices: []string{"sim@" + file}})
	if err != nil {
		t.Fatal(err)
	}
	state, err := p.Snapshot()
	if err != nil || len(state.Notes) > 0 {
		t.Fatal(err, state)
	}
	d := state.Devices[0]
	if len(d.Programs) != 1 || d.Programs[0].PID != pid || d.Programs[0].Lease == nil || d.Programs[0].Lease.Bytes != 3<<30 || d.Leased != 3<<30 {
		t.Errorf("%+v", d)
	}
}

// sharedGPU is a shared GPU.
type sharedGPU struct{ spec open.Spec }

func meterOf(t testing.TB, file string) sharedGPU {
	t.Helper()
	spec, err := open.Parse("sim@" + file)
	if err != nil {
		t.Fatal(err)
	}
	return sharedGPU{spec}
}

func (m sharedGPU) listed(t testing.TB) open.Listed {
	t.Helper()
	list, err := m.spec.Status()
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func (m sharedGPU) Status() (gpu.Status, error) {
	list, err := m.spec.Status()
	if err != nil {
		return gpu.Status{}, err
	}
	return list[0].Status, nil
}

// TestUnknown: a number that is another program's here is no program of the
// GPU's.
func TestUnknown(t *testing.T) {
	self, err := proc.Look(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		process   gpu.Process
		simulated bool
		why       string
	}{
		{"it", gpu.Process{PID: self.PID, Name: self.Name}, true, ""},
		{"no name", gpu.Process{PID: self.PID}, true, ""},
		{"another name", gpu.Process{PID: self.PID, Name: "python3"}, true, "its number is another one's here"},
		{"ended", gpu.Process{PID: 1 << 30, Name: self.Name}, true, "there is no such process"},
		{"a GPU's driver, which this program does not use", gpu.Process{PID: self.PID, Name: self.Name}, false, "no GPU open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.simulated && proc.HostPIDs() {
				t.Skip("skipped: only in a pid namespace can a driver's number be another process's; here numbers are the machine's")
			}
			s := &machine.Snapshot{}
			fill(s, []open.Listed{{Status: gpu.Status{Info: gpu.Info{Simulated: tc.simulated}, Processes: []gpu.Process{tc.process}}}}, nil)
			p := s.Devices[0].Programs[0]
			if (p.Started == nil) != (tc.why != "") || !strings.Contains(p.Unknown, tc.why) || p.PID != tc.process.PID {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestPoolsByTurns: of a ledger that two leases share each has the sum of its own processes.
func TestPoolsByTurns(t *testing.T) {
	file, pid := holder.Start(t)
	key := meterOf(t, file).listed(t).Key()
	path := filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(path, ledger.Header{Limit: 100, Total: 100, Turns: true}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var leases []share.Entry
	for i, of := range []int{pid, os.Getpid()} {
		e := entryOf(t, of)
		e.Device, e.Bytes, e.Ledger, e.Part = key, 70+uint64(i), path, 5+uint64(i)
		leases = append(leases, e)
		m, err := l.Join(ledger.Part{ID: e.Part, Limit: e.Bytes})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Leave()
		if err := m.Take(ledger.Held, 30+uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := New(Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) { return leases, nil }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	held := map[uint64]uint64{} // by the size of the lease
	for _, p := range s.Devices[0].Programs {
		if p.Lease != nil && p.Lease.Sum != nil {
			held[p.Lease.Bytes] = p.Lease.Sum.Held
		}
	}
	if held[70] != 30 || held[71] != 31 || len(held) != 2 {
		t.Errorf("held by lease: %v", held)
	}
	if leased := s.Devices[0].Leased; leased != 100 {
		t.Errorf("%d leased, want what both hold at most", leased)
	}
}

// TestPools: the processes that count in the ledger of a lease are listed with their
// figures, also those of which the driver knows nothing.
func TestPools(t *testing.T) {
	file, pid := holder.Start(t)
	key := meterOf(t, file).listed(t).Key()
	path := filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(path, ledger.Header{Limit: 100, Total: 100}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := l.Join() // this process, whose memory the simulated GPU does not know
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	if err := errors.Join(m.Take(ledger.Held, 30), m.Take(ledger.Outside, 7)); err != nil {
		t.Fatal(err)
	}
	m.Publish(ledger.Figures{InUse: 20, PeakInUse: 25, Refused: 2, DriverCalls: 9})
	e := entryOf(t, pid)
	e.Device, e.Bytes, e.Ledger = key, 100, path
	for _, tc := range []struct {
		name   string
		change func()
		sum    *machine.PoolUse
		rows   int
		note   string
	}{
		{"a ledger", func() {}, &machine.PoolUse{Held: 30, InUse: 20, PeakHeld: 30, PeakInUse: 25, Outside: 7, Refused: 2, DriverCalls: 9}, 2, ""},
		{"a damaged one", func() {
			if err := os.Truncate(path, 5); err != nil {
				t.Fatal(err)
			}
		}, nil, 1, "5 bytes and not"},
		{"one that is gone", func() { os.Remove(path) }, nil, 1, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.change()
			p, err := New(Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) { return []share.Entry{e}, nil }})
			if err != nil {
				t.Fatal(err)
			}
			s, err := p.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(s.Notes, "\n"); !strings.Contains(notes, tc.note) || tc.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, tc.note)
			}
			list := s.Devices[0].Programs
			if len(list) != tc.rows || list[0].PID != pid || list[0].Lease == nil {
				t.Fatalf("%+v", list)
			}
			if got := list[0].Lease.Sum; (got == nil) != (tc.sum == nil) || got != nil && *got != *tc.sum {
				t.Errorf("sum %+v, want %+v", got, tc.sum)
			}
			if tc.rows == 2 {
				if q := list[1]; q.PID != os.Getpid() || q.Started == nil || q.Lease != list[0].Lease || q.Pool == nil || *q.Pool != *tc.sum || q.Lease.Programs != 2 {
					t.Errorf("%+v", q)
				}
			}
		})
	}
}

func TestServedByPool(t *testing.T) {
	for line, want := range map[string]bool{"GPUMEM_POOL=elastic": true, "GPUMEM_POOL=off": false, "GPUMEM_POOL=": false, "GPUMEM_POOLS=x": false} {
		if got := servedByPool([]string{"A=1", line}); got != want {
			t.Errorf("%s: %t", line, got)
		}
	}
}

// TestProgramThatIsNotInItsLedgerTookMemoryBesideIt: the holder has the simulated GPU in itself,
// as a static program has. A container's lease is its agent's to keep.
func TestProgramThatIsNotInItsLedgerTookMemoryBesideIt(t *testing.T) {
	t.Setenv("GPUMEM_LEASE_ID", "ab")
	t.Setenv("GPUMEM_POOL", "elastic")
	file, pid := holder.Start(t)
	d := meterOf(t, file).listed(t)
	used := filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(used, ledger.Header{Limit: 10, Total: 10}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, ledger string
		containers   []share.Container
		want         bool
	}{
		{"with a pool", used, nil, true},
		{"without", "", nil, false},
		{"with a ledger that is gone", used + "x", nil, false},
		{"of a container", used, []share.Container{{ID: strings.Repeat("a", 64)}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := New(Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) {
				e := entryOf(t, pid)
				e.Device, e.Bytes, e.Ledger, e.Containers, e.Outside = d.Key(), 10, tc.ledger, tc.containers, 3
				return []share.Entry{e}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			s, err := p.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			var got *machine.Beside
			for _, p := range s.Devices[0].Programs {
				if p.PID == pid {
					got = p.Beside
				}
			}
			if (got != nil) != tc.want {
				t.Errorf("%+v, want one: %t", got, tc.want)
			}
			line := strings.Join(view.Remarks(&s.Devices[0], s.Time), "\n")
			if strings.Contains(line, fmt.Sprintf("process %d: it took ", pid)) != tc.want {
				t.Errorf("%s", line)
			}
			if got == nil {
				return
			}
			const how = "it has loaded neither the pool library nor"
			if got.Bytes == nil || *got.Bytes != d.Used || got.Outside != 3 || !strings.HasPrefix(got.How, how) {
				t.Errorf("%+v", got)
			}
		})
	}
}
