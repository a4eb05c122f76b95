package shared

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// Tests with several processes run this binary again as a child: with asChild
// in its environment, the arguments are the role and what it wants.
const asChild = "GPUMEM_SHARED_CHILD"

var roles = map[string]func(args []string) error{
	"step":  childStep,
	"walk":  childWalk,
	"pairs": childPairs,
}

func TestMain(m *testing.M) {
	if os.Getenv(asChild) == "" {
		os.Exit(m.Run())
	}
	if err := roles[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a running child. It is killed and waited for when the test ends.
type child struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs strings.Builder
	done bool
}

func start(t testing.TB, role string, args ...any) *child {
	t.Helper()
	c := &child{Cmd: exec.Command("/proc/self/exe", role)}
	for _, a := range args {
		c.Args = append(c.Args, fmt.Sprint(a))
	}
	c.Env = append(os.Environ(), asChild+"=1")
	c.Stderr = &c.errs
	in, err := c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	c.in, c.out = in, bufio.NewReader(out)
	must(t, c.Start())
	t.Cleanup(func() {
		if !c.done {
			c.Process.Kill()
			c.Wait()
		}
	})
	return c
}

// line reads what the child says next; "" when it has ended.
func (c *child) line() string {
	s, _ := c.out.ReadString('\n')
	return strings.TrimSuffix(s, "\n")
}

// reap waits for the child and says whether it ended as it should: killed or by
// itself without an error.
func (c *child) reap(t testing.TB, killed bool) {
	t.Helper()
	c.done = true
	io.Copy(io.Discard, c.out)
	err := c.Wait()
	status, _ := c.ProcessState.Sys().(syscall.WaitStatus)
	if got := status.Signaled() && status.Signal() == syscall.SIGKILL; got != killed || err != nil && !killed {
		t.Fatalf("child %v: %v, want killed %t; it says: %s", c.Args, err, killed, &c.errs)
	}
}

// reporter is what testing.T and rapid.T have in common here.
type reporter interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func must(t reporter, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("after a minute still not: %s", what)
		}
	}
}

// board is a page of counters that processes share.
type board [64]struct {
	n atomic.Uint64
	_ [56]byte // a cache line each
}

func newBoard(t testing.TB) (*board, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "board")
	must(t, os.WriteFile(path, make([]byte, unsafe.Sizeof(board{})), 0o600))
	b, err := openBoard(path)
	must(t, err)
	return b, path
}

func openBoard(path string) (*board, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(board{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*board)(unsafe.Pointer(&data[0])), nil
}
