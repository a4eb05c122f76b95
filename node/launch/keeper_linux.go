// The keeper: the process that stays beside a program.
//
// It is not a child of the program, which could otherwise meet it in a wait: run starts
// it through a process that ends at once. It has none of the caller's descriptors, so
// no reader waits for it at the end of a pipe, and its own session, so that no signal
// of the terminal or of the process group reaches it.
//
// It makes files of the lease again that somebody removes, see [share.Lease.Keep]. And
// it holds the lease from before the program's first instruction until it has seen its
// end, so a program that closes every descriptor still has its memory. Then it looks
// for processes that the program has left behind, and goes on for them.
//
// A command that follows the program at once may find the lease still held. It waits
// for the keeper then, see [registry.Attend].

package launch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/node/internal/lease"
	"gpumem/node/internal/overhead"
	"gpumem/node/internal/registry"
	"gpumem/node/runenv"
	"gpumem/node/share"
)

// sysPidfdOpen is pidfd_open (Linux 5.3), the same on every architecture.
const sysPidfdOpen = 434

// tick is how often the keeper looks whether the process that it watches still is the
// one that it was, or, without a pidfd, whether it has ended. Tests shorten it.
var tick = time.Second

// keeper is what the keeper's process knows, from its command line.
type keeper struct {
	pid     int
	start   uint64      // of the process, in clock ticks since the machine's start
	program string      // measurements are kept under this name, see programName
	meter   share.Meter // of the first GPU; nil measures nothing
	id      string      // of the lease, as its programs have it, see [runenv.EnvLeaseID]; empty where they have none
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
	if f, ok := pidfdOf(os.Getpid()); ok {
		files[3] = f
		defer f.Close()
	}
	self, _ := proc.ReadStat(os.Getpid())
	// Without the variable in its own environment, by which it looks for others.
	id := ""
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		value, found := strings.CutPrefix(e, runenv.EnvLeaseID+"=")
		if found {
			id = value
		}
		return found
	})
	args := append(command[:len(command):len(command)], strconv.Itoa(os.Getpid()), strconv.FormatUint(self.Start, 10), program, id)
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
	p, err := os.StartProcess(command[0], args, &os.ProcAttr{Dir: "/", Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return err
	}
	_, err = p.Wait() // it has started the keeper
	return err
}

// adoptsOrphans reports whether processes that lose their parent become children of
// this one. Programs inherit that.
func adoptsOrphans() bool {
	const getChildSubreaper = 37
	var yes int32
	_, _, errno := syscall.Syscall(syscall.SYS_PRCTL, getChildSubreaper, uintptr(unsafe.Pointer(&yes)), 0)
	return errno == 0 && yes != 0
}

// newKeeper reads the words that startKeeper puts behind the keeper's command.
func newKeeper(args []string) (*keeper, error) {
	if len(args) < 4 {
		return nil, fmt.Errorf("the keeper has %d arguments; want PID START PROGRAM ID and for each lease RECORD: gpumem run starts it", len(args))
	}
	k := &keeper{program: args[2], id: args[3], records: args[4:]}
	var err error
	if k.pid, err = strconv.Atoi(args[0]); err != nil || k.pid <= 0 {
		return nil, fmt.Errorf("the keeper's process is %q; want a number above 0", args[0])
	}
	if k.start, err = strconv.ParseUint(args[1], 10, 64); err != nil {
		return nil, fmt.Errorf("the start of the keeper's process is %q; want a number", args[1])
	}
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
	l := newSampler(k.pid, os.Environ(), k.meter)
	go func() {
		defer close(measured)
		if k.meter != nil {
			l.watch(ctx)
		}
	}()
	for pidfd := os.NewFile(pidfdAt, "pidfd"); !k.ended(pidfd); {
	}
	k.stayForOthers(attended)
	for _, f := range holding { // before anything that takes time
		_ = f.Close()
	}
	cancel()
	for _, l := range attended {
		_ = l.Close() // what is left is removed by the next one who looks
	}
	<-measured
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
	return await(pidfd)
}

// stayForOthers returns when no process is left whose environment names the lease: a
// daemon has closed what holds it. Lists show the process that is stayed for.
func (k *keeper) stayForOthers(leases []*share.Lease) {
	if k.id == "" || len(k.records) == 0 {
		return
	}
	for pid := k.other(); pid != 0; pid = k.other() {
		for _, l := range leases {
			_ = l.Tell(pid) // it may have ended already
		}
		for named(pid, k.id) == yes {
			if f, ok := pidfdOf(pid); ok {
				await(f)
				f.Close()
			} else {
				time.Sleep(tick)
			}
		}
	}
}

// other returns a process whose environment names the lease, 0 if there is none. It
// sees only processes that this user may look into.
func (k *keeper) other() int {
	// The environment of a process that is just becoming another program is unknown
	// for less than a millisecond.
	for range 10 {
		entries, _ := os.ReadDir("/proc")
		doubt := false
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			switch named(pid, k.id) {
			case yes:
				return pid
			case unknown:
				doubt = true
			}
		}
		if !doubt {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return 0
}

// An answer is what is known of a process.
type answer int

const (
	no answer = iota
	yes
	unknown
)

// named reports whether a process's environment names a lease or a part of it. That is
// unknown where a program has no environment, or does not have it yet.
func named(pid int, id string) answer {
	dir := "/proc/" + strconv.Itoa(pid)
	env, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return no
	}
	if len(env) == 0 {
		if _, err := os.Readlink(dir + "/exe"); err != nil {
			return no // of the kernel, or ended
		}
		return unknown
	}
	for e := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(e, []byte(runenv.EnvLeaseID+"=")); ok {
			rest, ok := bytes.CutPrefix(value, []byte(id))
			if ok && (len(rest) == 0 || rest[0] == '.') {
				return yes
			}
			return no
		}
	}
	return no
}

// pidfdOf returns a descriptor that stands for a process; ok is false where there is
// no such process, or this kernel has none.
func pidfdOf(pid int) (f *os.File, ok bool) {
	fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return nil, false
	}
	return os.NewFile(fd, "pidfd"), true
}

// await waits a tick for the end of a process and reports whether it has ended.
func await(pidfd *os.File) bool {
	type pollfd struct {
		fd              int32
		events, revents int16
	}
	const pollin = 1
	p := pollfd{fd: int32(pidfd.Fd()), events: pollin}
	t := syscall.NsecToTimespec(int64(tick))
	_, _, _ = syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&t)), 0, 0, 0)
	return p.revents != 0
}
