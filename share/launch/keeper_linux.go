// The process that stays beside a program.
//
// It is no child of the program, which could otherwise meet it in a wait: run starts
// it through a process that ends at once. It has none of the caller's descriptors,
// so nobody waits for it at the end of a pipe, and its own session, so that no signal
// of the terminal or of the process group reaches it.
//
// It has no part in the lease as long as the program has its descriptor. Otherwise
// the lease would end a moment after the program, and a command that follows at once
// would not find the memory free.

package launch

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"gpumem/share"
	"gpumem/share/given"
)

// F_OFD_GETLK and F_OFD_SETLK of Linux's fcntl.h, the same on every architecture.
const (
	ofdGetlk = 36
	ofdSetlk = 37
)

// sysPidfdOpen is pidfd_open (Linux 5.3), the same on every architecture.
const sysPidfdOpen = 434

// tick is how often the keeper looks whether the program still has its lease. Tests
// shorten it.
var tick = time.Second

// A Keeper is what the keeper's process has to know. Its command line has it as
// text, see Args.
type Keeper struct {
	PID     int
	Start   uint64      // of the process, in clock ticks since the machine's start
	Locks   []string    // a lease's lock each, as START+LENGTH
	Program string      // measurements are kept under this name, see [given.Program]
	Meter   share.Meter // of the first GPU; nil measures nothing
	files   []*os.File  // the lock files, in the order of Locks
	pidfd   *os.File    // /dev/null where this kernel has no pidfd
}

