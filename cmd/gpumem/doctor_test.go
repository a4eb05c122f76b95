package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/bfc"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/doctor"
	"gpumem/internal/test/doctortest"
	"gpumem/machine"
	"gpumem/machine/probe"
)

// TestDoctorJSON: every field of the contract is there, whatever the verdict,
// and nothing is null.
func TestDoctorJSON(t *testing.T) {
	for name, d := range diagnoses(t) {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := writeDoctorJSON(&b, []diagnosed{{"train.log", d}}); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(b.String(), "{\n  \"verdict\": ") || strings.Contains(b.String(), `\u003`) {
				t.Errorf("%s", b.String())
			}
			var top map[string]any
			if err := json.Unmarshal(b.Bytes(), &top); err != nil {
				t.Fatal(err)
			}
			noNull(t, name, top)
			wantKeys(t, top, "verdict", "causes", "missing", "decide", "certain", "log")
			for _, c := range top["causes"].([]any) {
				c := c.(map[string]any)
				wantKeys(t, c, "id", "title", "evidence", "settings", "steps")
				for _, e := range c["evidence"].([]any) {
					wantKeys(t, e.(map[string]any), "line", "text", "reading")
				}
				for _, s := range c["settings"].([]any) {
					wantKeys(t, s.(map[string]any), "name", "value", "why")
				}
			}
			if _, there := top["dump"]; there != (d.Dump != nil) {
				t.Errorf("dump: %v", top["dump"])
			}
			if d.Dump == nil {
				return
			}
			pool := top["dump"].(map[string]any)
			wantKeys(t, pool, "allocator", "request", "limit_bytes", "pool_bytes", "in_use_bytes", "free_bytes", "largest_free_bytes",
				"fragmentation", "chunks", "complete", "notes", "rows", "line", "dumps")
			wantKeys(t, pool["request"].(map[string]any), "bytes", "rounded", "op")
			got, err := json.Marshal(pool["rows"])
			if err != nil {
				t.Fatal(err)
			}
			if want := `[{"bytes":2048,"count":1,"size":2048},{"bytes":1024,"count":1,"size":1024}]`; string(got) != want {
				t.Errorf("rows %s, want %s", got, want)
			}
			if pool["chunks"] != 4.0 || pool["in_use_bytes"] != 3072.0 || pool["free_bytes"] != 5120.0 || pool["largest_free_bytes"] != 4096.0 || pool["complete"] != true {
				t.Errorf("%v", pool)
			}
		})
	}
	var b bytes.Buffer
	d := &doctor.Diagnosis{Verdict: doctor.VerdictUnknown}
	if err := writeDoctorJSON(&b, []diagnosed{{"a", d}, {"b", d}}); err != nil {
		t.Fatal(err)
	}
	var list []struct{ Log, Verdict string }
	if err := json.Unmarshal(b.Bytes(), &list); err != nil || len(list) != 2 || list[1].Log != "b" || list[1].Verdict != "unknown" {
		t.Errorf("%v, %v", list, err)
	}
}

func wantKeys(t *testing.T, object map[string]any, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, ok := object[k]; !ok {
			t.Errorf("no %s in %v", k, object)
		}
	}
}

func noNull(t *testing.T, at string, v any) {
	t.Helper()
	switch v := v.(type) {
	case nil:
		t.Errorf("%s is null", at)
	case map[string]any:
		for k, e := range v {
			noNull(t, at+"."+k, e)
		}
	case []any:
		for i, e := range v {
			noNull(t, fmt.Sprint(at, ".", i), e)
		}
	}
}

// TestDoctorScreen: the answer to every kind of failure that there is a log of
// fits on a screen, with what a dump shows. So do those to logs of third
// parties, where there are some beside the checkout.
func TestDoctorScreen(t *testing.T) {
	logs := doctortest.Base()
	files, err := filepath.Glob("../../../shared/data/oomlogs/*.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		log, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		state, _ := os.ReadFile(strings.TrimSuffix(file, ".log") + ".state.json")
		logs = append(logs, doctortest.Case{Name: file, Log: string(log), State: string(state)})
	}
	for _, c := range logs {
		for _, state := range []string{"", c.State} {
			var known *machine.Snapshot
			if state != "" {
				var err error
				if known, err = machine.Read(strings.NewReader(state)); err != nil {
					t.Fatal(err)
				}
			}
			d, err := doctor.Diagnose(strings.NewReader(c.Log), known)
			if err != nil {
				t.Fatal(err)
			}
			for _, width := range []int{80, 100} {
				if text := onScreen(diagnosed{"train.log", d}, width); strings.Count(text, "\n") > screenLines {
					t.Errorf("%s: more than %d lines\n%s", c.Name, screenLines, text)
				}
			}
		}
	}
}

