package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The variables by which a program knows which of the three it is: without them the one
// that was started, with envStage=init the first process of the namespaces, and with
// envStage=inside the one that goes on.
const (
	envStage  = "GPUMEM_CLUSTER_STAGE"
	envFolder = "GPUMEM_CLUSTER_FOLDER"
	// EnvKeep is the variable with a folder that gets the logs; without it they are
	// removed, but after a failure.
	EnvKeep = "GPUMEM_CLUSTER_LOGS"
)

// prefix begins the names of the folders and the cgroups of all test clusters.
const prefix = "gpumem-cluster-"

// Enter runs f in private namespaces of processes, mounts and network, as root of a machine
// in which nothing else runs, and returns its exit status. To do so it starts this program
// again: what the caller does before Enter, it does three times.
//
// prepare is called once, before, in the machine itself, with the folder that Folder
// returns inside: it may use the network. If Missing has a reason, or prepare fails with a
// Skip, f runs where it is and Skipped returns the reason.
//
// When f returns, panics or is killed, or this program is interrupted or killed, the
// kernel ends every process in the namespaces, and with the last of them go the mounts, the
// network and the addresses. Cgroups and files are removed afterwards; where this program was
// killed outright, by the next that enters. What is left in spite of that is reported, and
// the status is 1 then.
func Enter(prepare func(folder string) error, f func() int) int {
	switch os.Getenv(envStage) {
	case "inside":
		return f()
	case "init":
		return initialise()
	}
	if skipped = Missing(); skipped != "" {
		return f()
	}
	status, err := enter(prepare)
	var skip Skip
	if errors.As(err, &skip) {
		skipped = skip.Error()
		return f()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test cluster:", err)
		return max(status, 1)
	}
	return status
}

var skipped string

// Skip is an error for what is missing on this machine.
type Skip string

func (s Skip) Error() string { return string(s) }

// Skipped returns why this program is not in namespaces of its own, or "" if it is.
func Skipped() string {
	if skipped == "" && os.Getenv(envStage) != "inside" {
		return "not in the namespaces of a test cluster, see node.Enter"
	}
	return skipped
}

// Folder returns the folder of this run. Everything in it is removed at the end.
func Folder() string { return os.Getenv(envFolder) }

