//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Compiled tests and programs in C: the driver's answers, and the pools on it.

// driver runs tests of device/internal/cuda on GPU 0.
func driver(tests ...string) func(*call) error {
	return func(c *call) error {
		return c.test("cuda.test", tests)
	}
}

// contents writes into blocks and reads them back under every policy.
func contents(c *call) error {
	return c.test("pool.test", []string{"TestContents/cuda", "TestContenders/cuda"})
}

// poolLibrary runs the C programs of preload/testdata with the library in front of the driver.
func poolLibrary(c *call) error {
	return c.test("preload.test", []string{"TestConformance", "TestRandom", "TestSignals"},
		"-built", c.root, "-front", filepath.Join(c.scratch, "lib/gpumem"))
}

// cLibrary runs the C program of preload/capi/testdata on cuda:0, and looks whether it left its recording.
func cLibrary(c *call) error {
	const library = "libgpumem_c.so"
	// In a folder of its own: the libraries' has a libcuda.so.1, too.
	folder := filepath.Join(c.scratch, "c-library")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(c.scratch, "lib/gpumem", library), filepath.Join(folder, library)); err != nil {
		return err
	}
	recording := filepath.Join(c.scratch, "capi.recording")
	e, err := c.exec(process{
		args: []string{filepath.Join(c.root, "c/capi"), "cuda:0", recording},
		env:  []string{"LD_LIBRARY_PATH=" + strings.TrimSuffix(folder+":"+os.Getenv("LD_LIBRARY_PATH"), ":")},
	})
	if err != nil {
		return err
	}
	c.silent(e)
	c.recorded(recording)
	return nil
}

// recorded finds fault with a recording that is not there, or empty.
func (c *call) recorded(path string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		c.fault("there is no recording: %v", err)
	case info.Size() == 0:
		c.fault("the recording is empty")
	default:
		c.figure("the recording has", float64(info.Size()), "bytes")
	}
}

// silent finds fault with whatever a program writes, and with its status.
func (c *call) silent(e ended) {
	for line := range strings.Lines(e.stdout + e.stderr) {
		c.fault("%s", strings.TrimSpace(line))
	}
	if e.status != 0 {
		c.fault("exit status %d", e.status)
	}
}

var (
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	passed  = regexp.MustCompile(`(?m)^\s*--- PASS: (\S+)`)
	omitted = regexp.MustCompile(`(?m)^\s*--- SKIP: (\S+)`)
	// A line that a test wrote: its file and number first.
	wrote = regexp.MustCompile(`^\s+\w+\.go:\d+: (.*)`)
)

// pattern is what -test.run has for tests, of which all have a subtest's first word or none has.
func pattern(tests []string) string {
	var names []string
	under := ""
	for _, test := range tests {
		name, word, isUnder := strings.Cut(test, "/")
		if names = append(names, name); isUnder {
			under = "/^" + word
		}
	}
	return "^(" + strings.Join(names, "|") + ")$" + under
}

// test runs tests of a compiled one of the bundle: whole ones, or "TEST/WORD", of which those subtests
// run that begin with the word. Each that fails is a fault, with the last line that it wrote, and so is
// each that does not run.
func (c *call) test(binary string, tests []string, args ...string) error {
	_, err := c.runTest(binary, tests, args...)
	return err
}

// runTest is test, and reports whether all passed.
func (c *call) runTest(binary string, tests []string, args ...string) (isGood bool, err error) {
	// A test that hangs says where, shortly before it would be killed.
	const stacks = 3 * time.Second
	args = append([]string{filepath.Join(c.root, binary), "-test.v", "-test.count=1", "-test.run=" + pattern(tests),
		fmt.Sprintf("-test.timeout=%v", max(c.left()-stacks, stacks))}, args...)
	e, err := c.exec(process{args: args, limit: c.left()})
	err = c.passed(binary, tests, e, err)
	return err == nil && e.status == 0, err
}

// passed reads the output of a compiled test that was to run tests, which err says was killed.
func (c *call) passed(binary string, tests []string, e ended, err error) error {
	for _, f := range failed.FindAllStringSubmatch(e.stdout, -1) {
		c.fault("%s: %s", f[1], lastWords(e.stdout, f[1]))
	}
	count := func(what *regexp.Regexp) float64 { return float64(len(what.FindAllString(e.stdout, -1))) }
	c.figure("tests passed", count(passed), "")
	c.figure("tests failed", count(failed), "")
	c.figure("tests skipped", count(omitted), "")
	switch {
	case err != nil:
		return err
	case strings.Contains(e.stdout+e.stderr, "panic: test timed out"):
		return unanswered{fmt.Errorf("%s%s", binary, lastLine(e.stdout+e.stderr))}
	case e.status != 0 && count(failed) == 0:
		c.fault("%s ends with status %d%s", binary, e.status, lastLine(e.stdout+e.stderr))
	case e.status == 0 && count(passed) == 0 && count(omitted) > 0:
		return skipped(lastWords(e.stdout, omitted.FindStringSubmatch(e.stdout)[1]))
	case e.status == 0 && count(passed) == 0:
		c.fault("%s ran no test", binary)
		return nil
	}
	c.allAsked(binary, tests, func(test string) bool { return hasRun(e.stdout, test) })
	for _, f := range omitted.FindAllStringSubmatch(e.stdout, -1) {
		c.note("%s is skipped: %s", f[1], lastWords(e.stdout, f[1]))
	}
	return nil
}

// hasRun reports whether a test ended, or, of "TEST/WORD", a subtest that begins so.
func hasRun(output, test string) bool {
	for _, end := range []*regexp.Regexp{passed, failed, omitted} {
		for _, m := range end.FindAllStringSubmatch(output, -1) {
			if m[1] == test || strings.Contains(test, "/") && strings.HasPrefix(m[1], test) {
				return true
			}
		}
	}
	return false
}

// lastWords is the last line that a test wrote, of `go test -v`'s output.
func lastWords(output, test string) string {
	words, here := "it says nothing", false
	for line := range strings.Lines(output) {
		if name, ok := strings.CutPrefix(line, "=== RUN   "); ok {
			here = strings.TrimSpace(name) == test
		}
		if m := wrote.FindStringSubmatch(line); m != nil && here {
			words = m[1]
		}
	}
	return words
}