// TestDoctorLogs: which logs are read, and which words do not go together.
func TestDoctorLogs(t *testing.T) {
	for _, tc := range []struct {
		name     string
		flags    doctorFlags
		files    []string
		terminal bool
		want     string // of the logs, or the beginning of the error
	}{
		{"a file", doctorFlags{}, []string{"a"}, true, "[a]"},
		{"several", doctorFlags{}, []string{"b", "a", "-"}, false, "[b a -]"},
		{"a pipe", doctorFlags{}, nil, false, "[-]"},
		{"pasted", doctorFlags{}, []string{"-"}, true, "[-]"},
		{"nothing", doctorFlags{}, nil, true, "no log: name its FILE"},
		{"a state alone", doctorFlags{state: "s"}, nil, true, "no log: name its FILE"},
		{"the machine alone", doctorFlags{machine: true}, nil, true, "[]"},
		{"a process alone", doctorFlags{hasPID: true}, nil, true, "[]"},
		{"the machine and a pipe", doctorFlags{machine: true}, nil, false, "[-]"},
		{"two machines", doctorFlags{machine: true, state: "s"}, []string{"a"}, false, "--state is of"},
		{"two machines by process", doctorFlags{hasPID: true, state: "s"}, []string{"a"}, false, "--state is of"},
		{"a device of no machine", doctorFlags{devices: []string{"cuda:0"}}, []string{"a"}, false, "--device says"},
		{"a state from stdin", doctorFlags{state: "-"}, []string{"a"}, false, "[a]"},
		{"both from stdin", doctorFlags{state: "-"}, nil, false, "--state -: standard input"},
		{"stdin twice", doctorFlags{}, []string{"-", "a", "-"}, false, "- is standard input"},
		{"a trace of two", doctorFlags{save: "t"}, []string{"a", "b"}, false, "--save-trace saves the pool of one log"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			logs, err := tc.flags.logs(tc.files, tc.terminal)
			got := fmt.Sprint(logs)
			if err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, tc.want) || err == nil && got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestOpenLog(t *testing.T) {
	dir := t.TempDir()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(bytes.Repeat([]byte("text of some length, not always the same\n"), 5000)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(zipped.Bytes())
	damaged[len(damaged)/2] ^= 0xff
	for _, tc := range []struct {
		name    string
		content []byte
		want    string // the error's words
		bytes   int64
		strange bool
	}{
		{"plain", []byte("text\n"), "", 5, false},
		{"empty", nil, "", 0, false},
		{"one byte", []byte("x"), "", 1, false},
		{"rubbish", []byte("a\x00b"), "", 3, true},
		{"gzip", zipped.Bytes(), "", 41 * 5000, false},
		{"cut", zipped.Bytes()[:zipped.Len()-20], "the gzip data is cut short", 0, false},
		{"head", zipped.Bytes()[:5], "the gzip data is cut short", 0, false},
		{"damaged", damaged, "the gzip data is damaged", 0, false},
		{"no gzip", []byte{0x1f, 0x8b, 'x', 'y', 0, 0, 0, 0, 0, 0, 0}, "the gzip data is damaged", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, tc.name)
			if err := os.WriteFile(path, tc.content, 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := openLog(t.Context(), path, "a log", newProgress(io.Discard))
			if err == nil {
				defer l.Close()
				_, err = io.Copy(io.Discard, struct{ io.Reader }{l})
				if fmt.Sprint(err) != fmt.Sprint(l.failed) {
					t.Errorf("%v, and failed %v", err, l.failed)
				}
			}
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "":
				if l.size != tc.bytes || l.strange != tc.strange {
					t.Errorf("%d bytes, strange %v", l.size, l.strange)
				}
			case err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), tc.want):
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}

	// An interrupt ends a file in its middle.
	ctx, cancel := context.WithCancel(t.Context())
	l, err := openLog(ctx, filepath.Join(dir, "gzip"), "a log", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cancel()
	if _, err := l.Read(make([]byte, 10)); !errors.Is(err, context.Canceled) || !errors.Is(l.failed, context.Canceled) {
		t.Error(err)
	}
}

// TestDoctorSaveTrace: replay rebuilds the pool, as many bytes of it in use.
func TestDoctorSaveTrace(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 8 << 20, Granularity: 1})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := bfc.New(dev, bfc.Config{Limit: 5 << 20, Spatial: true})
	if err != nil {
		t.Fatal(err)
	}
	var blocks []alloc.Block
	for i := range 40 {
		r := alloc.Request{Bytes: uint64(1+i*7%11) << 10}
		if i%3 == 0 {
			r.End = alloc.Upper
		}
		b, err := pool.Alloc(r)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	for i := 0; i < len(blocks); i += 4 {
		if err := pool.Free(blocks[i]); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"small": smallDump, "two ends": pool.Report(alloc.Request{Bytes: 1 << 30}).String()} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "it's a pool.txt")
			d := diagnosed{"train.log", &doctor.Diagnosis{Dump: readDump(t, text)}}
			note, err := saveTrace(t.Context(), path, d)
			if err != nil {
				t.Fatal(err)
			}
			want := path + ": the pool as it was dumped; go on: gpumem replay " + shellQuote(path) + " --policy bfc:limit="
			if !strings.HasPrefix(note, want) {
				t.Errorf("%s, want %s", note, want)
			}
			args := append([]string{"replay", path, "--json"}, strings.Fields(replayFlags(d.Dump))...)
			var out, errs bytes.Buffer
			if code := run(t.Context(), args, &out, &errs); code != 0 || errs.Len() > 0 {
				t.Fatalf("status %d, %s", code, errs.String())
			}
			var got struct {
				Results []struct {
					Stats struct {
						InUse   uint64 `json:"bytes_in_use"`
						Pool    uint64 `json:"pool_bytes"`
						Largest uint64 `json:"largest_free_block_bytes"`
					}
				}
			}
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if s := got.Results[0].Stats; s.InUse != d.Dump.InUse || s.Pool != d.Dump.Pool || s.Largest != d.Dump.LargestFree {
				t.Errorf("%+v, want %d in use of %d, the largest hole %d", s, d.Dump.InUse, d.Dump.Pool, d.Dump.LargestFree)
			}
		})
	}
}

