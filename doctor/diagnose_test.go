package doctor

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"gpumem/internal/test/doctortest"
	"gpumem/internal/test/golden"
	"gpumem/node/machine"
)

// FuzzDiagnose: any bytes, with any state that can be read, get an answer that
// keeps its promises, the same one twice.
func FuzzDiagnose(f *testing.F) {
	for i, c := range doctortest.Base() {
		if i%5 == 0 {
			f.Add([]byte(c.Log), []byte(c.State))
		}
	}
	for _, cases := range readStored(f) {
		for _, c := range cases {
			f.Add([]byte(c.log), []byte(c.state))
		}
	}
	f.Fuzz(func(t *testing.T, log, state []byte) {
		s, err := machine.Read(strings.NewReader(string(state)))
		if err != nil {
			s = nil
		}
		d, err := Diagnose(strings.NewReader(string(log)), s)
		if err != nil {
			t.Fatal(err)
		}
		if err := sound(d, string(log)); err != nil {
			t.Error(err)
		}
		first, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		d, _ = Diagnose(strings.NewReader(string(log)), s)
		if second, _ := json.Marshal(d); string(first) != string(second) {
			t.Errorf("%s\nand then\n%s", first, second)
		}
	})
}

// TestDiagnoseEdges are logs that no program printed like this.
func TestDiagnoseEdges(t *testing.T) {
	const cudnn = "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED\n"
	tests := []struct {
		name, log, state string
		verdict          Verdict
		first            CauseID // empty: any
	}{
		{"nothing", "", "", VerdictUnknown, ""},
		{"a blank line", "\n", "", VerdictUnknown, ""},
		{"no newline", strings.TrimSpace(cudnn), "", VerdictNeeds, ""},
		{"zero bytes", "\x00\x00\x00\x00" + cudnn, "", VerdictNeeds, ""},
		{"not UTF-8", "\xfd\xff\xc3" + cudnn, "", VerdictNeeds, ""},
		{"UTF-16", utf16le(cudnn), "", VerdictNeeds, ""},
		{"an empty state", cudnn, "{}", VerdictNeeds, ""},
		{"a state of no GPU", cudnn, `{"devices": []}`, VerdictNeeds, ""},
		{"a state without a log", "", `{"devices": [{"total_bytes": 8589934592, "processes": [{"pid": 1, "used_bytes": 8000000000}]}]}`,
			VerdictAccount, ""},
		{"sizes at the end of 64 bits", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 18446744073709551615 bytes.\n", "",
			VerdictNotMemory, NotMemory},
		{"one byte on a GPU of one byte", "RESOURCE_EXHAUSTED: Failed to allocate request for 1B (1B) on device ordinal 0\n",
			`{"devices": [{"total_bytes": 1, "processes": []}]}`, "", ""},
		{"the failure is in the last of many lines", strings.Repeat("step 1, loss 0.5\n", 10_000) + cudnn, "", VerdictNeeds, ""},
		{"a warning before it", "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.\n" + cudnn, "", VerdictNeeds, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, tt.state)
			if tt.verdict != "" && d.Verdict != tt.verdict || tt.first != "" && d.Causes[0].ID != tt.first {
				t.Errorf("%s", inWords(d))
			}
		})
	}
}

// utf16le is ASCII text as PowerShell redirects it.
func utf16le(text string) string {
	b := []byte{0xff, 0xfe}
	for i := range len(text) {
		b = append(b, text[i], 0)
	}
	return string(b)
}

// TestTwoPrograms: the lines of two programs in one log do not mix.
func TestTwoPrograms(t *testing.T) {
	log := `[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 120.00 MiB is free. Including non-PyTorch memory, this process has 23.40 GiB memory in use. Of the allocated memory 22.80 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.65 GiB of which 180.00 MiB is free. Including non-PyTorch memory, this process has 23.30 GiB memory in use. Of the allocated memory 22.70 GiB is allocated by PyTorch, and 90.00 MiB is reserved by PyTorch but unallocated.
`
	d := diagnose(t, log, "")
	if d.Verdict != VerdictCause || d.Causes[0].ID != ProgramTooBig {
		t.Errorf("%s", inWords(d))
	}
}

// TestLineOrder: what decides does not depend on lines that say nothing, wherever
// they stand.
func TestLineOrder(t *testing.T) {
	for _, c := range doctortest.Base() {
		var b strings.Builder
		for _, line := range strings.SplitAfter(c.Log, "\n") {
			b.WriteString(line)
			if strings.HasSuffix(line, "\n") && !strings.Contains(c.Log, "nvidia-smi") && !strings.Contains(line, "MiB") {
				b.WriteString("epoch 3, loss 0.25\n")
			}
		}
		plain, padded := diagnose(t, c.Log, c.State), diagnose(t, b.String(), c.State)
		if plain.Verdict != padded.Verdict || !slices.Equal(ids(plain), ids(padded)) {
			t.Errorf("%s: %s %v, and with lines between %s %v", c.Name, plain.Verdict, ids(plain), padded.Verdict, ids(padded))
		}
	}
}

func TestDiagnoseErrors(t *testing.T) {
	broken := errors.New("the disk is gone")
	for _, r := range []io.Reader{iotest.ErrReader(broken),
		io.MultiReader(strings.NewReader("Allocator (GPU_0_bfc) ran out of memory\n"), iotest.ErrReader(broken))} {
		if d, err := Diagnose(r, nil); !errors.Is(err, broken) || d != nil {
			t.Errorf("%v, %v", d, err)
		}
	}
	d, err := Diagnose(iotest.OneByteReader(strings.NewReader("Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED\n")), nil)
	if err != nil || d.Verdict != VerdictNeeds {
		t.Errorf("%v, %v", d, err)
	}
}

// TestBinaryDump: a dump that has no lines says how the pool was.
func TestBinaryDump(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(golden.Dir(), "bfc", "golden", "oom_small.prealloc.memdump.pb"))
	if err != nil {
		t.Fatal(err)
	}
	d := diagnose(t, string(text), "")
	const want = "the dumped pool has 1 MiB, of which 258 KiB is in use and 766 KiB free, in pieces of 406.50 KiB at most"
	if d.Verdict != VerdictUnknown || d.Dump == nil || !slices.Equal(d.Certain, []string{want}) {
		t.Error(inWords(d))
	}
}
