package formats

// Telling formats apart, and for the text of errors.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

func TestRecognise(t *testing.T) {
	var names []string
	for _, f := range All() {
		names = append(names, f.Name)
	}
	const converted = "\n\xef\xbf\xbd\xef\xbf\xbd\x06\x08\x02\x12\n/device:TPU:0"
	const log = "; the log of a program is for gpumem doctor"
	unknown := `not a recording that this version knows; it reads text (lines "a ID BYTES" and "f ID"), ` +
		strings.TrimPrefix(input.And(names), "text, ")
	for _, c := range []struct{ name, head, format, err string }{
		{"text", "a 0 1\n", "text", ""},
		{"text that begins with a free", "f 0\n", "text", ""},
		{"text with tabs", "\n# c\n \ta\t0\t1\n", "text", ""},
		{"text cut after the verb", "a", "text", ""},
		{"text with a byte order mark", "\xef\xbb\xbf# c\na 0 1\n", "text", ""},
		{"text behind a blank line", "\n\na 0 1\n", "text", ""},
		{"text behind a comment behind a blank line", "\n# comment of any length\na 0 1\n", "text", ""},
		{"only comments so far", strings.Repeat("# long preface\n", 100), "text", ""},
		{"pickle 2", "\x80\x02}", "torch", ""},
		{"pickle 5", "\x80\x05\x95", "torch", ""},
		{"empty", "", "", "in: the recording is empty: no events"},
		{"pickle of the future", "\x80\x06", "", "in: " + unknown},
		{"one odd byte", "\x80", "", "in: " + unknown},
		{"zip", "PK\x03\x04\x00", "", "in: this is no recording; it is an archive (zip); unpack it and name the recording in it"},
		{"a file of torch.save", "PK\x03\x04\x00\x00archive/data.pkl", "", "in: this is no recording; it is a file of torch.save; gpumem reads no models: gpumem fit -- COMMAND finds what a program needs with it, " +
			"and torch.cuda.memory._dump_snapshot writes a snapshot of PyTorch's memory"},
		{"a model", "GGUF\x03\x00\x00\x00", "", "in: this is no recording; it is a model (GGUF); gpumem reads no models: gpumem fit -- COMMAND finds what a program needs with it, " +
			"and torch.cuda.memory._dump_snapshot writes a snapshot of PyTorch's memory"},
		{"packed", "\xfd7zXZ\x00", "", "in: this is no recording; it is packed by xz; unpack it: xz -dc in | gpumem replay -"},
		{"memray", "memray\x00\x0b", "", "in: this is no recording; it is a recording of memray, which is of the host's memory; memray stats in reads it"},
		{"Perfetto", "\n\x04\x40\x05\x50\x01\n\x04\x40\x06\x50\x01\n\x04\x40\x07\x50\x01", "", "in: this is no recording; it is a trace for Perfetto (protocol buffers); " +
			"it has no allocations of a GPU that are read; of JAX the file HOST.xplane.pb beside it has them"},
		{"a page", "<html><head>\n", "", "in: this is no recording; it is a page (HTML); what it was drawn from is what is read, and of PyTorch's memory timeline NAME.raw.json.gz"},
		{"a drawing", "<?xml version=\"1.0\"?>\n", "", "in: this is no recording; it is XML, perhaps a drawing (SVG), as profilers of time make one"},
		{"nvidia-smi", "timestamp, memory.used [MiB]\n", "", "in: readings of nvidia-smi, and no recording; gpumem doctor in shows their peak and how they rise"},
		{"nsys", "start,deviceId,address,bytes,memoryOperationType\n1,0,2,3,0\n", "nsys", ""},
		{"xplane of a GPU", "\n\xa6\xa1\x87\x01\x12\x09/host:CPU", "xplane", ""},
		{"xplane of a TPU", "\n\xa7\xf4\x06\x08\x02\x12\r/device:TPU:0", "xplane", ""},
		{"xplane that begins with another plane", "\n\x65\x12\x10Task Environment\x2a", "xplane", ""},
		{"xplane taken for text", converted, "xplane", ""},
		{"pprof", "\n\x04\x08\x01\x10\x02\n\x04\x08\x03\x10\x04", "pprof", ""},
		{"pool dump", "\n\x09GPU_0_bfc\x12\x00", "memdump", ""},
		{"pool dump without bins", "\n\x09GPU_0_bfc\x1a\x02\x40\x01", "memdump", ""},
		{"a name alone", "\n\x09GPU_0_bfc", "", `in:2: "GPU_0_bfc": ` + unknown + log},
		{"only a tag of protocol buffers", "\n", "text", ""},
		{"rmm", "Thread,Time,Action,Pointer,Size,Stream\n", "rmm", ""},
		{"rmm with blanks and CR", " thread, time, action, pointer, size, stream \r\n", "rmm", ""},
		{"rmm without its header", "1979932,14:21:19.998533,allocate,0x30a000000,256,0x2\n", "rmm", ""},
		{"rmm that begins with a failure", "1,14:21:19.998533,allocate failure,(nil),256,0\n", "rmm", ""},
		{"minimalloc", "# c\nid,lower,upper,size\n", "minimalloc", ""},
		{"minimalloc with other names", "size,buffer,start,end,gaps\n", "minimalloc", ""},
		{"memdebug", "hello\n2026-01-01 12:00:00.123456: I x.cc:1] [mem-debug] DeallocateRaw,GPU_0_bfc,1,0x1,\n", "memdebug", ""},
		{"gpumem", "\x89gpumem\x01", "gpumem", ""},
		{"gpumem of the future", "\x89gpumem\x02", "gpumem", ""},
		{"other CSV", "a_column,another\n", "", `in:1: "a_column,another": ` + unknown + log},
		{"json", "{\"a\": 1}\n", "", `in:1: "{\"a\": 1}": ` + unknown + log},
		{"other words", "\n\nalloc 1 2\n", "", `in:3: "alloc 1 2": ` + unknown + log},
		{"other binary", "\x7fELF\x02\x01", "", "in: " + unknown},
		{"not UTF-8", "caf\xe9\n", "", "in: " + unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Every format is read by its name alone.
			name := ""
			reads := slices.Clone(all)
			for i, f := range reads {
				reads[i].Read = func(*input.Reader, *tape.Builder) error {
					name = f.Name
					return errors.New("read")
				}
			}
			_, err := reads.Read(context.Background(), strings.NewReader(c.head), "in", trace.Options{})
			if name != c.format {
				t.Fatalf("got %q, %v; want %q", name, err, c.format)
			}
			if c.err != "" {
				tracetest.WantInputError(t, err, c.err)
			}
		})
	}
}

// TestFormats: every format is in the documentation, with its name
// and its words.
func TestFormats(t *testing.T) {
	code, err := os.ReadFile("formats.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, _, _ := strings.Cut(string(code), "\npackage formats\n")
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "recording.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range All() {
		if !strings.Contains(doc, "\n// "+strconv.Quote(f.Name)+": ") {
			t.Errorf("the package's documentation has no %s", f.Name)
		}
		if !strings.Contains(string(page), "| `"+f.Name+"` | "+f.What+" |") {
			t.Errorf("docs/recording.md has no row for %s, %s", f.Name, f.What)
		}
	}
}
