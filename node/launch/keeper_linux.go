// The keeper: the process that stays beside a program.
//
// It is not a child of the program, which could otherwise meet it in a wait: run starts
// it through a process that ends at once. It has none of the caller's descriptors, so
// no reader waits for it at the end of a pipe, but for a program with memory beside its
// lease, see lastword_linux.go. It has its own session, so that no signal of the terminal
// or of the process group reaches it.
//
// It makes files of the lease again that somebody removes, see [share.Lease.Keep]. And
// it holds the lease from before the program's first instruction until it has seen its
// end, so a program that closes every descriptor still has its memory. Then it looks
// for processes that the program has left behind, see family_linux.go, and goes on for
// them.
//
// A command that follows the program at once may find the lease still held. It waits
// for the keeper then, see [registry.Attend].

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

	"golang.org/x/sys/unix"

	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/node/internal/lease"
	"gpumem/node/internal/overhead"
	"gpumem/node/internal/registry"
	"gpumem/node/share"
)

// tick is how often the keeper looks whether the process that it watches still is the
// one that it was, or, without a pidfd, whether it has ended. Tests shorten it.
var tick = time.Second

// keeper is what the keeper's process knows, from its command line.
type keeper struct {
	pid     int
	start   uint64      // of the process, in clock ticks since the machine's start
	program string      // measurements are kept under this name, see programName
	meter   share.Meter // of the first GPU; nil measures nothing
	family  *family     // of the program and what it leaves behind; its mark is 0 where it has none
	records []string    // the file of each lease, see [share.Lease.Path]
}

// Keep is all that the command does that [Plan].Keeper names: it stays beside the
// program until the program and what it leaves behind have ended. device is the value
// of its flag --device, args its other arguments.
func Keep(device string, args []string) error {
	if len(args) == 1 && args[0] == witnessArg {
		reportSignals()
		return nil
	}
	k, err := newKeeper(args)
	if err != nil {
		return err
	}
	unmark() // of an outer run, whose keeper would take this one for a part of its family
	if first, err := k.detach(); first || err != nil {
		return err
	}
	if spec, err := open.Parse(device); err == nil {
		k.meter = meter{spec}
	}
	k.run()
	return nil
}

// The keeper's descriptors: the program's pidfd (/dev/null where this kernel has none),
// and of each lease what holds it, the lock file by another description, and the record.
const (
	pidfdAt  = 3
	filesAt  = 4
	perLease = 3
)

// startKeeper starts the keeper's command for a process of a family: this one, which is
// about to become the program, or a child. It is no child of this one afterwards, also
// where this one adopts orphans, but in the first process of a pid namespace.
func startKeeper(command, env []string, pid int, family mark, program string, leases []holding) error {
	if len(command) == 0 {
		return nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	files := []*os.File{null, null, null, null}
	if f, err := pidfdOf(pid); err == nil {
		files[3] = f
		defer f.Close()
	}
	self, _ := proc.ReadStat(pid)
	args := append(command[:len(command):len(command)],
		strconv.Itoa(pid), strconv.FormatUint(self.Start, 10), program, strconv.FormatUint(uint64(family), 10))
	for _, l := range leases {
		// The same file, but another description, which does not hold the lease.
		again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", l.file.Fd()), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer again.Close()
		if err := registry.Attend(again); err != nil {
			return err
		}
		record, err := os.Open(l.record)
		if err != nil {
			return err
		}
		defer record.Close()
		args = append(args, l.record)
		files = append(files, l.file, again, record)
	}
	if adoptsOrphans() {
		if err := adoptOrphans(false); err != nil {
			return err
		}
		defer func() { _ = adoptOrphans(true) }()
	}
	p, err := os.StartProcess(command[0], args, &os.ProcAttr{Dir: "/", Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return err
	}
	_, err = p.Wait() // it has started the keeper
	return err
}

// adoptsOrphans reports whether processes that lose their parent become children of
// this one. A program that takes its place does so, too.
func adoptsOrphans() bool {
	var yes int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&yes)), 0, 0, 0); err != nil {
		yes = 0
	}
	return yes != 0 || os.Getpid() == 1
}

// adoptOrphans sets what adoptsOrphans reports, which has no effect on the first process
// of a pid namespace.
func adoptOrphans(yes bool) error {
	n := uintptr(0)
	if yes {
		n = 1
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, n, 0, 0, 0)
}

