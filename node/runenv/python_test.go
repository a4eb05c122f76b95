package runenv

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree makes files; what ends in a slash is a folder, what begins with -> a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(filepath.Join(root, target), path)
		} else {
			err = os.WriteFile(path, []byte(strings.ReplaceAll(text, "ROOT", root)), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTorchReleases(t *testing.T) {
	root := tree(t, map[string]string{
		"usr/bin/python3":    "->usr/bin/python3.11",
		"usr/bin/python3.11": "\x7fELF",
		"usr/lib/python3.11/site-packages/torch-2.10.0.dist-info/METADATA":        "",
		"usr/lib/python3.11/site-packages/torch_geometric-1.0.dist-info/METADATA": "",
		"usr/lib/python3.8/site-packages/torch-1.13.1.dist-info/METADATA":         "", // of another Python
		"venv/bin/python":   "->usr/bin/python3.11",
		"venv/pyvenv.cfg":   "home = /usr/bin\ninclude-system-site-packages = false\n",
		"venv/bin/torchrun": "#!ROOT/venv/bin/python\nimport torch\n",
		"venv/bin/envrun":   "#!/usr/bin/env -S A=1 python3 -u\n",
		"venv/bin/shim":     "#!/usr/bin/env bash\n",
		"venv/bin/empty":    "#!\n",
		"venv/lib/python3.11/site-packages/torch-2.15.0+cu132.dist-info/METADATA": "",
		"both/bin/python3": "->usr/bin/python3.11",
		"both/pyvenv.cfg":  "include-system-site-packages = TRUE\n",
		"both/lib/python3.11/site-packages/torch-2.12.1.dist-info/METADATA":        "",
		"mine[1]/torch-2.9.1.dist-info/METADATA":                                   "",
		"home/.local/lib/python3.11/site-packages/torch-2.11.0.dist-info/METADATA": "",
	})
	in := func(name string) string { return filepath.Join(root, name) }
	for _, tc := range []struct {
		name    string
		command []string
		env     map[string]string
		want    []string
	}{
		{"nothing", nil, nil, nil},
		{"no Python", []string{"/bin/sh"}, nil, nil},
		{"not there", []string{"python3"}, nil, nil},
		{"by PATH", []string{"python3", "x.py"}, map[string]string{"PATH": "/nowhere:" + in("usr/bin")}, []string{"2.10.0"}},
		{"by its path", []string{in("usr/bin/python3")}, nil, []string{"2.10.0"}},
		{"the user's packages, too", []string{in("usr/bin/python3")}, map[string]string{"HOME": in("home")}, []string{"2.11.0", "2.10.0"}},
		{"a virtual environment", []string{in("venv/bin/python")}, map[string]string{"HOME": in("home")}, []string{"2.15.0+cu132"}},
		{"one that sees the system's", []string{in("both/bin/python3")}, nil, []string{"2.12.1", "2.10.0"}},
		{"a script", []string{in("venv/bin/torchrun")}, nil, []string{"2.15.0+cu132"}},
		{"a script by env", []string{in("venv/bin/envrun")}, map[string]string{"PATH": in("usr/bin")}, []string{"2.10.0"}},
		{"a shell's script", []string{in("venv/bin/shim")}, map[string]string{"PATH": "/bin:/usr/bin"}, nil},
		{"a first line of nothing", []string{in("venv/bin/empty")}, nil, nil},
		{"PYTHONPATH", []string{in("usr/bin/python3")}, map[string]string{"PYTHONPATH": in("mine[1]")}, []string{"2.9.1", "2.10.0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := versionsOf("torch", tc.command, func(name string) string { return tc.env[name] })
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}

	// The setting goes in where all that may be imported know it, and only there.
	g := Limits{Leases: []Lease{simulated(6 * gib)}}
	for _, tc := range []struct {
		name, env, program, want string
	}{
		{"known", "A=", "usr/bin/python3", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.25"},
		{"merged", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "usr/bin/python3", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,per_process_memory_fraction:0.25"},
		{"smaller", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.1", "usr/bin/python3", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.1"},
		{"one that does not know it", "PYTHONPATH=" + in("mine[1]"), "usr/bin/python3", ""},
		{"a list that PyTorch refuses", "PYTORCH_ALLOC_CONF=bogus:1", "usr/bin/python3", "PYTORCH_ALLOC_CONF=bogus:1"},
		{"no PyTorch", "A=", "bin/none", ""},
	} {
		t.Run("set: "+tc.name, func(t *testing.T) {
			o := must(t, []string{tc.env}, []string{in(tc.program)}, g)
			var got []string
			for _, line := range o.Env {
				if strings.HasPrefix(line, "PYTORCH_") {
					got = append(got, line)
				}
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestDeafFlag(t *testing.T) {
	root := tree(t, map[string]string{"python3": "", "prog": ""})
	for _, tc := range []struct{ command, want string }{
		{"python3 x.py -I", ""},
		{"python3 -I x.py", "-I"},
		{"python3 -uE -m x", "-E"},
		{"python3 -u -S", "-S"},
		{"python3 -X importtime -W error -S", "-S"},
		{"python3 -XE x.py", ""},
		{"python3 -Wignore::E x.py", ""},
		{"python3 -W E x.py", ""},
		{"python3 -c E -I", ""},
		{"python3 --version -s", ""},
		{"python3 -W", ""},
		{"prog -I", ""},
	} {
		words := strings.Fields(tc.command)
		words[0] = filepath.Join(root, words[0])
		if got := deafFlag(words, os.Getenv); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.command, got, tc.want)
		}
	}
}

// FuzzShebang: whatever a file begins with, nothing breaks, and a Python that is
// found is there.
func FuzzShebang(f *testing.F) {
	for _, seed := range []string{"#!/usr/bin/env python3\n", "#!", "#!/usr/bin/env\n", "#! /usr/bin/python3 -u", "", "\x7fELF"} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "script")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
		if python := pythonOf([]string{path}, os.Getenv); python != "" {
			if _, err := os.Stat(python); err != nil {
				t.Errorf("%q: %v", data, err)
			}
		}
	})
}