// TestDoctorNothingToSave: no file is made.
func TestDoctorNothingToSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.txt")
	sums := smallDump[strings.Index(smallDump, "     Summary"):]
	first, _, _ := strings.Cut(smallDump, "\n")
	for want, d := range map[string]diagnosed{
		"train.log: no dump":     {"train.log", &doctor.Diagnosis{}},
		"--save-trace: no dump":  {"", &doctor.Diagnosis{}},
		"train.log: the dump ha": {"train.log", &doctor.Diagnosis{Dump: readDump(t, first+"\n"+sums)}},
	} {
		if _, err := saveTrace(t.Context(), path, d); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: the file was made", want)
		}
	}
	// A dump that is not whole is saved as far as it goes.
	lines := strings.Split(smallDump, "\n")
	cut := strings.Join(append(lines[:3:3], lines[4:]...), "\n")
	note, err := saveTrace(t.Context(), path, diagnosed{"train.log", &doctor.Diagnosis{Dump: readDump(t, cut)}})
	if err != nil || !strings.Contains(note, "what is left of the pool") {
		t.Errorf("%s, %v", note, err)
	}
}

func TestWriteWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	hello := func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }
	left := func(want int) {
		t.Helper()
		if list, err := os.ReadDir(dir); err != nil || len(list) != want {
			t.Errorf("%d files, want %d, %v", len(list), want, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := writeWhole(ended, path, hello); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	broken := errors.New("no space left")
	if err := writeWhole(t.Context(), path, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	left(0)
	for range 2 { // made, and replaced
		if err := writeWhole(t.Context(), path, hello); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	left(1)
	if err := writeWhole(t.Context(), filepath.Join(dir, "none", "file"), hello); err == nil || !strings.Contains(err.Error(), "cannot be made: ") {
		t.Error(err)
	}
	if err := writeWhole(t.Context(), dir, hello); err == nil {
		t.Error("a directory was replaced")
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Symlink(path, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(t.Context(), filepath.Join(dir, "link"), func(io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
	left(2)
	if err := writeWhole(t.Context(), os.DevNull, hello); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(os.DevNull); err != nil || st.Mode().IsRegular() {
		t.Fatalf("%v, %v", st, err)
	}
}

// TestDoctorNoGPU: without a GPU nothing is known of one; a simulated one that is
// named is evidence.
func TestDoctorNoGPU(t *testing.T) {
	t.Setenv(open.EnvVar, "")
	state, notes, err := (&doctorFlags{machine: true}).readMachine()
	if err != nil {
		t.Fatal(err)
	}
	if _, driver, _ := probe.Devices(nil); !driver.Up && (len(state.Devices) > 0 || len(notes) != 1 || !strings.HasPrefix(notes[0], "this machine shows no GPU")) {
		t.Errorf("%v, %q", state.Devices, notes)
	}
	t.Setenv(open.EnvVar, "sim:24GiB,used=20GiB,display=1GiB")
	state, _, err = (&doctorFlags{machine: true}).readMachine()
	if err != nil {
		t.Fatal(err)
	}
	d := state.Devices[len(state.Devices)-1]
	if d.Total != 24<<30 || d.InUse() != 21<<30 || !d.Display {
		t.Errorf("%+v", d)
	}
}

func TestDoctorOutputFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.log")
	if err := os.WriteFile(path, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"doctor", path}, {"doctor", path, "--json"}} {
		var errs bytes.Buffer
		if code := run(t.Context(), args, failing{}, &errs); code != exitUsage || errs.String() != "gpumem: no space left\n" {
			t.Errorf("%v: status %d, stderr %q", args, code, errs.String())
		}
	}
}

// TestDoctorInterrupt sends a signal to one that reads from a pipe without end.
func TestDoctorInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an interrupt cannot be sent to a process there")
	}
	dir := t.TempDir()
	cmd := exec.Command("gpumem", "doctor", "--save-trace", filepath.Join(dir, "pool.txt"))
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// More than a pipe holds: once it is written the program is at work.
	if _, err := io.WriteString(in, strings.Repeat(smallDump, 4<<20/len(smallDump))); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("%v, want status %d", err, exitInterrupted)
	}
	if out.Len() > 0 || errs.String() != "gpumem: interrupted\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
