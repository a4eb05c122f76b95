package main

import (
	"bytes"
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
	"gpumem/alloc/build"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/doctor"
	"gpumem/internal/report"
	"gpumem/internal/test/doctortest"
	"gpumem/node/probe"
	"gpumem/policy"
	"gpumem/record/dump"
)

// TestDoctorLogs: which logs are read, and which words do not go together.
func TestDoctorLogs(t *testing.T) {
	for _, tc := range []struct {
		name     string
		flags    doctorOptions
		files    []string
		terminal bool
		want     string // of the logs, or the beginning of the error
	}{
		{"a file", doctorOptions{}, []string{"a"}, true, "[a]"},
		{"several", doctorOptions{}, []string{"b", "a", "-"}, false, "[b a -]"},
		{"a pipe", doctorOptions{}, nil, false, "[-]"},
		{"pasted", doctorOptions{}, []string{"-"}, true, "[-]"},
		{"nothing", doctorOptions{}, nil, true, "no log: name its FILE"},
		{"a state alone", doctorOptions{state: "s"}, nil, true, "[]"},
		{"the machine alone", doctorOptions{machine: true}, nil, true, "[]"},
		{"a process alone", doctorOptions{hasPID: true}, nil, true, "[]"},
		{"the machine and a pipe", doctorOptions{machine: true}, nil, false, "[-]"},
		{"two machines", doctorOptions{machine: true, state: "s"}, []string{"a"}, false, "--state is of"},
		{"two machines by process", doctorOptions{hasPID: true, state: "s"}, []string{"a"}, false, "--state is of"},
		{"a device of no machine", doctorOptions{devices: []string{"cuda:0"}}, []string{"a"}, false, "--device says"},
		{"a state from stdin", doctorOptions{state: "-"}, []string{"a"}, false, "[a]"},
		{"both from stdin", doctorOptions{state: "-"}, nil, false, "--state -: standard input"},
		{"stdin twice", doctorOptions{}, []string{"-", "a", "-"}, false, "- is standard input"},
		{"a file beside and the log from stdin", doctorOptions{with: "-"}, nil, false, "--with -: standard input is the log"},
		{"a state and a file beside from stdin", doctorOptions{state: "-", with: "-"}, []string{"a"}, false, "--with -: standard input is that of --state"},
		{"a trace onto the state", doctorOptions{save: "./s", state: "s"}, []string{"a"}, false, "--save-trace ./s: this is the file of --state"},
		{"a trace onto the file beside", doctorOptions{save: "./w", with: "w"}, []string{"a"}, false, "--save-trace ./w: this is the file of --with"},
		{"a trace to standard output", doctorOptions{save: "-"}, []string{"a"}, false, "--save-trace -: a recording is written to a file"},
		{"a trace of two", doctorOptions{save: "t"}, []string{"a", "b"}, false, "--save-trace saves the pool of one log"},
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

func readDump(t testing.TB, text string) *dump.Dump {
	t.Helper()
	d, _, err := dump.ReadLog(strings.NewReader(text))
	if err != nil || d == nil {
		t.Fatal(d, err)
	}
	return d
}

// TestDoctorSaveTrace: replay rebuilds the pool, as many bytes of it in use.
func TestDoctorSaveTrace(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 8 << 20, Granularity: 1})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := build.New(dev, policy.Policy{Kind: policy.BFC, Preallocate: true, Limit: 5 << 20, Spatial: true}, build.Options{})
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
	for name, text := range map[string]string{"small": doctortest.SmallDump, "two ends": pool.(alloc.Reporter).Report(alloc.Request{Bytes: 1 << 30}).String()} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "it's a pool.txt")
			d := doctor.Answer{Log: "train.log", Diagnosis: &doctor.Diagnosis{Dump: readDump(t, text)}}
			note, err := saveTrace(t.Context(), path, d)
			if err != nil {
				t.Fatal(err)
			}
			want := path + ": the pool as it was dumped; go on: gpumem replay " + report.ShellQuote(path) + " --policy bfc:limit="
			if !strings.HasPrefix(note, want) {
				t.Errorf("%s, want %s", note, want)
			}
			args := append([]string{"replay", path, "--json"}, strings.Fields(doctor.ReplayFlags(d.Dump))...)
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
	sums := doctortest.SmallDump[strings.Index(doctortest.SmallDump, "     Summary"):]
	first, _, _ := strings.Cut(doctortest.SmallDump, "\n")
	for want, d := range map[string]doctor.Answer{
		"train.log: no dump":     {Log: "train.log", Diagnosis: &doctor.Diagnosis{}},
		"--save-trace: no dump":  {Diagnosis: &doctor.Diagnosis{}},
		"train.log: the dump ha": {Log: "train.log", Diagnosis: &doctor.Diagnosis{Dump: readDump(t, first+"\n"+sums)}},
	} {
		if _, err := saveTrace(t.Context(), path, d); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: the file was made", want)
		}
	}
	// A dump that is not whole is saved as far as it goes.
	lines := strings.Split(doctortest.SmallDump, "\n")
	cut := strings.Join(append(lines[:3:3], lines[4:]...), "\n")
	note, err := saveTrace(t.Context(), path, doctor.Answer{Log: "train.log", Diagnosis: &doctor.Diagnosis{Dump: readDump(t, cut)}})
	if err != nil || !strings.Contains(note, "what is left of the pool") {
		t.Errorf("%s, %v", note, err)
	}
}

// TestDoctorNoGPU: without a GPU nothing is known of one; a simulated one that is
// named is evidence.
func TestDoctorNoGPU(t *testing.T) {
	t.Setenv(open.EnvVar, "")
	state, notes, err := (&doctorOptions{machine: true}).readState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, driver, _ := probe.Devices(nil); !driver.Up && (len(state.Devices) > 0 || len(notes) != 1 || !strings.HasPrefix(notes[0], "this machine shows no GPU")) {
		t.Errorf("%v, %q", state.Devices, notes)
	}
	t.Setenv(open.EnvVar, "sim:24GiB,used=20GiB,display=1GiB")
	state, _, err = (&doctorOptions{machine: true}).readState(t.Context())
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
	if _, err := io.WriteString(in, strings.Repeat(doctortest.SmallDump, 4<<20/len(doctortest.SmallDump))); err != nil {
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