// startKeeper starts the keeper's command for this process, which is about to become
// the program. It does nothing where the keeper would become a child of the program:
// in the first process of a container, and in a process that adopts orphans.
func startKeeper(command, env []string, program string, leases []*os.File) error {
	if len(command) == 0 || os.Getpid() == 1 || adoptsOrphans() {
		return nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	files := []*os.File{null, null, null, null}
	if fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(os.Getpid()), 0, 0); errno == 0 {
		files[3] = os.NewFile(fd, "pidfd")
		defer files[3].Close()
	}
	var locks []string
	for _, f := range leases {
		// The same file, but another description, which does not hold the lease.
		again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer again.Close()
		lock, ok, err := lockOn(again)
		if err != nil {
			return err
		}
		if ok {
			locks = append(locks, fmt.Sprintf("%d+%d", lock.Start, lock.Len))
			files = append(files, again)
		}
	}
	start, _ := startOf(os.Getpid())
	args := append(command[:len(command):len(command)], strconv.Itoa(os.Getpid()), strconv.FormatUint(start, 10), strings.Join(locks, ","), program)
	p, err := os.StartProcess(command[0], args, &os.ProcAttr{Dir: "/", Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return err
	}
	_, err = p.Wait() // it has started the keeper
	return err
}

// lockOn returns the lock that another description has on a file.
func lockOn(f *os.File) (l syscall.Flock_t, ok bool, err error) {
	l = syscall.Flock_t{Type: syscall.F_WRLCK}
	err = syscall.FcntlFlock(f.Fd(), ofdGetlk, &l)
	return l, err == nil && l.Type != syscall.F_UNLCK, err
}

// adoptsOrphans reports whether processes that lose their parent become children of
// this one. Programs inherit that.
func adoptsOrphans() bool {
	const getChildSubreaper = 37
	var yes int32
	_, _, errno := syscall.Syscall(syscall.SYS_PRCTL, getChildSubreaper, uintptr(unsafe.Pointer(&yes)), 0)
	return errno == 0 && yes != 0
}

// NewKeeper reads the words that startKeeper puts behind the keeper's command.
func NewKeeper(args []string) (*Keeper, error) {
	if len(args) != 4 {
		return nil, fmt.Errorf("the keeper has %d arguments; want 4: it is started by gpumem run alone", len(args))
	}
	k := &Keeper{Program: args[3]}
	var err error
	if k.PID, err = strconv.Atoi(args[0]); err != nil || k.PID <= 0 {
		return nil, fmt.Errorf("the keeper's process is %q; want a number above 0", args[0])
	}
	if k.Start, err = strconv.ParseUint(args[1], 10, 64); err != nil {
		return nil, fmt.Errorf("the start of the keeper's process is %q; want a number", args[1])
	}
	if args[2] != "" {
		k.Locks = strings.Split(args[2], ",")
	}
	for _, text := range k.Locks {
		if _, err := parseLock(text); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func parseLock(text string) (l syscall.Flock_t, err error) {
	l.Type = syscall.F_WRLCK
	if n, err := fmt.Sscanf(text, "%d+%d", &l.Start, &l.Len); n != 2 || err != nil || l.Start < 0 || l.Len < 0 {
		return l, fmt.Errorf("the keeper's lock is %q; want START+LENGTH in bytes", text)
	}
	return l, nil
}

// Detach starts this command a second time, for the keeper, and reports whether this
// is the first: that one has done its part and ends. The second has lost its parent
// then, and with it every tie to the program.
func (k *Keeper) Detach() (first bool, err error) {
	const mark = "GPUMEM_KEEPER=1"
	if name, value, _ := strings.Cut(mark, "="); os.Getenv(name) == value {
		return false, nil
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	mine := 4 + len(k.Locks)
	for fd := 3; fd < mine; fd++ {
		files = append(files, os.NewFile(uintptr(fd), ""))
	}
	for _, fd := range descriptors() {
		if fd >= mine {
			syscall.CloseOnExec(fd)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return true, err
	}
	_, err = os.StartProcess(exe, os.Args, &os.ProcAttr{Env: append(os.Environ(), mark), Files: files})
	return true, err
}

// Run stays until the program has ended.
func (k *Keeper) Run() {
	// A stop of the whole service reaches the keeper, too; it ends with the program.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	k.pidfd = os.NewFile(3, "pidfd")
	for i := range k.Locks {
		k.files = append(k.files, os.NewFile(uintptr(4+i), "lock"))
	}
	measured := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	l := newLearner(k.PID, os.Environ(), k.Meter)
	go func() {
		defer close(measured)
		if k.Meter != nil {
			l.watch(ctx)
		}
	}()
	for !k.ended() {
		k.hold()
	}
	for _, f := range k.files { // before anything that takes time
		f.Close()
	}
	cancel()
	<-measured
	l.save(given.NewLearned(), k.Program, func(string, ...any) {}) // there is nobody to read it
}

// hold takes the lock of each lease that the program no longer has. Closing the
// file gives it up.
func (k *Keeper) hold() {
	for i, f := range k.files {
		if _, taken, err := lockOn(f); err != nil || taken {
			continue
		}
		if lock, err := parseLock(k.Locks[i]); err == nil {
			_ = syscall.FcntlFlock(f.Fd(), ofdSetlk, &lock) // tried again at the next tick
		}
	}
}

// ended waits a tick for the end of the program and reports whether it has ended.
func (k *Keeper) ended() bool {
	var stat syscall.Stat_t
	if syscall.Fstat(int(k.pidfd.Fd()), &stat) == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFCHR {
		time.Sleep(tick) // it is /dev/null: this kernel has no pidfd
		if syscall.Kill(k.PID, 0) == syscall.ESRCH {
			return true
		}
		start, ok := startOf(k.PID)
		return ok && start != k.Start
	}
	type pollfd struct {
		fd              int32
		events, revents int16
	}
	const pollin = 1
	p := pollfd{fd: int32(k.pidfd.Fd()), events: pollin}
	t := syscall.NsecToTimespec(int64(tick))
	_, _, _ = syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&t)), 0, 0, 0)
	return p.revents != 0
}

// startOf returns when a process started, in clock ticks since the machine's start;
// ok is false if there is no such process.
func startOf(pid int) (ticks uint64, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The second field is the name in brackets, and may have any in it.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const field = 22 - 3 // see proc(5)
	if len(fields) <= field {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[field], 10, 64)
	return ticks, err == nil
}
