package fit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/record/trace"
)

// TestProcessWithoutItsGPUsIsLost: of several processes one whose GPUs are not known would be left out in silence. A program of
// one process needs them not.
func TestProcessWithoutItsGPUsIsLost(t *testing.T) {
	recording, err := os.ReadFile("../trace/testdata/torch2023.pickle")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		processes int
		known     int // of them, from the first on
		lost      bool
	}{{1, 0, false}, {2, 2, false}, {2, 1, true}, {2, 0, true}} {
		folder := t.TempDir()
		r := &ran{folder: folder, found: filepath.Join(folder, "found"), uuids: []string{"aa", "bb"}}
		for i := range tc.processes {
			write := func(name, text string) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf(name, 11+i)), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("record.%d", "")
			write("found.%d.torch", string(recording))
			if i < tc.known {
				write("whole.%d", "gpu 0 aa 1790000000000000000\n")
			}
		}
		if err := r.find(); err != nil {
			t.Fatal(err)
		}
		if err := r.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r.lost != tc.lost {
			t.Errorf("%d processes, the GPUs of %d known: lost %v", tc.processes, tc.known, r.lost)
		}
		r.close()
	}
}

// TestServedBeyond: whoever was refused memory counts, and no other; all do if it is not known who was.
func TestServedBeyond(t *testing.T) {
	beyond, card := &process{beyond: true}, &process{}
	beyondRefused, cardRefused := &process{beyond: true, trace: &trace.Trace{Refused: 1}}, &process{trace: &trace.Trace{Refused: 1}}
	noContext := &process{refused: true}
	for i, tc := range []struct {
		processes []*process
		want      bool
	}{
		{nil, false},
		{[]*process{beyond}, true},
		{[]*process{beyond, card}, false},
		{[]*process{beyondRefused, card}, true},
		{[]*process{beyond, cardRefused}, false},
		{[]*process{beyondRefused, cardRefused}, false},
		{[]*process{beyondRefused, noContext}, false},
	} {
		if got := (&ran{processes: tc.processes}).servedBeyond(); got != tc.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}

// TestDamagedLine: a line of whole.PID that was cut or overwritten was read as zeros: as GPU 0, or as an end in 1970.
func TestDamagedLine(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		ok         bool
	}{
		{"whole", "gpu 0 aa 1790000000000000000\ngpu 12 bb 1790000000000000001\nend 1790000000000000002\n", true},
		{"another run's GPU", "gpu 0 cc 1790000000000000000\n", true},
		{"no text", "", true},
		{"a time that is cut", "gpu 0 aa 17900000\n", false},
		{"an end that is cut", "gpu 0 aa 1790000000000000000\nend 1790000000000000002", false},
		{"no time", "gpu 0 aa\n", false},
		{"no number", "gpu x aa 1790000000000000000\n", false},
		{"zeros", "\x00\x00\x00\x00\n", false},
		{"another word", "gpus 0 aa 1790000000000000000\n", false},
		{"a blank line", "\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := t.TempDir()
			r := &ran{folder: folder, found: filepath.Join(folder, "found"), uuids: []string{"aa", "bb"}}
			for name, text := range map[string]string{"record.7": "", "whole.7": tc.text} {
				if err := os.WriteFile(r.file(name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.find(); (err == nil) != tc.ok || err != nil && !strings.Contains(err.Error(), "process 7: whole.7 is damaged") {
				t.Error(err)
			}
		})
	}
}

// TestContextAlone: a process that asks PyTorch for its GPU and takes nothing of it is no error beside others.
func TestContextAlone(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "found.1.torch")
	if err := os.WriteFile(empty, []byte("\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]]au."), 0o600); err != nil {
		t.Fatal(err)
	}
	gpus := []usedGPU{{0, 0}}
	r := &ran{processes: []*process{{pid: 1, record: empty}, {pid: 2, record: "../trace/testdata/torch2023.pickle", gpus: gpus}}}
	defer r.close()
	if err := r.read(t.Context()); err != nil || r.lost || r.processes[0].trace != nil || r.processes[1].trace == nil {
		t.Errorf("%v: %+v", err, r)
	}
}
