package filekind

import (
	"bytes"
	"compress/gzip"
	"io"
	"runtime/pprof"
	"strings"
	"testing"
)

// goHeap is a heap profile of this program, unpacked.
func goHeap(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := pprof.WriteHeapProfile(&b); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

const packets = "\n\x04\x40\x05\x50\x01\n\x04\x40\x06\x50\x01\n\x04\x40\x07\x50\x01"

func TestFilesAreToldByHowTheyBegin(t *testing.T) {
	events := "\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK\x22\x09\x00\x00\xc0]\xe4\x4f\xda\x41\x1a\x0dbrain.Event:2"
	for _, test := range []struct {
		path, head, what string
		group            Group
	}{
		{"x", "\x89PNG\r\n\x1a\n\x00", "a picture (PNG)", Picture},
		{"x", "GGUF\x03\x00", "a model (GGUF)", Model},
		{"x", "\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02", "a file of torch.save, of releases before 1.6", Model},
		{"x", "PK\x03\x04\x00archive/data.pkl", "a file of torch.save", Model},
		{"x", "PK\x03\x04\x00", "an archive (zip)", Archive},
		{"x.whl", "PK\x03\x04\x00", "a wheel of Python", Wheel},
		{"x", "\x40\x01\x00\x00\x00\x00\x00\x00{\"a\":1}", "a model (safetensors)", Model},
		{"x", "\x08\x08\x12\x07pytorch\x1a\x052.4.0:", "a model (ONNX)", Model},
		{"x", events, "a file of events for TensorBoard", Profile},
		{"x", packets, "a trace for Perfetto (protocol buffers)", Profile},
		{"x", "memray\x00\x0b\x00", "a recording of memray, which is of the host's memory", Profile},
		{"x", `{"$schema":"https://www.speedscope.app/file-format-schema.json"`, "a profile of time for speedscope, as py-spy writes it", Profile},
		{"run.nsys-rep", "\x00\x01\x02", "a report of Nsight Systems", Profile},
		{"run.ncu-rep", "NVR\x00", "a report of Nsight Compute", Profile},
		{"x", "SQLite format 3\x00", "a database (SQLite), as Nsight Systems exports one", Profile},
		{"x", string(goHeap(t)), "a heap profile of a Go program (pprof), not of JAX", Profile},
		// What may be for gpumem.
		{"x", "", "", 0},
		{"x", "BZh is a name\n", "", 0},
		{"run.nsys-rep", "a 1 512\n", "", 0},
		{"x", packets[:12], "", 0},
		{"x", events[:20], "", 0},
		{"x", "\n\x04\x08\x01\x10\x02\n\x04\x08\x03\x10\x04\n\x04\x08\x03\x10\x04", "", 0}, // JAX's
		{"x", "\n\x65\x12\x10Task Environment*\x00", "", 0},                                // an xplane
	} {
		k, ok := Of(test.path, []byte(test.head))
		if k.What != test.what || k.Group != test.group || ok != (test.what != "") {
			t.Errorf("%s %.30q: %q of group %d, want %q of %d", test.path, test.head, k.What, k.Group, test.what, test.group)
		}
		if needs := k.Group == Profile && k.Next == "" || (k.Group == Packed || k.Group == Journal) && !strings.Contains(k.Tool, "FILE"); needs {
			t.Errorf("%s: nothing says what to do", k.What)
		}
	}
	for _, m := range magics {
		head := strings.Repeat("\x00", m.at) + m.bytes + "\x00"
		if k, ok := Of("x", []byte(head)); !ok || k != m.Kind {
			t.Errorf("%q: %q, want %q", head, k.What, m.What)
		}
	}
}

func FuzzOf(f *testing.F) {
	for _, m := range magics {
		f.Add("x", []byte(strings.Repeat("\x00", m.at)+m.bytes))
	}
	f.Add("x.nsys-rep", []byte(packets))
	f.Fuzz(func(t *testing.T, path string, head []byte) {
		if k, ok := Of(path, head); ok != (k.What != "") || strings.ContainsAny(k.What+k.Next+k.Tool, "\n\x00") {
			t.Errorf("%v %+v", ok, k)
		}
	})
}
