package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gpu "gpumem/device"
	"gpumem/internal/test/holder"
	"gpumem/node/probe"
	"gpumem/node/screen"
	"gpumem/node/share"
)

// keyOf is the key of a shared GPU.
func keyOf(t testing.TB, file string) string {
	t.Helper()
	list, _, err := probe.Devices([]string{"sim@" + file})
	if err != nil {
		t.Fatal(err)
	}
	return list[0].Key()
}

// entryOf is a lease of a process, as the registry has it.
func entryOf(t *testing.T, pid int) share.Entry {
	t.Helper()
	r, err := share.Open(filepath.Join(t.TempDir(), "registry"))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := r.Acquire(t.Context(), share.Request{Device: "x", Meter: psFree{}, Bytes: 1})
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

// psFree is a GPU that nobody uses.
type psFree struct{}

func (psFree) Status() (gpu.Status, error) {
	return gpu.Status{Info: gpu.Info{Total: 100}, Free: 100}, nil
}

// TestPsSharedLease: several programs use a GPU under one lease, which is said.
func TestPsSharedLease(t *testing.T) {
	file, pid := holder.Start(t)
	second := holder.Another(t, filepath.Dir(file), file)
	e := entryOf(t, os.Getpid())
	e.Device, e.Bytes = keyOf(t, file), 1<<20
	_, state, err := startProbe(probe.Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) { return []share.Entry{e}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("  the lease of process %d: 2 programs under it hold 4 MiB together, 3 MiB more than its 1 MiB; gpumem run --procs 2 divides it\n", os.Getpid())
	if text := screen.List(state); strings.Count(text, want) != 1 {
		t.Errorf("%s\nlacks %q once; the programs are %d and %d", text, want, pid, second)
	}
	var b strings.Builder
	if err := encode(&b, state); err != nil || strings.Count(b.String(), `"lease_programs": 2`) != 2 {
		t.Errorf("%v: %s", err, &b)
	}
}

// BenchmarkPs is ps with 100 programs.
func BenchmarkPs(b *testing.B) {
	file, _ := holder.Start(b)
	for range 99 {
		holder.Another(b, filepath.Dir(file), file)
	}
	b.Setenv(share.EnvDir, b.TempDir())
	for b.Loop() {
		_, state, err := startProbe(probe.Options{Devices: []string{"sim@" + file}})
		if err != nil || len(state.Devices[0].Programs) != 100 {
			b.Fatal(state, err)
		}
		if _, err := io.WriteString(io.Discard, screen.List(state)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestPsHook: of the programs of a lease those are named whose environment lacks the
// Python hook, such as one with a PYTHONPATH that replaces that of gpumem run.
func TestPsHook(t *testing.T) {
	hook := t.TempDir()
	if err := os.WriteFile(filepath.Join(hook, "gpumem_hook.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		leased     bool
		named      bool
		json       string // "": none
	}{
		{"with the hook", "/x:" + hook, true, false, `"hooked": true`},
		{"another path", "/x", true, true, `"hooked": false`},
		{"another path and no lease", "/x", false, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("PYTHONPATH", tc.path)
			file, pid := holder.Start(t)
			_, state, err := startProbe(probe.Options{Devices: []string{"sim@" + file}, Leases: func([]string) ([]share.Entry, error) {
				if !tc.leased {
					return nil, nil
				}
				e := entryOf(t, pid)
				e.Device, e.Bytes = keyOf(t, file), 1<<20
				return []share.Entry{e}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			if state.Devices[0].Programs[0].Container != "" {
				t.Skip("skipped: in a container the hook's folder is not told")
			}
			line := fmt.Sprintf("process %d: its environment lacks the Python hook", pid)
			if text := screen.List(state); strings.Contains(text, line) != tc.named {
				t.Errorf("%s\nhas %q: %t, want %t", text, line, !tc.named, tc.named)
			}
			var b strings.Builder
			err = encode(&b, state)
			if tc.json == "" && strings.Contains(b.String(), `"hooked"`) || !strings.Contains(b.String(), tc.json) || err != nil {
				t.Errorf("%v: %s\nlacks %q", err, &b, tc.json)
			}
		})
	}
}
