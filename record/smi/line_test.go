package smi

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestLinesOfTablesBelongToThem goes by the frame: from the heading on, what begins with a
// bar or a corner is the table's.
func TestLinesOfTablesBelongToThem(t *testing.T) {
	files, _ := filepath.Glob("testdata/table-*.txt")
	for _, file := range files {
		text, _ := sampleOf(t, file)
		var r Reader
		begun := false
		for i, line := range strings.Split(text, "\n") {
			begun = begun || strings.Contains(line, "NVIDIA-SMI")
			framed := strings.HasPrefix(line, "|") || strings.HasPrefix(line, "+--")
			if got := r.Line(i+1, line); begun && got != framed && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "INFO") {
				t.Errorf("%s: line %d belongs: %v, want %v: %s", file, i+1, got, framed, line)
			}
		}
	}
}

// TestLinesOfLogsDoNotBelong has what looks like a part of some form.
func TestLinesOfLogsDoNotBelong(t *testing.T) {
	for _, line := range []string{
		"",
		"|",
		"+",
		"||",
		"| step | loss |",
		"| 1 | 5MiB / 10MiB | x |",
		"|------|------|",
		"+------+",
		"INFO 2024-01-01 GPU memory 12 MiB",
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB",
		"GPU 0: training",
		"GPU (UUID: )",
		"GPU[0]: done",
		"    Total : 5 MiB",
		"# gpu memory is low",
		"# Time to use the gpu",
		"a, b, memory.x",
		"values: memory.used",
		"10 MiB, 20 MiB",
		"downloaded 300MiB / 400MiB of the model",
		"python train.py --query-gpu=memory.used",
		"run(['nvidia-smi', '--query-compute-apps=pid,used_memory'])",
		"Fri Apr 18 12:26:18 2014",
		strings.Repeat("|", 5000),
	} {
		var r Reader
		if r.Line(1, line) {
			t.Errorf("belongs: %.80s", line)
		}
		if got := r.Readings(); len(got) != 0 {
			t.Errorf("%.80s: %d readings", line, len(got))
		}
	}
}

// TestLinesInBarsAfterATableDoNotBelong has a training log that prints bars itself.
func TestLinesInBarsAfterATableDoNotBelong(t *testing.T) {
	text, _ := sampleOf(t, "testdata/table-580-exclusive.txt")
	var r Reader
	n := 0
	for line := range strings.Lines(text) {
		n++
		r.Line(n, line)
	}
	for i := range 100 {
		n++
		if r.Line(n, fmt.Sprintf(" iteration %d/ 1000 | elapsed time per iteration (ms): 1210.1 | lm loss: 7.28 | number of nan iterations: 0 |", i)) {
			t.Fatalf("line %d belongs", n)
		}
	}
}

// TestTwoTablesAreTwoReadings takes a table twice, the second without its heading.
func TestTwoTablesAreTwoReadings(t *testing.T) {
	text, _ := sampleOf(t, "testdata/table-361-two-gpus.txt")
	lines := strings.Split(text, "\n")
	for name, second := range map[string][]string{"whole": lines, "from the first GPU": lines[7:], "from the processes": lines[13:]} {
		got, err := Read(strings.NewReader(text + strings.Join(second, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		want := 2
		if name == "from the processes" { // nothing says that they are another run's
			want = 1
		}
		if len(got) != want {
			t.Errorf("%s: %d readings, want %d", name, len(got), want)
		}
	}
}

// TestMemoryIsBounded reads what would take gigabytes if all was kept.
func TestMemoryIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	var r Reader
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	for i := range 40000 {
		n++
		r.Line(n, fmt.Sprintf("|   %d  NVIDIA %s  On | 00000000:10:1C.0 Off |  0 |", i%3000, strings.Repeat("X", 1000)))
		n++
		r.Line(n, fmt.Sprintf("|   %d   N/A  N/A  %d  C  %s  1MiB |", i%3000, i, strings.Repeat("Y", 1000)))
	}
	got := r.Readings()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(got) > maxReadings {
		t.Errorf("%d readings", len(got))
	}
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 64<<20 {
		t.Errorf("%d MiB are held", held>>20)
	}
	runtime.KeepAlive(&r)
}

// TestLongRecordingKeepsItsEndsAndTables thins a recording with a table in its middle.
func TestLongRecordingKeepsItsEndsAndTables(t *testing.T) {
	var b strings.Builder
	b.WriteString("index, memory.used [MiB], memory.total [MiB]\n")
	rows := func(from, to int) {
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, "0, %d MiB, 80000 MiB\n", i)
		}
	}
	rows(0, 5000)
	b.WriteString("| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: 13.0 |\n")
	rows(5000, 20000)
	got, err := Read(strings.NewReader(b.String()))
	if err != nil || len(got) > maxReadings || len(got) < maxReadings/4 {
		t.Fatalf("%d readings, %v", len(got), err)
	}
	first, last, tables := got[0].GPUs[0].Used>>20, got[len(got)-1].GPUs[0].Used>>20, 0
	for i, r := range got {
		if r.Driver == "580.1" {
			tables++
		}
		if i > 0 && r.Line <= got[i-1].Line {
			t.Fatalf("line %d follows line %d", r.Line, got[i-1].Line)
		}
	}
	if first != 0 || last != 19999 || tables != 1 {
		t.Errorf("first %d, last %d, %d tables; want 0, 19999, 1", first, last, tables)
	}
}

