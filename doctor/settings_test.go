package doctor

import (
	"strings"
	"testing"

	"gpumem/node/machine"
)

// TestSettings: what a process was started with is read as its own release reads it, and what is wrong
// with it is said first. The framework stops at the first error; the answer does not.
func TestSettings(t *testing.T) {
	gpu := []machine.Device{{Total: 16 << 30}}
	for _, tc := range []struct {
		name    string
		process machine.Process
		want    []string // the beginnings of the sentences
	}{
		{"nothing set", machine.Process{Frameworks: []string{"jax"}}, nil},
		{"a fraction", machine.Process{Frameworks: []string{"jax"}, Env: map[string]string{"XLA_CLIENT_MEM_FRACTION": ".5"}},
			[]string{"XLA_CLIENT_MEM_FRACTION=.5: 50 % of the total memory (jax "}},
		{"both names, and no fraction", machine.Process{Frameworks: []string{"jax"},
			Env: map[string]string{"XLA_CLIENT_MEM_FRACTION": "80", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}},
			[]string{"XLA_CLIENT_MEM_FRACTION=80: jax ", "XLA_CLIENT_MEM_FRACTION=80: "}},
		{"an older release", machine.Process{Frameworks: []string{"jax"}, Versions: map[string]string{"jax": "0.4.30"},
			Env: map[string]string{"XLA_CLIENT_MEM_FRACTION": ".8"}},
			[]string{"XLA_CLIENT_MEM_FRACTION=.8: this release does not read it"}},
		{"a word that is not read", machine.Process{Frameworks: []string{"tensorflow"}, Env: map[string]string{"TF_FORCE_GPU_ALLOW_GROWTH": "1"}},
			[]string{"TF_FORCE_GPU_ALLOW_GROWTH=1: '1' is not recognised"}},
		{"a key misspelt, of a process that shows no framework",
			machine.Process{Env: map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segment:True"}},
			[]string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segment:True: pytorch "}},
		{"two frameworks, each its own", machine.Process{Frameworks: []string{"jax", "pytorch"},
			Env: map[string]string{"XLA_PYTHON_CLIENT_PREALLOCATE": "off", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
			[]string{"XLA_PYTHON_CLIENT_PREALLOCATE=off: 'off' is not recognised", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := settingsOf(&machine.Snapshot{Devices: gpu, Process: &tc.process})
			if len(got) != len(tc.want) {
				t.Fatalf("%q, want %d", got, len(tc.want))
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("%q, want %q", got[i], want)
				}
			}
		})
	}
}

// TestNoLog: where no log was read, none is spoken of; the settings of the process are there.
func TestNoLog(t *testing.T) {
	state := &machine.Snapshot{Process: &machine.Process{PID: 7, Env: map[string]string{"TF_FORCE_GPU_ALLOW_GROWTH": "1"}}}
	a, err := Read(t.Context(), "", state, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := WriteText(&b, []Answer{a}, 80); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	if strings.Contains(got, "this log") || strings.Contains(got, "whole log") || !strings.Contains(got, "TF_FORCE_GPU_ALLOW_GROWTH=1") {
		t.Error(got)
	}
	if a.Log != "" || len(a.Certain) != 1 || a.Certain[0] != noLog {
		t.Errorf("%q, %q", a.Log, a.Certain)
	}
}
