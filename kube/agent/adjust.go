// What a container with a lease is given: the lease's file, the ledgers, the library, and
// the environment in which frameworks take their memory from it.

package agent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"gpumem/node/runenv"
	"gpumem/node/share"
	"gpumem/size"
)

// giver makes adjustments.
type giver struct {
	dir  string // a folder for each container
	lib  string // the folder of the pool library on the host
	pool string
}

// ledgerIn returns where a container finds the ledger of an account. It is named by the
// first of the shares: a file's name has at most 255 bytes.
func ledgerIn(a *account) string { return path.Join(ledgerFolder, a.Shares[0]+".ledger") }

// give makes the container's files and returns the adjustment.
func (g *giver) give(pod podRef, c *api.Container, accounts []*account) (*api.ContainerAdjustment, error) {
	env, err := g.environment(c, accounts)
	if err != nil {
		return nil, err
	}
	outside, err := number(env, "GPUMEM_OUTSIDE")
	if err != nil {
		return nil, err
	}
	of := share.ContainerLease{Version: 1, Pod: pod.name, Container: c.Name}
	var claims []string
	for _, a := range accounts {
		claims = append(claims, a.Claims...)
		of.GPUs = append(of.GPUs, share.ContainerGPU{UUID: a.UUID, Bytes: min(a.Bytes, a.Total), Total: a.Total, Shares: a.Shares, Ledger: ledgerIn(a), Outside: outside})
	}
	slices.Sort(claims)
	of.Claim = strings.Join(slices.Compact(claims), ",")
	dir := g.folder(c.Id)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, filepath.Base(LeaseFile))
	if err := share.WriteContainerLease(file, of); err != nil {
		return nil, err
	}
	adj := &api.ContainerAdjustment{}
	mount := func(source, at string, options ...string) {
		adj.AddMount(&api.Mount{Source: source, Destination: at, Type: "bind", Options: append([]string{"bind", "nosuid", "nodev"}, options...)})
	}
	mount(file, LeaseFile, "ro")
	mount(g.lib, LibraryFolder, "ro")
	for _, a := range accounts {
		mount(a.path, ledgerIn(a), "rw", "noexec")
	}
	return adj, setEnv(adj, c.Env, env)
}

