// The process that stays beside a program.
//
// It is no child of the program, which could otherwise meet it in a wait: run starts
// it through a process that ends at once. It has none of the caller's descriptors,
// so nobody waits for it at the end of a pipe, and its own session, so that no signal
// of the terminal or of the process group reaches it.
//
// It makes files of the lease again that somebody removes, see [share.Lease.Keep]. It
// has no part in the lease as long as the program has its descriptor. Otherwise
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
	Program string      // measurements are kept under this name, see [given.Program]
	Meter   share.Meter // of the first GPU; nil measures nothing
	leases  []keptLease
	pidfd   *os.File // /dev/null where this kernel has no pidfd
}

// A keptLease is a lease as the keeper has it.
type keptLease struct {
	record string // its file, see [share.Lease.Path]
	lock   syscall.Flock_t
	file   *os.File // the lock file; its description does not hold the lease
}

// The keeper's descriptors: the program's pidfd, and of each lease the lock file and
// the record.
const (
	pidfdAt = 3
	filesAt = 4
)

// startKeeper starts the keeper's command for this process, which is about to become
// the program. It does nothing where the keeper would become a child of the program:
// in the first process of a container, and in a process that adopts orphans.
func startKeeper(command, env []string, program string, leases []holding) error {
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
	start, _ := startOf(os.Getpid())
	args := append(command[:len(command):len(command)], strconv.Itoa(os.Getpid()), strconv.FormatUint(start, 10), program)
	for _, l := range leases {
		// The same file, but another description, which does not hold the lease.
		again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", l.file.Fd()), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer again.Close()
		lock, ok, err := lockOn(again)
		if err != nil {
			return err
		}
		record, err := os.Open(l.record)
		if err != nil {
			return err
		}
		defer record.Close()
		if ok {
			args = append(args, fmt.Sprintf("%d+%d", lock.Start, lock.Len), l.record)
			files = append(files, again, record)
		}
	}
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
	if len(args) < 3 || len(args)%2 == 0 {
		return nil, fmt.Errorf("the keeper has %d arguments; want PID START PROGRAM and for each lease LOCK RECORD: gpumem run starts it", len(args))
	}
	k := &Keeper{Program: args[2]}
	var err error
	if k.PID, err = strconv.Atoi(args[0]); err != nil || k.PID <= 0 {
		return nil, fmt.Errorf("the keeper's process is %q; want a number above 0", args[0])
	}
	if k.Start, err = strconv.ParseUint(args[1], 10, 64); err != nil {
		return nil, fmt.Errorf("the start of the keeper's process is %q; want a number", args[1])
	}
	for rest := args[3:]; len(rest) > 0; rest = rest[2:] {
		lock, err := parseLock(rest[0])
		if err != nil {
			return nil, err
		}
		k.leases = append(k.leases, keptLease{lock: lock, record: rest[1]})
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
	mine := filesAt + 2*len(k.leases)
	for fd := pidfdAt; fd < mine; fd++ {
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
	k.pidfd = os.NewFile(pidfdAt, "pidfd")
	measured := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	var attended []*share.Lease
	for i := range k.leases {
		file, record := os.NewFile(uintptr(filesAt+2*i), "lock"), os.NewFile(uintptr(filesAt+2*i+1), "record")
		k.leases[i].file = file
		if l, err := share.Attend(k.leases[i].record, record, file); err == nil {
			attended = append(attended, l)
			go l.Keep(ctx)
		}
	}
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
	for _, l := range k.leases { // before anything that takes time
		_ = unlock(l)
	}
	cancel()
	for _, l := range attended {
		_ = l.Close() // what is left is removed by the next one who looks
	}
	<-measured
	l.save(given.NewLearned(), k.Program, func(string, ...any) {}) // there is nobody to read it
}

// hold takes the lock of each lease that the program no longer has.
func (k *Keeper) hold() {
	for _, l := range k.leases {
		if _, taken, err := lockOn(l.file); err == nil && !taken {
			_ = syscall.FcntlFlock(l.file.Fd(), ofdSetlk, &l.lock) // tried again at the next tick
		}
	}
}

// unlock gives up what hold has taken.
func unlock(l keptLease) error {
	l.lock.Type = syscall.F_UNLCK
	return syscall.FcntlFlock(l.file.Fd(), ofdSetlk, &l.lock)
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