// newKeeper reads the words that startKeeper puts behind the keeper's command.
func newKeeper(args []string) (*keeper, error) {
	if len(args) < 4 {
		const text = "the keeper has %d arguments; want PID START PROGRAM MARK and for each lease RECORD: gpumem run starts it"
		return nil, fmt.Errorf(text, len(args))
	}
	k := &keeper{program: args[2], records: args[4:]}
	var err error
	if k.pid, err = strconv.Atoi(args[0]); err != nil || k.pid <= 0 {
		return nil, fmt.Errorf("the keeper's process is %q; want a number above 0", args[0])
	}
	if k.start, err = strconv.ParseUint(args[1], 10, 64); err != nil {
		return nil, fmt.Errorf("the start of the keeper's process is %q; want a number", args[1])
	}
	number, err := strconv.ParseUint(args[3], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the mark of the keeper's family is %q; want a number", args[3])
	}
	k.family = familyOf(mark(number))
	return k, nil
}

// detach starts this command a second time, for the keeper, and reports whether this
// is the first: that one has done its part and ends. The second has lost its parent
// then, and with it every tie to the program.
func (k *keeper) detach() (first bool, err error) {
	const mark = "GPUMEM_KEEPER=1"
	if name, value, _ := strings.Cut(mark, "="); os.Getenv(name) == value {
		return false, nil
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	mine := filesAt + perLease*len(k.records)
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

// run stays until the program has ended, and all that it has left behind.
func (k *keeper) run() {
	// A stop of the whole service reaches the keeper, too; it ends with the program.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	measured := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	var holding []*os.File
	var attended []*share.Lease
	for i, path := range k.records {
		at := uintptr(filesAt + perLease*i)
		lock, record := os.NewFile(at+1, "lock"), os.NewFile(at+2, "record")
		holding = append(holding, os.NewFile(at, "lease"))
		if l, err := lease.Attend(path, record, lock); err == nil {
			attended = append(attended, l)
			go l.Keep(ctx)
		}
	}
	pidfd := os.NewFile(pidfdAt, "pidfd")
	l := newSampler(k.pid, os.Environ(), k.meter)
	last := newLastWord(k.pid, pidfdAt)
	l.found = last.keep
	if len(attended) > 0 { // the keeper's environment does not name the lease
		l.run = attended[0].ID()
	}
	go func() {
		defer close(measured)
		if k.meter != nil {
			l.watch(ctx)
		}
	}()
	for !k.ended(pidfd) {
		last.check()
	}
	said := make(chan struct{})
	go func() { // the lease does not wait for a reader
		defer close(said)
		last.say(l.besideLine())
	}()
	k.stayForOthers(attended)
	for _, f := range holding { // before anything that takes time
		_ = f.Close()
	}
	cancel()
	for _, l := range attended {
		_ = l.Close() // what is left is removed by the next one who looks
	}
	<-measured
	<-said
	l.save(overhead.NewStore(), k.program, func(string, ...any) {}) // no terminal is left to write to
}

// ended waits a tick for the end of the program and reports whether it has ended.
func (k *keeper) ended(pidfd *os.File) bool {
	var stat syscall.Stat_t
	if syscall.Fstat(int(pidfd.Fd()), &stat) == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFCHR {
		time.Sleep(tick) // it is /dev/null: this kernel has no pidfd
		if syscall.Kill(k.pid, 0) == syscall.ESRCH {
			return true
		}
		s, ok := proc.ReadStat(k.pid)
		return ok && s.Start != k.start
	}
	return hasEnded(pidfd, tick)
}

// stayForOthers returns when no process of the family is left. Lists show the one that is
// stayed for.
func (k *keeper) stayForOthers(leases []*share.Lease) {
	if k.family.mark == 0 || len(k.records) == 0 {
		return
	}
	for pid, pidfd := k.family.survivor(); pid != 0; pid, pidfd = k.family.survivor() {
		for _, l := range leases {
			_ = l.Tell(pid) // it may have ended already
		}
		if pidfd == nil { // this kernel has none: a search every tick
			time.Sleep(tick)
			continue
		}
		for !hasEnded(pidfd, tick) {
		}
		pidfd.Close()
	}
}

// pidfdOf returns a descriptor that stands for a process. The error is syscall.ESRCH if
// there is no such process, and syscall.ENOSYS where this kernel has none.
func pidfdOf(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// hasEnded waits for the end of a process, at most for a while, and reports whether it has
// ended.
func hasEnded(pidfd *os.File, while time.Duration) bool {
	t := unix.NsecToTimespec(int64(while))
	n, _ := unix.Ppoll([]unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}, &t, nil)
	return n > 0
}
