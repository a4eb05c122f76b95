package launch

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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/internal/test/standin"
	"gpumem/node/share"
)

// The test binary is also the launcher and the programs of these tests. The first
// argument says which.
func TestMain(m *testing.M) {
	mode, rest := "", []string(nil)
	if len(os.Args) > 1 {
		mode, rest = os.Args[1], os.Args[2:]
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
	}
	switch mode {
	default:
		status := m.Run()
		standin.Remove()
		os.Exit(status)
	case "run": // LOCKFILE COMMAND...: becomes the command, in a lease that is a lock on the file
		theirs := inherited()
		if os.Getenv("LAUNCH_REAPER") != "" {
			fail(adoptOrphans(true))
		}
		f, err := os.OpenFile(rest[0], os.O_RDWR, 0)
		fail(err)
		fail(setTestLock(f))
		leaked, err := syscall.Open(os.DevNull, syscall.O_RDONLY, 0) // as a library may
		fail(err)
		p := Plan{Command: rest[1:], inherited: theirs, keeper: strings.Fields(os.Getenv("LAUNCH_KEEPER")), Say: func(line string) { fmt.Fprintln(os.Stderr, line) }}
		if n, _ := strconv.Atoi(os.Getenv("LAUNCH_SIGNAL")); n > 0 { // comes when the process handles signals no more
			p.Release = func() error { return syscall.Kill(os.Getpid(), syscall.Signal(n)) }
			fail(syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}))
		}
		err = p.become(os.Environ(), []holding{{f, rest[0]}})
		syscall.Close(leaked)
		fail(err)
	case "simulate": // COMMAND...: runs it on a simulated GPU
		p := Plan{Command: rest, Simulate: "4GiB", Copies: 1}
		status, err := p.Run(context.Background())
		fail(err)
		os.Exit(status)
	case "list": // names the devices
		list, _, err := open.All(os.LookupEnv)
		fail(err)
		for _, d := range list {
			fmt.Println(d.Words)
		}
	case "copies": // N COMMAND...: runs the copies
		n, err := strconv.Atoi(rest[0])
		fail(err)
		p := Plan{Command: rest[1:], Copies: n, witness: []string{os.Args[0]}}
		envs := make([][]string, n)
		for i := range envs {
			envs[i] = append(os.Environ(), fmt.Sprintf("COPY=%d", i))
		}
		statuses, err := p.copies(context.Background(), envs, make([][]*share.Lease, n))
		fail(err)
		os.Exit(firstFailure(statuses))
	case "leased": // REGISTRY COMMAND...: runs one copy in a lease
		r, err := share.Open(rest[0])
		fail(err)
		room := fixedMeter{s: device.Status{Info: device.Info{Total: 1 << 30}, Free: 1 << 30}}
		p := Plan{Command: rest[1:], Copies: 1, registry: r, Bytes: 1 << 20, targets: []target{{key: "a", meter: room}},
			witness: []string{os.Args[0]}, keeper: []string{os.Args[0], "keep"}}
		leases, _, err := p.take(context.Background())
		fail(err)
		_, err = p.copies(context.Background(), [][]string{os.Environ()}, leases)
		fail(err)
	case "witness":
		reportSignals()
	case "keep":
		k, err := newKeeper(rest)
		fail(err)
		if first, err := k.detach(); first || err != nil {
			fail(err)
			os.Exit(0)
		}
		tick /= 100
		k.run()
	case "signals": // says which signals come, until SIGTERM
		c := make(chan os.Signal, 8)
		signal.Notify(c, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGINT)
		fmt.Println("ready")
		for sig := range c {
			fmt.Println(sig)
			if sig == syscall.SIGTERM {
				os.Exit(3)
			}
		}
	case "closes": // closes what it was not given, as sudo does, until standard input ends
		for _, fd := range descriptors() {
			syscall.Close(fd)
		}
		fmt.Println("closed")
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "headless": // its first thread ends, and another stays until standard input ends
		runtime.LockOSThread()
		if syscall.Gettid() != os.Getpid() {
			fail(errors.New("this is not the first thread"))
		}
		started := make(chan bool)
		go func() {
			runtime.LockOSThread()
			close(started)
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		<-started
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	case "daemon", "stranger": // leaves "closes" behind, in a session of its own, perhaps in another environment
		cmd := exec.Command(os.Args[0], "closes")
		cmd.Stdin, cmd.Stdout, cmd.SysProcAttr = os.Stdin, os.Stdout, &syscall.SysProcAttr{Setsid: true}
		if mode == "stranger" {
			cmd.Env = []string{"A=1"}
		}
		fail(cmd.Start())
	case "chain": // leaves a process behind that hands on to a child and ends, 200 times
		for _, fd := range descriptors() {
			syscall.CloseOnExec(fd)
		}
		fail(syscall.Dup3(0, 3, 0))
		const script = `hand() { if [ $1 = 0 ]; then echo closed; read x <&3; else hand $(($1 - 1)) & fi; }; hand 200`
		path, err := exec.LookPath("sh")
		fail(err)
		fail(syscall.Exec(path, []string{"sh", "-c", script}, os.Environ()))
	case "orphans": // has a child end that has one
		fail(exec.Command(os.Args[0], "daemon").Run())
		fmt.Println("closed")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	os.Exit(0)
}

