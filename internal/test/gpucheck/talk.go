//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

// talker is a program in Python of the bundle that answers in lines of JSON and waits for a line
// before it goes on (programs/talk.py). So several can start at once, which is most of their time,
// and use the GPU one after the other.
type talker struct {
	*program
	name string // in messages
}

// talk starts python/PROGRAM.py with the words of before in front of it, such as those of gpumem run.
// env comes after what frameworks need here.
func (c *call) talk(name string, env, before []string, program string, args ...string) (*talker, error) {
	words := append(append([]string{}, before...), c.python, filepath.Join(c.root, "python", program+".py"))
	r, err := c.begin(process{args: append(words, args...), env: append(c.frameworkEnviron(), env...), talks: true, answers: "{"})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &talker{r, name}, nil
}

// answer reads the next answer, which is to be of the stage, into v.
func (t *talker) answer(stage string, v any, limit time.Duration) error {
	for late := time.Now().Add(limit); ; {
		line, err := t.program.answer(time.Until(late))
		switch {
		case isUnanswered(err):
			return unanswered{fmt.Errorf("%s: the program was not %s after %v", t.name, stage, limit)}
		case err != nil:
			return fmt.Errorf("%s: not %s: %w", t.name, stage, err)
		}
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

// tell writes a line.
func (t *talker) tell(line string) error {
	if _, err := io.WriteString(t.in, line+"\n"); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	return nil
}

// next tells the program to go on, and reads its answer. Of a program that has ended, the answer says why.
func (t *talker) next(line, stage string, v any, limit time.Duration) error {
	told := t.tell(line)
	if err := t.answer(stage, v, limit); err != nil {
		return err
	}
	return told
}

// end lets the program go on to its end.
func (c *call) end(t *talker) ended {
	_ = t.tell("")
	_ = t.in.Close()
	if !t.within(20 * time.Second) {
		c.failed(fmt.Errorf("%s: no end 20 s after its work", t.name))
		t.kill()
	}
	return c.finish(t.program)
}

// stop ends programs wherever they are.
func (c *call) stop(all ...*talker) {
	for _, t := range all {
		if t != nil && !t.finished {
			t.abort()
		}
	}
	for _, t := range all {
		if t != nil && !t.finished {
			t.kill()
			c.finish(t.program)
		}
	}
}

// frameworkEnviron is what JAX, PyTorch and CuPy get beside the check's environment. On a real GPU that
// is nothing which they read but a folder for CuPy's kernels. A Python that is ended by a signal says where.
func (b *bundle) frameworkEnviron() []string {
	env := []string{"CUPY_CACHE_DIR=" + filepath.Join(b.scratch, "cupy"), "PYTHONFAULTHANDLER=1"}
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
