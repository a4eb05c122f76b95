package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/internal/hook"
	"gpumem/node/internal/overhead"
	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/runenv"
)

type fixedMeter struct {
	s   device.Status
	err error
}

func (m fixedMeter) Status() (device.Status, error) { return m.s, m.err }

// byFramework is what a sampler has measured; nil for nothing.
func byFramework(s *sampler) map[string]uint64 {
	var m map[string]uint64
	for k, n := range s.most {
		if m == nil {
			m = map[string]uint64{}
		}
		m[k.Framework] = max(m[k.Framework], n)
	}
	return m
}

// TestSampler: what JAX holds beyond its pool is what lies outside of it.
func TestSampler(t *testing.T) {
	const gib, mib = 1 << 30, 1 << 20
	status := device.Status{Info: device.Info{Total: 24 * gib, Granularity: 2 * mib}, Processes: []device.Process{
		{PID: 50, Used: 6*gib + 100*mib, Known: true},
		{PID: 51, Used: 200 * mib, Known: true}, // a child of 50
		{PID: 52, Known: false},
		{PID: 99, Used: 5 * gib, Known: true}, // a stranger
	}}
	parents := map[int]int{51: 50, 50: 10, 99: 1}
	jax := []proc.Framework{{Name: "jax", Version: "0.12.0"}}
	for _, tc := range []struct {
		name   string
		env    []string
		loaded []proc.Framework
		err    error
		want   map[string]uint64
	}{
		{"JAX", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25"}, jax, nil, map[string]uint64{"jax": 300 * mib}},
		{"a release that is not known", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25"}, []proc.Framework{{Name: "jax", Version: "?"}}, nil, map[string]uint64{"jax": 300 * mib}},
		{"not yet taken", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.5"}, jax, nil, nil},
		{"growing", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25", "XLA_PYTHON_CLIENT_PREALLOCATE=false"}, jax, nil, nil},
		{"PyTorch", nil, []proc.Framework{{Name: "pytorch"}}, nil, nil},
		{"two", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25"}, append(jax, proc.Framework{Name: "tensorflow"}), nil, nil},
		{"none", nil, nil, nil, nil},
		{"no status", nil, jax, errors.New("lost"), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := sampler{pid: 50, env: append(tc.env, runenv.EnvLeaseID+"=ab12"), meter: fixedMeter{status, tc.err},
				most: map[overhead.Key]uint64{}, given: map[overhead.Key]*uint64{}, parent: func(pid int) int { return parents[pid] }, loaded: func(int) []proc.Framework { return tc.loaded }}
			l.sample()
			l.sample()
			if got := byFramework(&l); !maps.Equal(got, tc.want) {
				t.Fatalf("%v, want %v", got, tc.want)
			}
			if tc.want == nil {
				return
			}
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			where := overhead.NewStore()
			l.save(where, "python train.py", t.Logf)
			if got, err := where.Load("python train.py"); err != nil || len(got) != 1 || got[0].Bytes < tc.want["jax"] || got[0].Measurements[0].Run != "ab12" {
				t.Errorf("remembered %v, %v", got, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	(&sampler{}).watch(ctx) // ends at once
}

// TestSamplerOfPool: what a process holds beyond what the ledger has of it lies outside
// of its pool.
func TestSamplerOfPool(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, m := memberIn(t, path)
	defer l.Close()
	defer m.Leave()
	if err := errors.Join(m.Take(ledger.Held, 30), m.Take(ledger.Charged, 3), m.Take(ledger.Outside, 50)); err != nil {
		t.Fatal(err)
	}
	status := device.Status{Processes: []device.Process{{PID: os.Getpid(), Used: 40, Known: true}, {PID: 1 << 30, Used: 90, Known: true}}}
	for name, loaded := range map[string][]proc.Framework{"jax": {{Name: "jax"}}, "cuda": nil} {
		s := newSampler(os.Getpid(), []string{runenv.EnvLedger + "=" + path + ":/other"}, fixedMeter{s: status})
		s.loaded = func(int) []proc.Framework { return loaded }
		s.sample()
		if got := byFramework(s); len(got) != 1 || got[name] != 7 {
			t.Errorf("%s: %v, want 7", name, got)
		}
	}
}

// TestSamplerMeasuresItsOwnPart: what other runs hold that count in the same ledger is not this
// one's, nor do their processes make it one to learn nothing from.
func TestSamplerMeasuresItsOwnPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, other := memberIn(t, path)
	defer l.Close()
	defer other.Leave()
	other.Uncertain()
	m, err := l.Join(ledger.Part{ID: 7, Limit: 90}, ledger.Part{ID: 8, Limit: 80})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	if err := m.Take(ledger.Held, 30); err != nil {
		t.Fatal(err)
	}
	status := device.Status{Processes: []device.Process{{PID: os.Getpid(), Used: 40, Known: true}}}
	for _, tc := range []struct {
		parts string
		want  uint64
	}{{"8=80", 10}, {"7=90,8=80:1=2", 10}, {"8=80,6=5", 0}, {"", 0}} {
		s := newSampler(os.Getpid(), []string{runenv.EnvLedger + "=" + path, runenv.EnvParts + "=" + tc.parts}, fixedMeter{s: status})
		s.loaded = func(int) []proc.Framework { return nil }
		s.environ = func(int) ([]string, error) { return nil, os.ErrNotExist }
		if s.sample(); byFramework(s)["cuda"] != tc.want {
			t.Errorf("parts %q: measured %v, want %d", tc.parts, s.most, tc.want)
		}
	}
}

// TestContextAloneTeachesNothing: of a process that has a context and no memory yet the libraries
// are still to come; the next run would have had too little for them.
func TestContextAloneTeachesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, m := memberIn(t, path)
	defer l.Close()
	defer m.Leave()
	status := device.Status{Processes: []device.Process{{PID: os.Getpid(), Used: 40, Known: true}}}
	s := newSampler(os.Getpid(), []string{runenv.EnvLedger + "=" + path}, fixedMeter{s: status})
	s.loaded = func(int) []proc.Framework { return nil }
	for _, step := range []struct {
		change func() error
		want   uint64
	}{
		{func() error { return m.Take(ledger.Outside, 50) }, 0},
		{func() error { return m.Take(ledger.Held, 30) }, 10},
		{func() error { return m.Give(ledger.Held, 30) }, 40}, // libraries are not released
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if s.sample(); byFramework(s)["cuda"] != step.want {
			t.Errorf("measured %v, want %d", s.most, step.want)
		}
	}
}

// TestSamplerKeepsWhatTheRunWasGiven: the next run is given no more, so that its pool is no
// smaller, whether the driver library or the framework limits it.
func TestSamplerKeepsWhatTheRunWasGiven(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, m := memberIn(t, path)
	defer l.Close()
	defer m.Leave()
	const mib = 1 << 20
	if err := m.Take(ledger.Held, 30); err != nil {
		t.Fatal(err)
	}
	const fraction, id = "XLA_PYTHON_CLIENT_MEM_FRACTION=0.25", "GPUMEM_LEASE_ID=ab12"
	for _, tc := range []struct {
		name string
		used uint64
		env  []string
		want string
	}{
		{"pool library", 40, []string{runenv.EnvLedger + "=" + path, runenv.EnvOutside + "=20"}, "20"},
		{"pool library, nothing", 40, []string{runenv.EnvLedger + "=" + path, runenv.EnvOutside + "=0"}, "0"},
		{"pool library, not said", 40, []string{runenv.EnvLedger + "=" + path}, "unknown"},
		{"fraction", 400 * mib, []string{fraction, id, "GPUMEM_LEASE_PART=cd34 1 1,ab12 419430400 1000"}, "157286400"},
		{"fraction, of the run in another run", 400 * mib,
			[]string{fraction, "GPUMEM_LEASE_ID=cd34", "GPUMEM_LEASE_PART=ab12 419430400 1000"}, "157286400"},
		{"fraction, smaller part", 400 * mib, []string{fraction, id, "GPUMEM_LEASE_PART=ab12 209715200 1000"}, "0"},
		{"fraction, other lease", 400 * mib, []string{fraction, id, "GPUMEM_LEASE_PART=cd34 419430400 1000"}, "unknown"},
	} {
		status := device.Status{
			Info:      device.Info{Name: "x", Total: 1000 * mib},
			Processes: []device.Process{{PID: os.Getpid(), Used: tc.used, Known: true}},
		}
		s := newSampler(os.Getpid(), tc.env, fixedMeter{s: status})
		if strings.Contains(tc.name, "in another run") {
			s.run = "ab12"
		}
		s.loaded = func(int) []proc.Framework { return []proc.Framework{{Name: "jax", Version: "0.4.35"}} }
		s.sample()
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		s.save(overhead.NewStore(), "/bin/x", t.Logf)
		list, err := overhead.NewStore().Load("/bin/x")
		if err != nil || len(list) != 1 || len(list[0].Measurements) != 1 {
			t.Errorf("%s: %+v, %v", tc.name, list, err)
			continue
		}
		got := "unknown"
		if given := list[0].Measurements[0].Given; given != nil {
			got = fmt.Sprint(*given)
		}
		if got != tc.want {
			t.Errorf("%s: given %s, want %s", tc.name, got, tc.want)
		}
	}
}

// TestRunWithMemoryBesideThePoolTeachesNothing: what its bytes are is not known, and they were
// learned as outside of the pool: the next run had that much less, or no lease at all.
func TestRunWithMemoryBesideThePoolTeachesNothing(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path := filepath.Join(t.TempDir(), "ledger")
	l, m := memberIn(t, path)
	defer l.Close()
	defer m.Leave()
	if err := m.Take(ledger.Held, 30); err != nil {
		t.Fatal(err)
	}
	status := device.Status{Info: device.Info{Name: "x", Total: 100}, Processes: []device.Process{{PID: os.Getpid(), Used: 40, Known: true}}}
	for _, uncertain := range []bool{false, true} {
		s := newSampler(os.Getpid(), []string{runenv.EnvLedger + "=" + path}, fixedMeter{s: status})
		s.loaded = func(int) []proc.Framework { return nil }
		s.sample()
		if uncertain { // after a sample that was one to learn from
			m.Uncertain()
			s.sample()
		}
		s.save(overhead.NewStore(), "/bin/x", t.Logf)
		list, err := overhead.NewStore().Load("/bin/x")
		if err != nil || len(list) != 1 || len(list[0].Measurements) != 1 {
			t.Errorf("uncertain %t: learned %+v, %v; want one measurement, of the first run", uncertain, list, err)
		}
	}
}

// TestMemoryThatChangesDuringASampleIsNotOutside: it was taken and given back while the status
// of the GPU was read, so what is held before and after is the same.
func TestMemoryThatChangesDuringASampleIsNotOutside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, m := memberIn(t, path)
	defer l.Close()
	defer m.Leave()
	if err := m.Take(ledger.Held, 30); err != nil {
		t.Fatal(err)
	}
	status := device.Status{Processes: []device.Process{{PID: os.Getpid(), Used: 90, Known: true}}}
	s := newSampler(os.Getpid(), []string{runenv.EnvLedger + "=" + path}, meterFunc(func() (device.Status, error) {
		return status, errors.Join(m.Take(ledger.Held, 60), m.Give(ledger.Held, 60))
	}))
	s.loaded = func(int) []proc.Framework { return nil }
	s.sample()
	if len(s.most) != 0 {
		t.Errorf("measured %v", s.most)
	}
}

// TestRunThatTookMemoryBesideItsLeaseTeachesNothing: what a process took by another way was
// learned as outside of the pool. Only the program's own family is looked at, and a process that
// takes or gives meanwhile is not judged.
func TestRunThatTookMemoryBesideItsLeaseTeachesNothing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the processes are read from /proc")
	}
	path := filepath.Join(t.TempDir(), "ledger")
	l, m := memberIn(t, path)
	defer l.Close()
	defer m.Leave()
	if err := m.Take(ledger.Held, 30); err != nil {
		t.Fatal(err)
	}
	self := os.Getpid()
	for _, tc := range []struct {
		name     string
		pid      int // of the program
		env      []string
		context  uint64
		meddling bool
		want     string
		learned  uint64
	}{
		{"more than is counted", self, []string{runenv.EnvPool + "=elastic", runenv.EnvOutside + "=0"}, 0, false, "took 60 B beside its lease: the GPU reports", 0},
		{"without an environment, in a lease with 20 outside", self, nil, 0, false, "took 60 B beside its lease (about 20 B of it by its context and its libraries): the GPU", 0},
		{"within what lies outside", self, []string{runenv.EnvPool + "=elastic", runenv.EnvOutside + "=60"}, 60, false, "", 60},
		{"while it takes and gives", self, []string{runenv.EnvPool + "=elastic"}, 0, true, "", 0},
		{"not of the program's family", 1 << 30, []string{runenv.EnvPool + "=elastic"}, 0, false, "", 60},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status := device.Status{Info: device.Info{Total: 1000, Simulated: true, Context: tc.context}, Processes: []device.Process{{PID: self, Used: 90, Known: true}}}
			found := 0
			s := newSampler(tc.pid, []string{runenv.EnvLedger + "=" + path, runenv.EnvOutside + "=20"}, meterFunc(func() (device.Status, error) {
				if tc.meddling {
					return status, errors.Join(m.Take(ledger.Held, 10), m.Give(ledger.Held, 10))
				}
				return status, nil
			}))
			s.loaded = func(int) []proc.Framework { return nil }
			s.environ = func(int) ([]string, error) { return tc.env, nil }
			s.found = func() { found++ }
			s.sample()
			s.sample()
			line := s.besideLine()
			if !strings.Contains(line, tc.want) || tc.want == "" && line != "" || (found > 0) != (line != "") {
				t.Errorf("%q after %d findings, want %q", line, found, tc.want)
			}
			if got := byFramework(s)["cuda"]; got != tc.learned {
				t.Errorf("learned %d, want %d", got, tc.learned)
			}
		})
	}
}

// TestBesideLineNamesTheLargest: one line, whatever the number of processes.
func TestBesideLineNamesTheLargest(t *testing.T) {
	s := newSampler(1, nil, nil)
	bytes := func(n uint64) *uint64 { return &n }
	s.beside = map[int]*machine.Beside{7: {How: "a"}, 8: {Bytes: bytes(128 << 20), How: "b"}, 9: {Bytes: bytes(1), How: "c"}}
	const want = "process 8 took 128 MiB beside its lease: b; 2 more of this run took some"
	if got := s.besideLine(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

type meterFunc func() (device.Status, error)

func (f meterFunc) Status() (device.Status, error) { return f() }

// memberIn makes a ledger of 100 bytes with this process as a member.
func memberIn(t *testing.T, path string) (*ledger.Ledger, *ledger.Member) {
	t.Helper()
	if err := ledger.Create(path, ledger.Header{Limit: 100, Total: 100}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.Join()
	if err != nil {
		t.Fatal(err)
	}
	return l, m
}

// TestWithoutPrivateFolder: a program runs without the hook, which is said, but not
// where something was asked for that only the hook can do.
func TestWithoutPrivateFolder(t *testing.T) {
	none := errors.New("no folder that only user 1 can write to")
	pythonHook = func() (string, error) { return "", none }
	defer func() { pythonHook = hook.Install }()
	for _, tc := range []struct {
		p       *Plan
		refused string
	}{
		{&Plan{}, ""},
		{&Plan{Limits: runenv.Limits{CPUTensorFlow: true}}, "--cpu-tensorflow: Python hook: no folder"},
		{&Plan{Record: "/x"}, "--record: Python hook: no folder"},
	} {
		var said []string
		tc.p.Say = func(line string) { said = append(said, line) }
		err := tc.p.hook()
		switch {
		case tc.refused != "" && (!errors.Is(err, none) || !strings.HasPrefix(err.Error(), tc.refused)):
			t.Errorf("%+v: %v; want %s", tc.p, err, tc.refused)
		case tc.refused == "" && (err != nil || len(said) != 1 || !strings.HasPrefix(said[0], "the lease is not enforced for TensorFlow, nor for PyTorch before 2.10: Python hook: no folder")):
			t.Errorf("%v, said %q", err, said)
		}
	}
}

// TestProgramName: two programs of one file name are two, and so are two scripts of one
// interpreter or launcher. The options of an interpreter are no part of it.
func TestProgramName(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	for _, name := range []string{dir + "/train.py", dir + "/prog", dir + "/run.sh", bin + "/tool", bin + "/other", bin + "/python3", bin + "/nice"} {
		if err := os.WriteFile(name, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	script, module := "/usr/bin/python "+dir+"/train.py", "/usr/bin/python -m pkg.train"
	for _, tc := range []struct{ command, want string }{
		{"", ""},
		{"/opt/train --x y.py", "/opt/train"},
		{"./prog data", dir + "/prog"},
		{"tool x", bin + "/tool"},
		{"/usr/bin/python -u train.py a", script},
		{"/usr/bin/python -X dev -W error train.py a", script},
		{"/usr/bin/python -Xdev -uWerror train.py -m a", script},
		{"/usr/bin/python --check-hash-based-pycs never train.py", script},
		{"/usr/bin/python --version train.py", script},
		{"/usr/bin/python -- train.py", script},
		{"/venv/bin/python3.11 /x/train.py", "/venv/bin/python3.11 /x/train.py"},
		{"/usr/bin/python -m pkg.train x", module},
		{"/usr/bin/python -mpkg.train x", module},
		{"/usr/bin/python -um pkg.train -c x", module},
		{"/usr/bin/python -Isumpkg.train", module},
		{"/usr/bin/python -m", ""},
		{"/usr/bin/python -W", ""},
		{"/usr/bin/python -c pass x", "/usr/bin/python -c " + digest("pass")},
		{"/usr/bin/python -uc pass y", "/usr/bin/python -c " + digest("pass")},
		{"/usr/bin/python -cpass", "/usr/bin/python -c " + digest("pass")},
		{"/usr/bin/python", ""},
		{"/usr/bin/python -", ""},
		{"/usr/bin/python --", ""},
		{"/usr/bin/python -- -train.py", "/usr/bin/python " + dir + "/-train.py"},
		{"/usr/bin/python --command train.py", script},
		{"/bin/bash +c run.sh", "/bin/bash " + dir + "/run.sh"},
		{"/bin/bash -sc ./x", "/bin/bash -c " + digest("./x")},
		{"/usr/bin/env tool other", "/usr/bin/env " + bin + "/tool"},
		{"/usr/bin/python /dev/stdin", ""},
		{"/usr/bin/python /dev/fd/63", ""},
		{"/usr/bin/torchrun --nproc-per-node 2 train.py", "/usr/bin/torchrun " + dir + "/train.py"},
		{"/usr/bin/torchrun --nproc-per-node 2 -m pkg", "/usr/bin/torchrun -m pkg"},
		{"/usr/bin/nice -n 5 /usr/bin/python3 -m pkg", "/usr/bin/nice -m pkg"},
		{"/usr/bin/nice python3 -umpkg", "/usr/bin/nice -m pkg"},
		{"nice python3", ""},
		{"/usr/bin/env A=b nice tool x", "/usr/bin/env " + bin + "/tool"},
		{"/usr/bin/env A=b tool train.py", "/usr/bin/env " + dir + "/train.py"},
		{"/usr/bin/timeout 9 sh run.sh", "/usr/bin/timeout " + dir + "/run.sh"},
		{"/usr/bin/uv run train.py", "/usr/bin/uv " + dir + "/train.py"},
		{"/usr/bin/uv run tool", "/usr/bin/uv (arguments " + digest("run\x00tool") + ")"},
		{"/usr/bin/uv", ""},
		{"/bin/sh run.sh x", "/bin/sh " + dir + "/run.sh"},
		{"/bin/sh -e missing.sh", "/bin/sh " + dir + "/missing.sh"},
		{"/bin/bash -euo pipefail +x run.sh", "/bin/bash " + dir + "/run.sh"},
		{"/bin/bash --norc --rcfile x run.sh -c y", "/bin/bash " + dir + "/run.sh"},
		{"/bin/bash tool", "/bin/bash " + bin + "/tool"},
		{"/bin/bash -- run.sh", "/bin/bash " + dir + "/run.sh"},
		{"/bin/bash /dev/fd/63", ""},
		{"/bin/sh -c ./x", "/bin/sh -c " + digest("./x")},
		{"/bin/sh -ec -- ./x y", "/bin/sh -c " + digest("./x\x00y")},
		{"/bin/bash -lc ./x", "/bin/bash -c " + digest("./x")},
		{"/bin/sh -c", ""},
		{"/bin/sh -s x", ""},
		{"/bin/sh -", ""},
		{"/bin/sh", ""},
	} {
		if got := programName(strings.Fields(tc.command), dir); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.command, got, tc.want)
		}
	}
}