// Of Linux's fcntl.h, which package syscall lacks.
const (
	ofdGetlk = 36
	ofdSetlk = 37
)

// lockOn returns the lock for writing that another description has on a file.
func lockOn(f *os.File) (l syscall.Flock_t, ok bool, err error) {
	l = syscall.Flock_t{Type: syscall.F_RDLCK}
	err = syscall.FcntlFlock(f.Fd(), ofdGetlk, &l)
	return l, err == nil && l.Type != syscall.F_UNLCK, err
}

func setTestLock(f *os.File) error {
	return syscall.FcntlFlock(f.Fd(), ofdSetlk, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: 7, Len: 5})
}

// launcher is a command that becomes this one in a lease.
func launcher(t *testing.T, command ...string) *exec.Cmd {
	t.Helper()
	lock := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(os.Args[0], append([]string{"run", lock}, command...)...)
}

// locked reports whether the lease of a launcher's program is held.
func locked(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	f, err := os.OpenFile(cmd.Args[2], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, ok, err := lockOn(f)
	if err != nil || ok && (l.Start != 7 || l.Len != 5) {
		t.Fatalf("%+v, %v", l, err)
	}
	return ok
}

// sh skips a test where there is no shell.
func sh(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("skipped: there is no sh on PATH")
	}
	return path
}

// TestProgramEndsByEverySignalAsWithoutRun: a caller sees the signal itself, and
// nothing is written about it.
func TestProgramEndsByEverySignalAsWithoutRun(t *testing.T) {
	shell := sh(t)
	// An ignored signal stays ignored in programs that are started, as under nohup.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT)
	defer signal.Reset(syscall.SIGHUP, syscall.SIGINT)
	harmless := []syscall.Signal{syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}
	for n := syscall.Signal(1); n < 65; n++ {
		if slices.Contains(harmless, n) || n == 32 || n == 33 { // those two are the C library's
			continue
		}
		cmd := launcher(t, shell, "-c", fmt.Sprintf("ulimit -c 0; kill -%d $$; read x", n))
		said, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != n || len(said) > 0 {
			t.Errorf("signal %d: %v, said %q", n, err, said)
		}
	}
	for _, status := range []int{0, 1, 7, 126, 255} {
		cmd := launcher(t, shell, "-c", fmt.Sprintf("exit %d", status))
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != status {
			t.Errorf("status %d: %v", status, cmd.ProcessState)
		}
	}
}

// TestProgramIsWhatItWouldBeWithoutRun: its number is the one that its caller knows,
// and its descriptors, limits, mask and groups are its caller's. A leak, a lease on
// descriptor 3, or a launcher in between would show here.
func TestProgramIsWhatItWouldBeWithoutRun(t *testing.T) {
	shell := sh(t)
	const report = `echo pid $$ parent $PPID; ulimit -n; ulimit -Hn; umask; pwd
ls -l /proc/self/fd | sed 's/.* \([0-9]* -> \)/\1/'; cut -d' ' -f5,6 /proc/$$/stat; grep '^Sig[BI]' /proc/self/status`
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	state := func(cmd *exec.Cmd) []string {
		cmd.Dir = t.TempDir()
		cmd.ExtraFiles = []*os.File{r, w} // 3 and 4, as make's jobserver has them
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(out), cmd.Dir, "DIR")
		text = strings.ReplaceAll(text, strconv.Itoa(cmd.Process.Pid), "PID")
		return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return strings.HasPrefix(line, "1 -> pipe:") || strings.Contains(line, " /proc/") // the report's own
		})
	}
	without := state(exec.Command(shell, "-c", report))
	cmd := launcher(t, shell, "-c", report)
	with := state(cmd)
	lease := "1000 -> " + cmd.Args[2]
	if !slices.Contains(with, lease) {
		t.Errorf("the lease is not on descriptor 1000:\n%s", strings.Join(with, "\n"))
	}
	with = slices.DeleteFunc(with, func(line string) bool { return line == lease })
	if !slices.Equal(with, without) {
		t.Errorf("with run:\n%s\nwithout:\n%s", strings.Join(with, "\n"), strings.Join(without, "\n"))
	}
}

