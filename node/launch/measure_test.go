package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/internal/hook"
	"gpumem/node/internal/overhead"
	"gpumem/node/ledger"
	"gpumem/node/runenv"
)

type fixedMeter struct {
	s   device.Status
	err error
}

func (m fixedMeter) Status() (device.Status, error) { return m.s, m.err }

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
			l := sampler{pid: 50, env: tc.env, meter: fixedMeter{status, tc.err}, most: map[string]uint64{},
				parent: func(pid int) int { return parents[pid] }, loaded: func(int) []proc.Framework { return tc.loaded }}
			l.sample()
			l.sample()
			if len(l.most) != len(tc.want) || l.most["jax"] != tc.want["jax"] {
				t.Fatalf("%v, want %v", l.most, tc.want)
			}
			if tc.want == nil {
				return
			}
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			where := overhead.NewStore()
			l.save(where, "python train.py", t.Logf)
			if got, err := where.Load("python train.py"); err != nil || got["jax"] < tc.want["jax"] {
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
	if err := ledger.Create(path, ledger.Header{Limit: 100, Total: 100}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m, err := l.Join()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	if err := errors.Join(m.Take(ledger.Held, 30), m.Take(ledger.Charged, 3), m.Take(ledger.Outside, 50)); err != nil {
		t.Fatal(err)
	}
	status := device.Status{Processes: []device.Process{{PID: os.Getpid(), Used: 40, Known: true}, {PID: 1 << 30, Used: 90, Known: true}}}
	for name, loaded := range map[string][]proc.Framework{"jax": {{Name: "jax"}}, "cuda": nil} {
		s := newSampler(os.Getpid(), []string{runenv.EnvLedger + "=" + path + ":/other"}, fixedMeter{s: status})
		s.loaded = func(int) []proc.Framework { return loaded }
		s.sample()
		if len(s.most) != 1 || s.most[name] != 7 {
			t.Errorf("%s: %v, want 7", name, s.most)
		}
	}
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

func TestProgramName(t *testing.T) {
	for _, tc := range []struct{ command, want string }{
		{"", ""},
		{"/opt/train --x y.py", "train"},
		{"/usr/bin/python3 -u train.py a", "python3 /home/me/train.py"},
		{"python3.11 /x/train.py", "python3.11 /x/train.py"},
		{"python -m pkg.train x", "python -m pkg.train"},
		{"python -m", "python"},
		{"python -c pass", "python -c"},
		{"python", "python"},
	} {
		if got := programName(strings.Fields(tc.command), "/home/me"); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.command, got, tc.want)
		}
	}
}