// enter starts the first process of the namespaces and waits for it.
func enter(prepare func(string) error) (status int, err error) {
	turn, err := takeTurn()
	if err != nil {
		return 1, err
	}
	defer turn.Close()
	sweep()
	folder, err := os.MkdirTemp("", prefix)
	if err != nil {
		return 1, err
	}
	// The lock says that this run is alive; the kernel drops it with this process.
	lock, err := os.Create(filepath.Join(folder, "lock"))
	if err != nil {
		return 1, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return 1, err
	}
	defer func() {
		if left := leave(folder, status != 0 || err != nil); left != nil {
			status, err = 1, errors.Join(err, left)
		}
	}()
	if err := prepare(folder); err != nil {
		return 1, err
	}

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer signal.Stop(signals)
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	c := exec.Command(self, os.Args[1:]...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Env = append(os.Environ(), envStage+"=init", envFolder+"="+folder)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Setpgid:    true, // an interrupt of the terminal reaches this process alone
		Pdeathsig:  syscall.SIGKILL,
	}
	runtime.LockOSThread() // Pdeathsig is the death of the thread
	defer runtime.UnlockOSThread()
	if err := c.Start(); err != nil {
		return 1, fmt.Errorf("namespaces: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case <-ended:
		return c.ProcessState.ExitCode(), nil
	case s := <-signals:
		_ = c.Process.Kill()
		<-ended
		return 1, fmt.Errorf("stopped by %v", s)
	}
}

// takeTurn waits until no other test cluster runs on this machine. Leases are locks of the
// kernel, and its table shows them through all namespaces: two clusters with GPUs of the same
// name would each count the other's leases.
func takeTurn() (*os.File, error) {
	turn, err := os.OpenFile(filepath.Join(os.TempDir(), prefix+"turn"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(turn.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == syscall.EWOULDBLOCK {
		fmt.Fprintln(os.Stderr, "test cluster: waiting for another one on this machine to end")
		err = syscall.Flock(int(turn.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		turn.Close()
		return nil, fmt.Errorf("%s: %w", turn.Name(), err)
	}
	return turn, nil
}

// initialise is the first process of the namespaces: it makes them look like a machine of
// their own, starts the program again, and collects the processes that others leave behind.
func initialise() int {
	if err := mounts(Folder()); err != nil {
		fmt.Fprintln(os.Stderr, "test cluster:", err)
		return 1
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Setenv(envStage, "inside")
	}
	var pid int
	if err == nil {
		pid, err = syscall.ForkExec(self, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test cluster:", err)
		return 1
	}
	for {
		var s syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &s, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			fmt.Fprintln(os.Stderr, "test cluster: wait:", err)
			return 1
		case ended == pid && s.Signaled():
			fmt.Fprintln(os.Stderr, "test cluster: killed by", s.Signal())
			return 1
		case ended == pid:
			return s.ExitStatus()
		}
	}
}

// sysctls are what the kubelet wants the machine's settings to be. It is shown files with
// these values, so that it finds them as it wants and writes none: they are not the
// namespace's but the whole machine's.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mounts gives the namespace a /proc of its own and, in the place of the machine's, folders
// of this run under the paths that are fixed in the programs.
func mounts(folder string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	make := func(parts ...string) string {
		dir := filepath.Join(append([]string{folder}, parts...)...)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, "test cluster:", err)
		}
		return dir
	}
	for _, dir := range []string{"/run", "/var/log"} {
		if err := syscall.Mount(make("root", dir), dir, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	// What is in /var/lib stays visible, for users whose home is there.
	if err := syscall.Mount("overlay", "/var/lib", "overlay", 0, "lowerdir=/var/lib,upperdir="+make("root/var/lib")+",workdir="+make("root/work")); err != nil {
		return fmt.Errorf("mount /var/lib: %w", err)
	}
	for name, value := range sysctls {
		file := filepath.Join(make("sysctl"), strings.ReplaceAll(name, "/", "."))
		err := os.WriteFile(file, []byte(value+"\n"), 0o644)
		if err == nil {
			err = syscall.Mount(file, "/proc/sys/"+name, "", syscall.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("mount /proc/sys/%s: %w", name, err)
		}
	}
	return nil
}

// cgroupRoots returns the folders in which a cgroup of the run is: one per hierarchy.
func cgroupRoots() []string {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err == nil {
		return []string{top}
	}
	entries, _ := os.ReadDir(top)
	var roots []string
	for _, e := range entries {
		dir := filepath.Join(top, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil && e.Type()&fs.ModeSymlink == 0 {
			roots = append(roots, dir)
		}
	}
	return roots
}

// leave removes what a run has made and returns an error that names what could not be.
func leave(folder string, failed bool) error {
	var left []error
	for _, root := range cgroupRoots() {
		left = append(left, removeCgroup(filepath.Join(root, filepath.Base(folder))))
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, folder) {
				left = append(left, fmt.Errorf("mount is left: %s", strings.TrimSpace(line)))
			}
		}
	}
	logs := filepath.Join(folder, "log")
	if to := os.Getenv(EnvKeep); to != "" {
		if err := os.CopyFS(to, os.DirFS(logs)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = append(left, fmt.Errorf("logs of the test cluster: %w", err))
		}
	} else if entries, _ := os.ReadDir(logs); failed && len(entries) > 0 {
		if to, err := os.MkdirTemp("", "gpumem-logs-"); err == nil && os.CopyFS(to, os.DirFS(logs)) == nil {
			fmt.Fprintln(os.Stderr, "test cluster: logs are in", to)
		}
	}
	return errors.Join(append(left, os.RemoveAll(folder))...)
}

// removeCgroup removes a cgroup with all below it. Its processes are dead, but the kernel
// may still be busy with the last of them, so it tries for a while.
func removeCgroup(dir string) error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var err error
		var dirs []string
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, walkErr error) error {
			if walkErr == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			if rm := unix.Rmdir(dirs[i]); rm != nil && rm != unix.ENOENT {
				err = fmt.Errorf("cgroup %s is left: %w", dirs[i], rm)
			}
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// sweep removes what runs that were killed outright have left.
func sweep() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, folder := range folders {
		lock, err := os.Open(filepath.Join(folder, "lock"))
		if err != nil {
			continue // being made now, or not ours
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if err := leave(folder, false); err != nil {
				fmt.Fprintln(os.Stderr, "test cluster: of an earlier run:", err)
			}
		}
		lock.Close()
	}
}

// makeCgroup makes the cgroup of this run in every hierarchy and returns its path in them.
func makeCgroup() (string, error) {
	name := filepath.Base(Folder())
	for _, root := range cgroupRoots() {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		// A new cgroup of cpuset has no processors, and none can be started in it.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if b, err := os.ReadFile(filepath.Join(root, file)); err == nil {
				if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
					return "", err
				}
			}
		}
	}
	return "/" + name, nil
}

// network makes the interfaces of the machine: the loopback and one with address, over
// which a default route leads nowhere.
func network(addresses ...string) error {
	orders := [][]string{{"link", "set", "lo", "up"}, {"link", "add", "node0", "type", "veth", "peer", "name", "node1"}, {"link", "set", "node0", "up"}, {"link", "set", "node1", "up"}}
	for _, a := range addresses {
		orders = append(orders, []string{"addr", "add", a, "dev", "node0"})
	}
	for _, o := range append(orders, []string{"route", "add", "default", "dev", "node0"}) {
		if out, err := exec.Command("ip", o...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(o, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
