//go:build unix

package launch_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"gpumem/share/launch"
)

// The test binary is also the programs of these tests.
func TestMain(m *testing.M) {
	switch mode := os.Getenv("LAUNCH_TEST"); mode {
	case "":
		os.Exit(m.Run())
	case "status":
		os.Exit(7)
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "interrupted":
		signal.Reset(syscall.SIGINT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		select {}
	case "echo": // standard input to standard output
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "words":
		fmt.Fprint(os.Stderr, strings.Repeat("x", 200<<10)+"last words\n")
		os.Exit(1)
	case "kept": // writes to the file that it was given
		f := os.NewFile(3, "kept")
		_, err := f.WriteString("from the program")
		if err != nil {
			os.Exit(1)
		}
	case "signals": // says which signals come
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGINT)
		fmt.Println("ready")
		for sig := range c {
			fmt.Println(sig)
			if sig == syscall.SIGTERM {
				os.Exit(3)
			}
		}
	case "group":
		fmt.Println(syscall.Getpgrp(), os.Getppid())
	case "run": // a launcher: its arguments are the command
		r, err := launch.Run(context.Background(), launch.Config{Command: os.Args[1:], Env: environ(os.Getenv("LAUNCH_CHILD"))})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
		r.End()
	}
	os.Exit(0)
}

// environ is ours with the program's part.
func environ(mode string) []string {
	var env []string
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, "LAUNCH_TEST=") {
			env = append(env, line)
		}
	}
	return append(env, "LAUNCH_TEST="+mode)
}

// run runs a part with a standard error of its own.
func run(t *testing.T, mode string, change func(*launch.Config)) launch.Result {
	t.Helper()
	cfg := launch.Config{Command: []string{os.Args[0]}, Env: environ(mode)}
	if change != nil {
		change(&cfg)
	}
	r, err := launch.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestStatus(t *testing.T) {
	if r := run(t, "status", nil); r.Status != 7 || r.Signal != nil {
		t.Errorf("%+v", r)
	}
	if r := run(t, "none", nil); r.Status != 0 {
		t.Errorf("%+v", r)
	}
	if r := run(t, "killed", nil); r.Status != 128+9 || r.Signal != syscall.SIGKILL {
		t.Errorf("%+v", r)
	}
}

func TestNotStarted(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		command string
		status  int
	}{{"no-such-program-anywhere", 127}, {filepath.Join(dir, "gone"), 127}, {plain, 126}, {dir, 126}} {
		_, err := launch.Run(t.Context(), launch.Config{Command: []string{tc.command}})
		var e *launch.NotStarted
		if !errors.As(err, &e) || e.Status != tc.status || strings.Count(err.Error(), tc.command) != 1 {
			t.Errorf("%s: %v, status %d; want %d", tc.command, err, e.Status, tc.status)
		}
	}
	if _, err := launch.Run(t.Context(), launch.Config{}); err == nil {
		t.Error("no command is started")
	}
}

func TestStreams(t *testing.T) {
	in, inW, _ := os.Pipe()
	outR, out, _ := os.Pipe()
	_, _ = inW.WriteString("through and through")
	inW.Close()
	run(t, "echo", func(c *launch.Config) { c.Stdin, c.Stdout = in, out })
	out.Close()
	if b, _ := io.ReadAll(outR); string(b) != "through and through" {
		t.Errorf("%q", b)
	}
}

func TestKept(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	run(t, "kept", func(c *launch.Config) { c.Keep = []*os.File{f} })
	if b, _ := os.ReadFile(f.Name()); string(b) != "from the program" {
		t.Errorf("%q", b)
	}
}

// TestLastWords: through a pipe everything comes out; of that, and of a file,
// the last is kept.
func TestLastWords(t *testing.T) {
	outR, out, _ := os.Pipe()
	passed := make(chan int)
	go func() {
		b, _ := io.ReadAll(outR)
		passed <- len(b)
	}()
	r := run(t, "words", func(c *launch.Config) { c.Stderr = out })
	out.Close()
	if n := <-passed; n != 200<<10+len("last words\n") {
		t.Errorf("%d bytes came through", n)
	}
	if len(r.Tail) != 64<<10 || !strings.HasSuffix(string(r.Tail), "xlast words\n") {
		t.Errorf("kept %d bytes", len(r.Tail))
	}
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, _ = f.WriteString("before us\n")
	if r = run(t, "words", func(c *launch.Config) { c.Stderr = f }); len(r.Tail) != 64<<10 || !strings.HasSuffix(string(r.Tail), "xlast words\n") {
		t.Errorf("kept %d bytes of a file", len(r.Tail))
	}
	only, err := os.OpenFile(f.Name(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer only.Close()
	if r = run(t, "words", func(c *launch.Config) { c.Stderr = only }); runtime.GOOS == "linux" && len(r.Tail) != 64<<10 {
		t.Errorf("kept %d bytes of a file open for writing alone", len(r.Tail))
	}
	if r = run(t, "none", func(c *launch.Config) { c.Stderr = f }); len(r.Tail) != 0 {
		t.Errorf("kept %q of what was there before", r.Tail)
	}
}

// launcher starts the test binary as a launcher of a program, in a session of
// its own, so that no terminal is near.
func launcher(t *testing.T, child string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], os.Args[0])
	cmd.Env = append(environ("run"), "LAUNCH_CHILD="+child)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(out)
}

// TestSignals: what is sent to the launcher comes to the program, and the
// program decides what becomes of it.
func TestSignals(t *testing.T) {
	cmd, out := launcher(t, "signals")
	expect := func(want string) {
		t.Helper()
		if line, err := out.ReadString('\n'); line != want+"\n" {
			t.Fatalf("%q, %v; want %q", line, err, want)
		}
	}
	expect("ready")
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGINT, syscall.SIGTERM} {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		expect(sig.String())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("the launcher ends with %v, want status 3", err)
	}
}

// TestEnd: a launcher ends as its program did.
func TestEnd(t *testing.T) {
	cmd, _ := launcher(t, "status")
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("%v, want status 7", err)
	}
	for mode, want := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT} {
		cmd, _ = launcher(t, mode)
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != want {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// TestGroup: the program is in the launcher's process group.
func TestGroup(t *testing.T) {
	cmd, out := launcher(t, "group")
	line, _ := out.ReadString('\n')
	if want := fmt.Sprintf("%d %d\n", cmd.Process.Pid, cmd.Process.Pid); line != want {
		t.Errorf("group and parent %q, want %q", line, want)
	}
}

// TestCancelled: the program is asked to end, and its own status counts.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	outR, out, _ := os.Pipe()
	go func() {
		_, _ = bufio.NewReader(outR).ReadString('\n') // ready
		cancel()
		_, _ = io.Copy(io.Discard, outR)
	}()
	r, err := launch.Run(ctx, launch.Config{Command: []string{os.Args[0]}, Env: environ("signals"), Stdout: out})
	if err != nil || r.Status != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	out.Close()
}

func Example() {
	r, err := launch.Run(context.Background(), launch.Config{Command: []string{"sh", "-c", "exit 4"}, Env: os.Environ()})
	fmt.Println(r.Status, err)
	// Output: 4 <nil>
}
