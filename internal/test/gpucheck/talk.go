//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// talker is a program in Python of the bundle that answers in lines of JSON and waits for a line
// before it goes on (programs/talk.py). So several can start at once, which is most of their time,
// and use the GPU one after the other.
type talker struct {
	name   string // in messages
	cmd    *exec.Cmd
	asked  process
	in     io.WriteCloser
	lines  chan string // closed at the end of its output
	stdout strings.Builder
	stderr bytes.Buffer
	begun  time.Time
	logged bool
}

// talk starts python/PROGRAM.py with the words of before in front of it, such as those of gpumem run.
// env comes after what frameworks need here.
func (c *call) talk(name string, env, before []string, program string, args ...string) (*talker, error) {
	words := append(append([]string{}, before...), c.python, filepath.Join(c.root, "python", program+".py"))
	p := process{args: append(words, args...), env: append(c.frameworkEnviron(), env...)}
	t := &talker{name: name, asked: p, lines: make(chan string, 100), begun: time.Now()}
	t.cmd = exec.Command(p.args[0], p.args[1:]...)
	t.cmd.Env, t.cmd.Dir = append(os.Environ(), p.env...), c.scratch
	t.cmd.Stderr = &t.stderr
	t.cmd.WaitDelay = 2 * time.Second // gpumem run leaves a process that keeps the lease, until it is over
	var err error
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		defer close(t.lines)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if line != "" {
				t.lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	return t, nil
}

// answer reads the next answer, which is to be of the stage, into v.
func (t *talker) answer(stage string, v any, limit time.Duration) error {
	late := time.After(limit)
	for {
		select {
		case <-late:
			return fmt.Errorf("%s: the program was not %s after %v", t.name, stage, limit)
		case line, ok := <-t.lines:
			if !ok {
				_ = t.cmd.Wait()
				return fmt.Errorf("%s: the program ended before it was %s, with %v%s", t.name, stage, t.cmd.ProcessState, lastLine(t.stderr.Bytes()))
			}
			t.stdout.WriteString(line)
			var kind struct{ Stage string }
			if json.Unmarshal([]byte(line), &kind) != nil || kind.Stage == "" {
				continue // something else that a framework prints
			}
			if kind.Stage != stage {
				return fmt.Errorf("%s: %s, want %s", t.name, kind.Stage, stage)
			}
			if v == nil {
				return nil
			}
			return json.Unmarshal([]byte(line), v)
		}
	}
}

// tell writes a line.
func (t *talker) tell(line string) error {
	if _, err := io.WriteString(t.in, line+"\n"); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	return nil
}

// next tells the program to go on, and reads its answer.
func (t *talker) next(line, stage string, v any, limit time.Duration) error {
	return errors.Join(t.tell(line), t.answer(stage, v, limit))
}

// end lets the program go on to its end, and logs what it did.
func (c *call) end(t *talker) ended {
	_ = t.tell("")
	_ = t.in.Close()
	killed := time.AfterFunc(20*time.Second, func() { _ = t.cmd.Process.Kill() })
	for line := range t.lines {
		t.stdout.WriteString(line)
	}
	_ = t.cmd.Wait()
	if !killed.Stop() {
		c.fault("%s: no end 20 s after its work", t.name)
	}
	e := ended{t.stdout.String(), t.stderr.String(), t.cmd.ProcessState.ExitCode(), time.Since(t.begun).Seconds()}
	c.log(t.asked, e)
	t.logged = true
	return e
}

// stop ends programs wherever they are, and logs what they did so far.
func (c *call) stop(all ...*talker) {
	for _, t := range all {
		if t != nil && t.cmd.ProcessState == nil {
			_ = t.cmd.Process.Kill()
		}
	}
	for _, t := range all {
		if t != nil && !t.logged {
			c.end(t)
		}
	}
}

// frameworkEnviron is what JAX, PyTorch and CuPy get beside the check's environment. On a real GPU that
// is nothing which they read but a folder for CuPy's kernels.
func (b *bundle) frameworkEnviron() []string {
	env := []string{"CUPY_CACHE_DIR=" + filepath.Join(b.scratch, "cupy")}
	if !b.simulated {
		return env
	}
	sim := filepath.Join(b.root, "sim")
	// The wheels' libraries come with their own folders, before LD_LIBRARY_PATH: those of the
	// bundle, in which nothing computes, have to be there first.
	var loaded []string
	for _, name := range []string{"cudart.so.13", "cublas.so.13", "cublasLt.so.13", "cudnn.so.9", "cufft.so.12", "cusolver.so.12", "cusparse.so.12"} {
		loaded = append(loaded, filepath.Join(sim, "lib"+name))
	}
	return append(env, "LD_PRELOAD="+strings.Join(loaded, ":"), "PYTHONPATH="+filepath.Join(sim, "python"),
		"JAX_PLATFORMS=cuda", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1", "XLA_FLAGS=--xla_gpu_autotune_level=0")
}