// setEnv has the environment become another. What is not changed is left alone, for other
// plugins. A variable that is there several times cannot be changed: the runtime changes the
// first, and the linker goes by the last.
func setEnv(adj *api.ContainerAdjustment, was []string, env map[string]string) error {
	values := map[string][]string{}
	for _, line := range was {
		name, value, _ := strings.Cut(line, "=")
		values[name] = append(values[name], value)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		now, set := env[name]
		same := set && !slices.ContainsFunc(values[name], func(v string) bool { return v != now })
		switch {
		case same:
		case len(values[name]) > 1:
			return fmt.Errorf("the container has the variable %s %d times, of which the pod, the image and the GPU's driver may each have set one: leave it out of the pod, or set it once", name, len(values[name]))
		case set:
			adj.AddEnv(name, now)
		default:
			adj.RemoveEnv(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if _, ok := values[name]; !ok {
			adj.AddEnv(name, env[name])
		}
	}
	return nil
}

// preloaded reports a driver's library that the linker is to load before any other: ours,
// of the same name, would not be.
func preloaded(env []string) error {
	for _, line := range env {
		name, value, _ := strings.Cut(line, "=")
		if (name == "LD_PRELOAD" || name == "LD_AUDIT") && (strings.Contains(value, "libcuda.so") || strings.Contains(value, "libnvidia-ml.so")) {
			return fmt.Errorf("the container has %s, with a library of the driver: leave it out, the pool library loads the driver's", line)
		}
	}
	return nil
}

// covered reports a mount of the pod's author that lies on what is mounted here, or in it: it
// would come after ours, and the library or its mark be the author's.
func covered(mounts []*api.Mount) error {
	for _, m := range mounts {
		at := path.Clean("/" + m.Destination)
		for _, own := range []string{LibraryFolder, path.Dir(LeaseFile)} {
			if at == own || strings.HasPrefix(at, own+"/") {
				return fmt.Errorf("the container mounts something at %s, where the library and the lease of its claim are: mount it elsewhere", m.Destination)
			}
		}
		if strings.HasPrefix(at, ledgerFolder+"/") && strings.HasSuffix(at, ".ledger") {
			return fmt.Errorf("the container mounts something at %s, where its ledgers are: mount it elsewhere", m.Destination)
		}
	}
	return nil
}

// environment returns the variables of a container with a lease.
func (g *giver) environment(c *api.Container, accounts []*account) (map[string]string, error) {
	lim := runenv.Limits{Pool: &runenv.Pool{Name: g.pool, Folder: LibraryFolder, Driver: unknown}}
	was := map[string]string{}
	for _, line := range c.Env {
		name, value, _ := strings.Cut(line, "=")
		was[name] = value
	}
	if d := was[envDriver]; d != "" { // of the driver's CDI devices, or the image's
		lim.Pool.Driver = d
	} else if d := driverIn(c.Mounts); d != "" {
		lim.Pool.Driver = d
	}
	lim.Pool.NVML = was[envNVML]
	for i, a := range accounts {
		lim.Leases = append(lim.Leases, runenv.Lease{Ordinal: i, Path: LeaseFile, Ledger: ledgerIn(a), Bytes: min(a.Bytes, a.Total), Total: a.Total, CCMajor: a.CCMajor, Simulated: a.Simulated})
	}
	// No command: its Python is in the container, where nobody can look before it runs.
	e, err := runenv.For(c.Env, nil, lim)
	var small *runenv.TooSmallError
	if errors.As(err, &small) {
		beside := ""
		if small.Outside > 0 {
			beside = fmt.Sprintf(" beside the %s that a process holds for its CUDA context and libraries", size.Format(small.Outside))
		}
		return nil, fmt.Errorf("%s of GPU memory is too little for a pool%s: claim at least %s, with a unit such as Gi (claim %s)",
			size.Format(small.Bytes), beside, size.Format(small.Least), strings.Join(accounts[small.Ordinal].Claims, ", "))
	}
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for _, line := range e.Env {
		name, value, _ := strings.Cut(line, "=")
		if _, ok := env[name]; !ok {
			env[name] = value
		}
	}
	if env[envDriver] == unknown { // the library finds it as the linker would
		delete(env, envDriver)
	}
	return env, nil
}

const (
	envDriver = "GPUMEM_LIBCUDA"
	envNVML   = "GPUMEM_LIBNVML"
	unknown   = "/unknown"
)

// driverIn returns the driver's library among the mounts of a container, as container
// toolkits make them: the file has the driver's version for a name, and a link beside it
// is libcuda.so.1.
func driverIn(mounts []*api.Mount) string {
	for _, m := range mounts {
		if dir, file := path.Split(m.Destination); strings.HasPrefix(file, "libcuda.so.") && dir != LibraryFolder+"/" {
			return m.Destination
		}
	}
	return ""
}

func number(env map[string]string, name string) (n uint64, err error) {
	if text := env[name]; text != "" {
		if _, err = fmt.Sscan(text, &n); err != nil {
			return 0, fmt.Errorf("%s=%s: want a number of bytes", name, text)
		}
	}
	return n, nil
}

func (g *giver) folder(container string) string {
	return filepath.Join(g.dir, filepath.Base(container))
}

// given reports whether a container that runs was given its lease when it was made.
func (g *giver) given(c *api.Container) bool {
	if slices.ContainsFunc(c.Mounts, func(m *api.Mount) bool { return m.Destination == LeaseFile }) {
		return true
	}
	_, err := os.Stat(filepath.Join(g.folder(c.Id), filepath.Base(LeaseFile)))
	return err == nil
}

// end removes the files of a container.
func (g *giver) end(container string) error { return os.RemoveAll(g.folder(container)) }

// keep removes the files of all containers but these.
func (g *giver) keep(ids map[string]bool) error {
	list, err := os.ReadDir(g.dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if !ids[e.Name()] {
			err = errors.Join(err, g.end(e.Name()))
		}
	}
	return err
}