// TestSignalArrivesOnce: to the number and to the process group.
func TestSignalArrivesOnce(t *testing.T) {
	for _, to := range []string{"process", "group"} {
		t.Run(to, func(t *testing.T) {
			cmd := launcher(t, os.Args[0], "signals")
			got := sendAll(t, cmd, to == "group", 1)
			checkSignals(t, got, to == "group", 1)
			if cmd.ProcessState.ExitCode() != 3 {
				t.Errorf("it ends with %v, want status 3", cmd.ProcessState)
			}
		})
	}
}

// TestSignalBeforeTheProgramBeginsEndsItAsTheProgram: between the end of run's own handling and
// execve a signal ends the process as one that catches none. Without, SIGQUIT wrote the stacks of
// all goroutines and ended it with status 2, and SIGUSR1 was lost.
func TestSignalBeforeTheProgramBeginsEndsItAsTheProgram(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGUSR1, syscall.SIGTERM, 40} {
		cmd := launcher(t, os.Args[0], "signals")
		cmd.Env = append(cmd.Environ(), fmt.Sprint("LAUNCH_SIGNAL=", int(s)))
		out, err := cmd.CombinedOutput()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != s || len(out) > 0 {
			t.Errorf("%v: %v\n%s", s, err, out)
		}
	}
}

// checkSignals checks what sendAll returns.
func checkSignals(t *testing.T, got string, group bool, n int) {
	t.Helper()
	first := 1
	if group {
		first = 20
	}
	want := strings.Repeat("user defined signal 1\n", first*n) + strings.Repeat("interrupt\n", n) + strings.Repeat("terminated\n", n)
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// sendAll sends three signals to a command that runs "signals" in n copies, one when
// all have said what came before, and returns what they say besides "ready".
func sendAll(t *testing.T, cmd *exec.Cmd, group bool, n int) string {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }()
	lines := bufio.NewReader(out)
	var said strings.Builder
	read := func() {
		for range n {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%v after %q", err, said.String())
			}
			if line != "ready\n" {
				said.WriteString(line)
			}
		}
	}
	read()
	to := cmd.Process.Pid
	if group {
		to = -to
	}
	signals := []syscall.Signal{syscall.SIGUSR1, syscall.SIGINT, syscall.SIGTERM}
	if group { // often, for two at the same instant may become one
		signals = append(slices.Repeat([]syscall.Signal{syscall.SIGUSR1}, 19), signals...)
	}
	for _, sig := range signals {
		if err := syscall.Kill(to, sig); err != nil {
			t.Fatal(err)
		}
		read()
	}
	rest, _ := io.ReadAll(lines) // what came twice
	_ = cmd.Wait()
	return said.String() + string(rest)
}

// TestBackgroundChildWritesAfterTheEnd: nobody stands between it and the caller's
// standard error.
func TestBackgroundChildWritesAfterTheEnd(t *testing.T) {
	held, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := launcher(t, sh(t), "-c", "(read line; echo late >&2) <&3 & exit 5")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{held}, stderr
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 5 {
		t.Fatal(cmd.ProcessState)
	}
	held.Close()
	stderr.Close()
	if !locked(t, cmd) {
		t.Error("the lease has ended before the child")
	}
	release.Close()
	if said, _ := io.ReadAll(errs); string(said) != "late\n" {
		t.Errorf("%q", said)
	}
}

// TestDescriptorOfLeaseIsHighAlsoUnderALowLimit: a program may have few descriptors.
func TestDescriptorOfLeaseIsHighAlsoUnderALowLimit(t *testing.T) {
	shell := sh(t)
	cmd := exec.Command(shell, "-c", "ulimit -n 200; exec \"$@\"", "sh", os.Args[0], "run", launcher(t).Args[2],
		shell, "-c", "for f in /proc/$$/fd/*; do echo ${f##*/} $(readlink $f); done")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "\n125 "+cmd.Args[6]+"\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestNotStarted(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("#!/no/such/shell"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		command string
		status  int
	}{{"no-such-program-anywhere", 127}, {filepath.Join(dir, "gone"), 127}, {plain, 126}, {dir, 126}, {text, 127}} {
		for name, err := range map[string]error{
			"one": func() error { return (&Plan{Command: []string{tc.command}}).become(nil, nil) }(),
			"copies": func() error {
				_, err := (&Plan{Command: []string{tc.command}}).copies(t.Context(), make([][]string, 2), make([][]*share.Lease, 2))
				return err
			}(),
		} {
			var e *NotStarted
			if !errors.As(err, &e) || e.Status != tc.status || strings.Count(err.Error(), tc.command) != 1 {
				t.Errorf("%s, %s: %v; want status %d", tc.command, name, err, tc.status)
			}
		}
	}
}

// TestSignalBeforeTheStartEndsRun: what has come before the program takes over is
// not lost.
func TestSignalBeforeTheStartEndsRun(t *testing.T) {
	came := errors.New("a signal")
	p := Plan{Command: []string{"true"}, Release: func() error { return came }}
	if err := p.become(nil, nil); !errors.Is(err, came) {
		t.Errorf("%v", err)
	}
}
