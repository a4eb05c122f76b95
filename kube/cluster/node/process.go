package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Process is a program of the cluster that was started.
type Process struct {
	Name string
	Log  string // file with what it printed

	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; valid when done is closed
}

// Start starts a program with the rest of its command line. What it prints is appended to
// NAME.log in the folder of logs.
func Start(name, program string, args ...string) (*Process, error) {
	dir := filepath.Join(Folder(), "log")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// The folder of the programs: containerd looks for its shim in PATH.
	p.cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(Program("containerd"))+":"+os.Getenv("PATH"))
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid returns its process number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends it at once and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks it to end, and kills it if it has not after 10 seconds. It returns the error
// of a process that had to be killed.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		p.Kill()
		return fmt.Errorf("%s: killed, because it did not end within 10 s of SIGTERM", p.Name)
	}
}

// WaitReady waits until ready returns true. It fails when the process has ended or ctx
// has, with the last lines of the log.
func (p *Process) WaitReady(ctx context.Context, ready func() bool) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		select {
		case <-p.done:
			return false, fmt.Errorf("%s ended: %v; its log ends with:\n%s", p.Name, p.err, p.Tail(15))
		default:
			return ready(), nil
		}
	})
}

// Tail returns the last n lines of the log.
func (p *Process) Tail(n int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// RSS returns the resident memory of the process in bytes, 0 if it has ended.
func (p *Process) RSS() uint64 { return statusBytes(p.Pid(), "VmRSS:") }

// PeakRSS returns the largest resident memory that it ever had, in bytes.
func (p *Process) PeakRSS() uint64 { return statusBytes(p.Pid(), "VmHWM:") }

// Data returns the resident memory that is no file's, in bytes.
func (p *Process) Data() uint64 { return statusBytes(p.Pid(), "RssAnon:") }

func statusBytes(pid int, field string) uint64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		var kib uint64
		if rest, ok := strings.CutPrefix(line, field); ok {
			if _, err := fmt.Sscanf(rest, "%d kB", &kib); err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// Seconds returns the processor time that the process has used.
func (p *Process) Seconds() float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	var user, system float64
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return (user + system) / 100
}

// listens reports whether somebody accepts connections at a unix socket or a TCP address.
func listens(network, address string) bool {
	c, err := net.Dial(network, address)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
