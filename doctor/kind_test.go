package doctor

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"gpumem/internal/filekind"
	"gpumem/internal/test/doctortest"
	"gpumem/record/formats"
)

// random are bytes of a generator of random numbers, as packed data look.
func random(n int) string {
	b, x := make([]byte, n), uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return string(b)
}

// wide is text in UTF-16 with its mark.
func wide(text string, order binary.AppendByteOrder) string {
	b := order.AppendUint16(nil, 0xfeff)
	for _, u := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, u)
	}
	return string(b)
}

const refused = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.44 GiB is free.\n"

// TestKinds: what is no log, and what reads it.
func TestKinds(t *testing.T) {
	noise := random(4096)
	elf := func(kind byte) string {
		return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + string(kind) + "\x00\x3e\x00"
	}
	for name, c := range map[string]struct{ content, want string }{
		"png":   {"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + noise, "a picture (PNG)"},
		"jpeg":  {"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + noise, "a picture (JPEG)"},
		"webp":  {"RIFF\x24\x00\x00\x00WEBPVP8 " + noise, "a picture (WebP)"},
		"pdf":   {"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj" + noise, "a PDF"},
		"video": {"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00" + noise, "a picture or video (MP4"},
		"zip":   {"PK\x03\x04\x14\x00\x00\x00\x08\x00train.log" + noise, "an archive (zip); unpack it"},
		"torch.save": {"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl" + noise,
			"a file of torch.save; gpumem reads no models; gpumem fit"},
		"wheel.whl":   {"PK\x03\x04\x14\x00\x00\x00\x08\x00jax/__init__.py" + noise, "a wheel of Python"},
		"npz":         {"PK\x03\x04\x14\x00\x00\x00\x00\x00x.npy" + noise, "arrays (NumPy)"},
		"tar":         {"train.log" + strings.Repeat("\x00", 248) + "ustar\x0000", "an archive (tar); unpack it"},
		"xz":          {"\xfd7zXZ\x00\x00\x04" + noise, "packed by xz; unpack it: xz -dc xz | gpumem doctor"},
		"zstd":        {"\x28\xb5\x2f\xfd\x04" + noise, "packed by zstd; unpack it"},
		"bzip2":       {"BZh91AY&SY" + noise, "packed by bzip2"},
		"elf":         {elf(2), "a program or library (ELF)"},
		"core":        {elf(4), "a core file; a debugger reads it"},
		"sqlite":      {"SQLite format 3\x00\x10\x00" + noise, "a database (SQLite), as Nsight Systems exports one; its allocations, "},
		"journal":     {"LPKSHHRH\x00\x00\x00\x00" + noise, "a journal of systemd; journalctl --file journal | gpumem doctor"},
		"safetensors": {"\x40\x01\x00\x00\x00\x00\x00\x00{\"__metadata__\":{\"format\":\"pt\"}}" + noise, "a model (safetensors)"},
		"gguf":        {"GGUF\x03\x00\x00\x00" + noise, "a model (GGUF)"},
		"onnx":        {"\x08\x08\x12\x07pytorch\x1a\x052.4.0:\xb2\x80" + noise, "a model (ONNX)"},
		"hdf5":        {"\x89HDF\r\n\x1a\n\x00" + noise, "data or a model (HDF5)"},
		"npy":         {"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}" + noise, "an array (NumPy)"},
		"event": {"\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK\x22\x09\x00\x00\xc0]\xe4\x4f\xda\x41\x1a\x0dbrain.Event:2" + noise,
			"a file of events for TensorBoard; it has curves"},
		"pickle": {"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
			"a pickle; those of torch.cuda.memory._dump_snapshot are for gpumem replay"},
		"module": {"HloModule step, is_scheduled=true\n\nENTRY main {\n",
			"a module of XLA; gpumem hlo module, gpumem remat module and gpumem fit module read it"},
		"stablehlo": {"module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n", "a module (StableHLO)"},
		"state": {"{\n  \"devices\": [\n    {\n      \"index\": 0,\n",
			"a state of gpumem ps --json; gpumem doctor --state state reads it, with a log or alone"},
		"text recording": {"# two blocks\na 1 512\na 2 512\nf 1\n",
			"a recording (text); gpumem replay 'text recording' and gpumem leaks 'text recording' read it"},
		"noise":             {noise, "no text"},
		"long noise":        {random(100_000), "no text"},
		"words in noise":    {noise + refused + noise, "no text"},
		"noise like a dump": {"\n\x03abc\x12" + noise + refused, "this is no text"},
		"zeros":             {strings.Repeat("\x00", 100_000), "this is no text"},
		"empty":             {"", "the log is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile(name, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Read(t.Context(), name, nil, nil, nil)
			if err == nil || !strings.HasPrefix(err.Error(), name+": ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %v", err)
			}
		})
	}
}

