package share

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func containerLease() ContainerLease {
	return ContainerLease{Version: 1, Claim: "team-a/gpu", Pod: "trainer", Container: "main", GPUs: []ContainerGPU{
		{UUID: "GPU-1", Bytes: 6 * gib, Total: 24 * gib, Shares: []string{"s1", "s2"}, Ledger: "/run/gpumem/s1.ledger", Outside: 300 * mib},
		{UUID: "GPU-2", Bytes: 24 * gib, Total: 24 * gib, Shares: []string{"s3"}, Ledger: "/run/gpumem/s3.ledger"},
	}}
}

// TestContainerLeaseIsReadAsWritten: and has the form that the pool library looks for.
func TestContainerLeaseIsReadAsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lease.json")
	want := containerLease()
	for range 2 { // the second replaces the first
		must(t, WriteContainerLease(path, want))
		got, err := ReadContainerLease(path)
		must(t, err)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		want.Pod = `"ledger":"/x"<&>`
	}
	text, err := os.ReadFile(path)
	must(t, err)
	if !strings.HasPrefix(string(text), `{"gpumem":1,"claim":`) || !strings.HasSuffix(string(text), "}]}\n") || strings.Count(string(text), `"ledger":"/`) != 2 || strings.Count(string(text), `"outside":`) != 1 {
		t.Errorf("%s", text)
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode() != 0o644 {
		t.Errorf("its mode is %v", info.Mode())
	}
	if all, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(all) != 1 {
		t.Errorf("left: %q", all)
	}
}

func TestWriteContainerLeaseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		alter func(*ContainerLease)
		want  string
	}{
		{"no GPU", func(l *ContainerLease) { l.GPUs = nil }, "no GPU"},
		{"no UUID", func(l *ContainerLease) { l.GPUs[0].UUID = "" }, "no UUID"},
		{"one GPU twice", func(l *ContainerLease) { l.GPUs[1].UUID = "GPU-1" }, `"GPU-1" is there twice`},
		{"0 bytes", func(l *ContainerLease) { l.GPUs[1].Bytes = 0 }, "GPU-2: 0 bytes"},
		{"more than the GPU", func(l *ContainerLease) { l.GPUs[1].Bytes++ }, "want from 1 to all"},
		{"a quote in a path", func(l *ContainerLease) { l.GPUs[0].Ledger = `/a"b` }, "letters, digits"},
		{"a colon in a path", func(l *ContainerLease) { l.GPUs[0].Ledger = "/a:b" }, "letters, digits"},
		{"a relative path", func(l *ContainerLease) { l.GPUs[0].Ledger = "a" }, "absolute"},
		{"too long", func(l *ContainerLease) { l.Pod = strings.Repeat("x", containerBytes) }, "at most 65536"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			l := containerLease()
			tc.alter(&l)
			path := filepath.Join(dir, "lease.json")
			if err := WriteContainerLease(path, l); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if all, _ := os.ReadDir(dir); len(all) != 0 {
				t.Errorf("left: %v", all)
			}
		})
	}
	if err := WriteContainerLease(filepath.Join(t.TempDir(), "no", "lease.json"), containerLease()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestReadContainerLeaseRefuses(t *testing.T) {
	whole, err := json.Marshal(containerLease())
	must(t, err)
	for _, tc := range []struct {
		name, text string
		want       error
	}{
		{"empty", "", ErrDamaged},
		{"cut", `{"gpumem":1,"claim":"a`, ErrDamaged},
		{"no version", `{"claim":"a"}`, ErrDamaged},
		{"no GPU", `{"gpumem":1}`, ErrDamaged},
		{"later", `{"gpumem":2,"gpus":"elsewhere"}`, ErrDamaged},
		{"later, of the same shape", `{"gpumem":2}`, ErrVersion},
		{"whole", string(whole), nil},
		{"whole and too long", string(whole) + strings.Repeat("\n", containerBytes+1-len(whole)), ErrDamaged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lease.json")
			must(t, os.WriteFile(path, []byte(tc.text), 0o644))
			if _, err := ReadContainerLease(path); !errors.Is(err, tc.want) || err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
	if _, err := ReadContainerLease("/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestInContainer: by what GPUMEM_LEASE names.
func TestInContainer(t *testing.T) {
	dir := t.TempDir()
	good, bad, record := filepath.Join(dir, "lease.json"), filepath.Join(dir, "bad.json"), filepath.Join(dir, "record")
	must(t, WriteContainerLease(good, containerLease()))
	must(t, os.WriteFile(bad, []byte(`{"gpumem":1}`), 0o644))
	must(t, os.WriteFile(record, sample("gpu").Encode(), 0o644))
	for _, tc := range []struct {
		name, path string
		ok         bool
		err        error
	}{
		{"no lease", "", false, nil},
		{"a container's", good, true, nil},
		{"a damaged one", bad, false, ErrDamaged},
		{"one of gpumem run", record, false, nil},
		{"one that has ended", filepath.Join(dir, "none"), false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(EnvLease, tc.path)
			if _, ok, err := InContainer(); ok != tc.ok || !errors.Is(err, tc.err) {
				t.Errorf("%t, %v; want %t, %v", ok, err, tc.ok, tc.err)
			}
		})
	}
	e, err := ReadLease(good)
	if err != nil || e.Device != "GPU-1" || e.Bytes != 6*gib || e.Ledger != "/run/gpumem/s1.ledger" || fmt.Sprint(e.Containers) != "[team-a/trainer/main]" {
		t.Errorf("%+v, %v", e, err)
	}
}

func FuzzReadContainerLease(f *testing.F) {
	f.Add([]byte(`{"gpumem":1,"claim":"a/b","pod":"p","container":"c","gpus":[{"uuid":"GPU-1","bytes":1,"total":2,"shares":["s"],"ledger":"/l"}]}`))
	f.Add([]byte(`{"gpumem":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "lease.json")
		must(t, os.WriteFile(path, text, 0o644))
		l, err := ReadContainerLease(path)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			return
		}
		if err := WriteContainerLease(path, l); err != nil && !strings.Contains(err.Error(), "at most") { // escapes make it longer
			t.Fatal(err)
		}
	})
}
