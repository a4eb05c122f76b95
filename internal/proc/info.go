// The identity of a process: its user, command, container, age, and whether its parent
// is still the one that started it.

package proc

import (
	"os/user"
	"strconv"
	"sync"
	"time"
)

// Info describes a process.
type Info struct {
	PID    int
	Parent int // 0 if none can be seen from here
	// ParentGone says that the parent that started it has ended, and another
	// has taken it in. It is true only where that is sure; [Look] has the rule.
	ParentGone bool
	UID        int       // the effective one
	User       string    // its name, or its number where it has none here
	Command    []string  // the program and its arguments; empty where it shows none
	Name       string    // as the kernel has it, up to 15 bytes
	Container  string    // the first 12 digits of its id; empty if none, or this process's own
	Started    time.Time // to a hundredth of a second; it may differ as much from look to look
	Start      uint64    // the same in ticks after the machine's start, always the same
	Session    int       // 0 if it cannot be seen from here
	Group      int       // the same
}

// Look describes a process.
//
// ParentGone follows from what the kernel lets a process inherit. A process has
// the session of the parent that started it, or it leads one of its own; with
// neither, its parent has ended. So has that of whatever is in a scope of
// systemd (a login, a terminal) and has systemd for a parent, since systemd
// itself starts nothing there. Where the first process of a container is the
// parent, and no shell, the same holds of the process group as of the session.
//
// Some have left their parent on purpose, and do not count: services that
// put themselves in the background, what the desktop has started, and what nohup
// runs. Others cannot be told from what their parent still waits for, such as a
// program in a container whose processes are all in one group; they do not
// count either.
func Look(pid int) (Info, error) { return look(pid) }

// HostPIDs reports whether processes have the numbers here that they have for the
// machine's drivers: in a container they usually have others.
func HostPIDs() bool { return hostPIDs() }

// Opens reports whether a process has a file open whose name begins with prefix,
// such as "/dev/nvidia".
func Opens(pid int, prefix string) (bool, error) { return opens(pid, prefix) }

// UserName returns the name of a user, or the number if it has no name here.
func UserName(uid int) string {
	if name, ok := userNames.Load(uid); ok {
		return name.(string)
	}
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil && u.Username != "" {
		name = u.Username
	}
	userNames.Store(uid, name)
	return name
}

// userNames caches names, which may come over the network.
var userNames sync.Map
