package main

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"gpumem/device/cuda"
)

// TestScripts runs the command lines in testdata/script. Beside testscript's own
// commands they have
//
//	status N gpumem ARGS...     the exit status is N
//	bad PREFIX gpumem ARGS...   the status is 2, nothing is on stdout, and stderr
//	                            is one line that begins with "gpumem: PREFIX"
//	json PATH WANT              in the JSON on stdout the value at PATH, such as
//	                            results.0.fits, is WANT; "absent" if there is none
//	gz FILE NEW [BYTES]         NEW is FILE compressed, or only its first BYTES
//	cut FILE NEW BYTES          NEW is the first BYTES of FILE
//
// the condition [gpu], true where there is a real one, and the small snapshots,
// profiles and dumps of package trace.
func TestScripts(t *testing.T) {
	// Where not all scripts run, testscript leaves their common folder behind, empty.
	var common atomic.Value
	t.Cleanup(func() {
		if folder, ok := common.Load().(string); ok {
			_ = os.Remove(folder)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(cond string) (bool, error) {
			if cond == "gpu" {
				return cuda.Available() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Setup: func(env *testscript.Env) error {
			common.Store(filepath.Dir(env.WorkDir))
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, ".cache")) // for the Python hook
			for name, program := range map[string]bool{"driver.so": false, "static": true} {
				if err := os.WriteFile(filepath.Join(env.WorkDir, name), elfHead(program), 0o755); err != nil {
					return err
				}
			}
			files := []string{"../../xla/internal/load/testdata/whole-0.12.0.1.opt.pb", "../../record/leaks/testdata/masks.gpumem", "../../examples/training.txt.gz"}
			for _, name := range []string{"torch2025.pickle", "torch2026.pickle", "torch280.pickle", "jax012.log.gz", "tensorflow.xplane.pb", "tensorflow.memdump", "jax.pprof", "memdebug.log", "jax092.memdump"} {
				files = append(files, "../../record/trace/testdata/"+name)
			}
			for _, path := range files {
				data, err := os.ReadFile(filepath.FromSlash(path))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(env.WorkDir, filepath.Base(path)), data, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": func(ts *testscript.TestScript, _ bool, args []string) { status(ts, args[0], args[1:]) },
			"bad":    bad,
			"json":   jsonIs,
			"gz":     func(ts *testscript.TestScript, _ bool, args []string) { cut(ts, args, gzipped(ts, args[0])) },
			"cut":    func(ts *testscript.TestScript, _ bool, args []string) { cut(ts, args, []byte(ts.ReadFile(args[0]))) },
		},
	})
}

// elfHead is the head of an ELF file for this machine: a shared library, or a program
// that is linked statically.
func elfHead(program bool) []byte {
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	if program {
		h.Type = uint16(elf.ET_EXEC)
	}
	if runtime.GOARCH == "arm64" {
		h.Machine = uint16(elf.EM_AARCH64)
	}
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, h) // a Buffer takes everything
	_ = binary.Write(&b, binary.LittleEndian, elf.Prog64{Type: uint32(elf.PT_LOAD)})
	return b.Bytes()
}

func status(ts *testscript.TestScript, want string, args []string) {
	got := 0
	if err := ts.Exec(args[0], args[1:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if strconv.Itoa(got) != want {
		ts.Fatalf("status %d, want %s", got, want)
	}
}

func bad(ts *testscript.TestScript, _ bool, args []string) {
	status(ts, "2", args[1:])
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("stdout: %s", out)
	}
	line := ts.ReadFile("stderr")
	if prefix := "gpumem: " + args[0]; !strings.HasPrefix(line, prefix) || strings.Count(line, "\n") != 1 {
		ts.Fatalf("stderr is not one line that begins with %s", prefix)
	}
}

func jsonIs(ts *testscript.TestScript, _ bool, args []string) {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	d.UseNumber() // 2^64-1 must stay what it is
	var v any
	if err := d.Decode(&v); err != nil {
		ts.Fatalf("stdout is not JSON: %v", err)
	}
	there := true
	for key := range strings.SplitSeq(args[0], ".") {
		switch m := v.(type) {
		case map[string]any:
			v, there = m[key]
		case []any:
			if i, err := strconv.Atoi(key); err == nil && i < len(m) {
				v = m[i]
			} else {
				there = false
			}
		default:
			there = false
		}
		if !there {
			break
		}
	}
	got := "absent"
	if there {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			ts.Fatalf("%v", err)
		}
		got = strings.TrimSuffix(b.String(), "\n")
		if _, ok := v.(string); ok { // a line break stays \n
			got = got[1 : len(got)-1]
		}
	}
	if got != args[1] {
		ts.Fatalf("%s is %s, want %s", args[0], got, args[1])
	}
}

func gzipped(ts *testscript.TestScript, name string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(ts.ReadFile(name)))
	z.Close()
	return b.Bytes()
}

// cut writes data, or as much of it as the third argument says, to the second.
func cut(ts *testscript.TestScript, args []string, data []byte) {
	if len(args) > 2 {
		n, err := strconv.Atoi(args[2])
		if err != nil || n > len(data) {
			ts.Fatalf("%s of %d bytes", args[2], len(data))
		}
		data = data[:n]
	}
	if err := os.WriteFile(ts.MkAbs(args[1]), data, 0o600); err != nil {
		ts.Fatalf("%v", err)
	}
}
