// One copy: the program takes the place of this process.

package launch

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"gpumem/internal/unhandled"
)

// firstHigh is the number from which on the program's leases are open: above what
// shells and make use, and below the usual limit of 1024.
const firstHigh = 1000

// inherited returns the descriptors above standard error that a program started by
// this process inherits: at the start of a command, those that its caller passed on.
func inherited() map[int]bool {
	list := map[int]bool{}
	for _, fd := range descriptors() {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			list[fd] = true
		}
	}
	return list
}

// descriptors returns the open descriptors above standard error.
func descriptors() []int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var list []int
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			list = append(list, fd)
		}
	}
	return list
}

// replace makes this process the program. Besides the standard streams and the
// descriptors in theirs the program has the lock files of its leases, under numbers from firstHigh
// on. It returns only if the program cannot be started. What the caller has set for
// one thread, such as prctl's PR_SET_PDEATHSIG, the program has if this is the main
// thread.
func replace(command, env []string, theirs map[int]bool, leases []holding) error {
	path, err := lookPath(command[0])
	if err != nil {
		return err
	}
	// What a library of this process has left open is not the program's.
	for fd := range inherited() {
		if !theirs[fd] {
			syscall.CloseOnExec(fd)
		}
	}
	var high []int
	for _, l := range leases {
		fd, err := dupHigh(l.file)
		if err != nil {
			return notStarted(command[0], err)
		}
		high = append(high, fd)
	}
	err = syscall.Exec(path, command, env) // which restores the limit of open files
	if errors.Is(err, syscall.ENOEXEC) {
		shell, argv := byShell(path, command)
		err = syscall.Exec(shell, argv, env)
	}
	for _, fd := range high {
		syscall.Close(fd)
	}
	return notStarted(command[0], err)
}

// byShell returns the command line of a file that the kernel does not know, such as a
// script without #!: shells and execvp pass it to /bin/sh.
func byShell(path string, command []string) (shell string, argv []string) {
	return "/bin/sh", append([]string{"/bin/sh", path}, command[1:]...)
}

// dupHigh returns a descriptor of the same description that a program inherits, with
// a number as high as the limit of open files allows.
func dupHigh(f *os.File) (fd int, err error) {
	for from := firstHigh; from > 2; from /= 2 {
		if fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD, from); err != syscall.EINVAL {
			break
		}
	}
	return fd, err
}

// become makes this process the program of a plan.
func (p *Plan) become(env []string, leases []holding) error {
	if _, err := lookPath(p.Command[0]); err != nil { // before anything is started for it
		return err
	}
	family := p.newFamily(leases)
	p.startKeeper(env, os.Getpid(), family, leases)
	// From here on a signal is the program's, and does what it does before the program handles it.
	unhandled.Default(meant()...)
	if err := p.release(); err != nil {
		return err
	}
	defer family.put()()
	return replace(p.Command, env, p.inherited, leases)
}

// newFamily returns the mark of a program in these leases; of one in no lease, or only in a
// lease around it, the family is the one that this process is in.
func (p *Plan) newFamily(leases []holding) mark {
	if len(leases) == 0 {
		return 0
	}
	family, err := newMark()
	if err != nil {
		p.say("the lease ends with the program, also if that leaves a process that has closed its descriptors: %v", err)
	}
	return family
}

// startKeeper is the function startKeeper for a program of the plan.
func (p *Plan) startKeeper(env []string, pid int, family mark, leases []holding) {
	if err := startKeeper(p.keeper, env, pid, family, p.program, leases); err != nil {
		p.say("the lease ends if the program closes its descriptors: start of the keeper: %v", err)
	}
}