// check holds what any reading must: positions that were given, in order.
func check(t *testing.T, lines int, readings []Reading) {
	for _, r := range readings {
		if r.Line < 1 || r.Line > lines || r.Tool == "" {
			t.Errorf("reading of %q at line %d of %d", r.Tool, r.Line, lines)
		}
		for _, g := range r.GPUs {
			placed := g.Line >= r.Line && g.Line <= lines && g.HasUsed == (g.UsedLine > 0)
			if !placed || !g.HasUsed && g.Used != 0 {
				t.Errorf("GPU %+v of a reading at line %d", g, r.Line)
			}
			for _, p := range g.Processes {
				if p.Line < r.Line || p.Line > lines || p.PID < 0 {
					t.Errorf("process %+v of a reading at line %d", p, r.Line)
				}
			}
		}
	}
}

func seeds(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		text, _ := sampleOf(f, file)
		f.Add(text)
	}
}

func FuzzRead(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Read(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		check(t, strings.Count(text, "\n")+1, got)
		sums, err := Summary(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sums {
			if s.Peak < s.First || s.Peak < s.Last || s.Samples < 2 || s.LastOver > s.Over {
				t.Errorf("%+v", s)
			}
		}
	})
}

// FuzzLine gives the same lines with others between them: nothing is read that is not
// there, and the numbers of lines are those that were given.
func FuzzLine(f *testing.F) {
	seeds(f)
	f.Add("GPU 000000 VRAM_USED 000")
	f.Add("in\x00\x00\x03\xe8 memory.used [MiB], m")
	f.Fuzz(func(t *testing.T, text string) {
		var r Reader
		n := 0
		for _, line := range strings.Split(text, "\n") {
			n++
			r.Line(n, line)
			n++
			if r.Line(n, "loss 0.5, memory fine") {
				t.Errorf("line %d belongs", n)
			}
			if n%1024 == 0 {
				check(t, n, r.Readings())
			}
		}
		check(t, n, r.Readings())
		r.Summary()
	})
}

// BenchmarkLog is a log without a table, in lines such as frameworks write.
func BenchmarkLog(b *testing.B) {
	lines := []string{
		"2024-06-01 11:27:05.177 INFO trainer step 1234/10000 loss 0.4321 lr 1.0e-05 memory 23.1 GiB",
		"[rank3]:   File \"/opt/example/lib/python3.10/site-packages/torch/nn/modules/module.py\", line 1518, in _wrapped_call_impl",
		"[rank3]:     return self._call_impl(*args, **kwargs)",
		"2024-06-01 11:27:06.300 WARNING GPU 0 utilisation is low, batch 12, samples/s 100.2",
		"W0000 00:00:1718612345.123456   12345 gpu_backend_lib.cc:579] Can't find libdevice directory ${CUDA_DIR}/nvvm/libdevice.",
		"",
		"Epoch 3:  45%|████▌     | 4501/10000 [12:34<15:20,  5.97it/s, loss=0.31]",
	}
	size := 0
	for _, l := range lines {
		size += len(l) + 1
	}
	b.SetBytes(int64(size))
	var r Reader
	n := 0
	for b.Loop() {
		for _, l := range lines {
			n++
			r.Line(n, l)
		}
	}
}

func TestUsageIsOfATotal(t *testing.T) {
	for _, c := range []struct {
		text        string
		used, total uint64
	}{
		{"10MiB / 15079MiB", 10 << 20, 15079 << 20},
		{"10 MiB / 15079 MiB", 10 << 20, 15079 << 20},
		{"10 MB / 15079 MB", 10 << 20, 15079 << 20},
		{"3% 10MB / 15079MB", 10 << 20, 15079 << 20}, // driver 304
		{"16W / 70W", 0, 0},
		{"10MiB", 0, 0},
		{"N/A / 15079MiB", 0, 0},
		{"0MiB / 0MiB", 0, 0},
	} {
		used, total, ok := usage(c.text)
		if ok != (c.total > 0) || ok && (used != c.used || total != c.total) {
			t.Errorf("%q: %d of %d, %v", c.text, used, total, ok)
		}
	}
}
