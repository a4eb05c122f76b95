package pip

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDistributionAndStranger(t *testing.T) {
	for _, tc := range []struct {
		name    string
		beside  []string
		program string
		ours    bool
		other   string // its version
	}{
		{name: "ours alone", beside: []string{"gpumem_tools-0.2.0.dist-info"}, program: "gpumem/bin/gpumem", ours: true},
		{name: "both", beside: []string{"gpumem_tools-0.2.0.dist-info", "gpumem-0.1.4.dist-info"}, program: "gpumem/bin/gpumem", ours: true, other: "0.1.4"},
		{name: "an egg", beside: []string{"gpumem_tools-0.2.0.dist-info", "gpumem-0.1.4-py3.11.egg-info"}, program: "gpumem/bin/gpumem", ours: true, other: "0.1.4"},
		{name: "names that begin alike", beside: []string{"gpumem_tools-0.2.0.dist-info", "gpumem_other-1.dist-info"}, program: "gpumem/bin/gpumem", ours: true},
		{name: "not by pip", program: "gpumem/bin/gpumem"},
		{name: "a clone", beside: []string{"gpumem-0.1.4.dist-info"}, program: "gpumem"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := t.TempDir()
			for _, name := range tc.beside {
				if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(folder, tc.program)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o700); err != nil {
				t.Fatal(err)
			}
			defer func(f func() (string, error)) { executable = f }(executable)
			executable = func() (string, error) { return path, nil }
			if name, _, ok := Distribution(); ok != tc.ours || ok && name != "gpumem-tools" {
				t.Errorf("%q, %v", name, ok)
			}
			if got := Warning(); (got != "") != (tc.other != "") || !strings.Contains(got, tc.other) {
				t.Errorf("warning %q; want one of version %q", got, tc.other)
			}
		})
	}
}