// TestRecordingsAndModules: every file that other tests of the project read is told, but for
// logs and dumps of pools.
func TestRecordingsAndModules(t *testing.T) {
	for pattern, want := range map[string]string{
		"../record/trace/testdata/*.pickle":       "a snapshot of PyTorch's memory; gpumem replay ",
		"../record/trace/testdata/*.pprof":        "a recording (pprof)",
		"../record/trace/testdata/kineto.json.gz": "a recording (kineto)",
		"../record/trace/testdata/timeline.*.gz":  "a recording (torch-timeline)",
		"../record/trace/testdata/*.xplane.pb*":   "a recording (xplane)",
		"../record/trace/testdata/rmm.csv":        "a recording (rmm)",
		"../record/trace/testdata/minimalloc*":    "a recording (minimalloc)",
		"../examples/*.txt.gz":                    "a recording (text)",
		"../xla/internal/load/testdata/*.pb":      "a module of XLA",
		"../xla/internal/load/testdata/*[01].txt": "a module of XLA",
		"../examples/step.hlo":                    "a module of XLA",
		"../record/trace/testdata/*.memdump":      "",
		"../record/trace/testdata/*.log*":         "",
		"../examples/crash.log":                   "",
		"../README.md":                            "",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			switch _, err := Read(t.Context(), file, nil, nil, nil); {
			case want == "" && err != nil:
				t.Error(err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: %v, want %s", file, err, want)
			}
		}
	}
}

// TestLogsStayLogs: bytes that logs have, though they are no plain text, and beginnings that are
// those of other files.
func TestLogsStayLogs(t *testing.T) {
	for name, log := range map[string]string{
		"plain":                     refused,
		"blanks alone":              " \n\t\n",
		"escapes alone":             "\x1b[0m\x1b[2K\r",
		"UTF-16, little":            wide(refused, binary.LittleEndian),
		"UTF-16, big":               wide(refused, binary.BigEndian),
		"UTF-16 without a mark":     strings.TrimPrefix(wide(refused, binary.LittleEndian), "\xff\xfe"),
		"UTF-16, big, without one":  strings.TrimPrefix(wide(refused, binary.BigEndian), "\xfe\xff"),
		"zeros before":              strings.Repeat("\x00", 5000) + refused,
		"zeros within":              strings.Repeat(refused, 3) + strings.Repeat("\x00", 100) + refused,
		"colours":                   strings.Repeat("\x1b[31m\x1b[1mE\x1b[0m\r", 40) + refused,
		"a prompt":                  "\x01\x1b[32m\x02$\x01\x1b[0m\x02 python train.py\n" + refused,
		"bells":                     strings.Repeat("\a\b", 100) + refused,
		"Latin-1":                   "M\xe9moire \xe9puis\xe9e\n" + refused,
		"GBK":                       strings.Repeat("\xcf\xd4\xb4\xe6\xb2\xbb\xd7\xe3 ", 100) + "\n" + refused,
		"a comment":                 "# nightly run\n" + refused,
		"lines like events":         "a 1 512\nf 1\n" + refused,
		"a blank line and a device": "\nCreated device /device:GPU:0 with 9 GiB\n" + refused,
		"GGUF":                      "GGUF version 3 (latest)\n" + refused,
		"BZh":                       "BZh is a name\n" + refused,
		"ftyp":                      "the ftyp box\n" + refused,
		"MZ":                        "MZ\n" + refused,
		"a module in the middle":    "compiling\nHloModule f\n" + refused,
		"mem-debug":                 "I0101 x.cc:1] [mem-debug] AllocateRaw,GPU_0_bfc,512,0x100,x\n" + refused,
		"a CSV":                     "time,step,loss\n1,2,3\n" + refused,
		"binary far behind":         strings.Repeat("step 1 loss 2.5\n", 5000) + random(1000) + "\n" + refused,
	} {
		path := filepath.Join(t.TempDir(), "train.log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := Read(t.Context(), path, nil, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if strings.HasPrefix(name, "UTF-16") && a.Verdict != VerdictNeeds {
			t.Errorf("%s is not decoded: %s", name, a.Verdict)
		}
	}
	cases := doctortest.Base()
	for _, c := range cases {
		if what := notLog(t.Context(), "train.log", []byte(c.Log)[:min(len(c.Log), maxHead)]); what != "" {
			t.Errorf("%s: %s", c.Name, what)
		}
	}
	for _, b := range doctortest.Breakages() {
		for _, c := range cases[:min(len(cases), 40)] {
			log := b.Apply(c.Log, 1)
			if what := notLog(t.Context(), "train.log", []byte(log)[:min(len(log), maxHead)]); what != "" {
				t.Errorf("%s, %s: %s", c.Name, b.Name, what)
			}
		}
	}
}

// FuzzKind: any bytes are told without a panic, in one line; text of printable lines that no
// reader takes is a log.
func FuzzKind(f *testing.F) {
	f.Add([]byte("\x89PNG\r\n\x1a\n"))
	f.Add([]byte(strings.Repeat("\x00", 257) + "ustar"))
	f.Add([]byte("\x7fELF\x02\x02"))
	f.Add([]byte("\x08\x08\x12\xff"))
	f.Add([]byte(refused))
	f.Fuzz(func(t *testing.T, head []byte) {
		what := notLog(context.Background(), "-", head)
		if strings.ContainsAny(what, "\n\x00") {
			t.Errorf("%q", what)
		}
		if len(head) > 0 && filekind.IsPlain(head) && what == "this is no log; it is no text; "+printed {
			t.Errorf("%q with no control character: %s", head, formats.All().Recognise(head))
		}
	})
}
