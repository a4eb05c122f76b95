// Package node runs the programs of a Kubernetes cluster of one node on this machine: the
// real ones, in private namespaces, with nothing left behind. See enter.go for the
// namespaces.
//
// A test binary calls Enter in TestMain; its tests then start what they need:
//
//	Runtime    containerd
//	Control    etcd, API server, scheduler and controllers
//	Kubelet    the kubelet, which needs both
//
// Everything has a fixed name, address or path, because the namespaces are the tests' own:
// what is at /run/gpumem there is nowhere else.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"text/template"
)

// Names and addresses of the node, the same in every run.
const (
	Name       = "node"                            // of the node
	Address    = "10.9.8.7"                        // of the node
	Socket     = "/run/containerd/containerd.sock" // of containerd
	NRISocket  = "/run/nri/nri.sock"               // of containerd's plugins
	CDIFolder  = "/run/cdi"                        // of device specifications
	PodLogs    = "/var/log/pods"                   // of what containers print
	service    = "10.96.0.1"                       // of the API server, as pods see it
	storeURL   = "http://127.0.0.1:2379"           // of etcd, for clients
	peerURL    = "http://127.0.0.1:2380"           // of etcd, for other members
	server     = "https://" + service + ":443"     // the API server
	PauseImage = "gpumem.test/pause:1"             // of the process that holds a pod's namespaces
	kubelet    = "/var/lib/kubelet"                // the kubelet's folder
)

// Options are what a node may do differently.
type Options struct {
	// Validator has containerd refuse containers whose pod requires a plugin of NRI that is
	// not there.
	Validator bool
	// Flags are further flags by program: apiserver, scheduler, controllers, kubelet.
	Flags map[string][]string
	// HostNetworkOnly leaves out the bridge, for pods that use the node's network.
	Loopback bool
}

// Node is the node and what runs on it. Its methods may be called concurrently.
type Node struct {
	opts   Options
	cgroup string

	mu        sync.Mutex
	processes map[string]*Process
}

// New makes the network, the cgroups and the configuration files. Enter must have been
// called.
func New(opts Options) (*Node, error) {
	if reason := Skipped(); reason != "" {
		return nil, Skip(reason)
	}
	n := &Node{opts: opts, processes: map[string]*Process{}}
	var err error
	if n.cgroup, err = makeCgroup(); err != nil {
		return nil, err
	}
	networkOnce.Do(func() { networkErr = network(Address+"/24", service+"/32") })
	return n, errors.Join(networkErr, n.configure())
}

var (
	networkOnce sync.Once
	networkErr  error
)

// file returns the path of a file of this run.
func file(parts ...string) string { return filepath.Join(append([]string{Folder()}, parts...)...) }

// Cgroup returns the path of the cgroup in which all pods are.
func (n *Node) Cgroup() string { return n.cgroup }

// start starts a program and keeps it under its name.
func (n *Node) start(name, program string, args ...string) (*Process, error) {
	p, err := Start(name, program, append(args, n.opts.Flags[name]...)...)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.processes[name] = p
	return p, nil
}

// Process returns a program of the node by its name: containerd, etcd, apiserver,
// scheduler, controllers or kubelet. It is nil if the program was not started.
func (n *Node) Process(name string) *Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.processes[name]
}

// Runtime starts containerd and gives it the images in the archives.
func (n *Node) Runtime(ctx context.Context, archives ...string) error {
	p, err := n.start("containerd", Program("containerd"), "-c", file("containerd.toml"))
	if err != nil {
		return err
	}
	if err := p.WaitReady(ctx, func() bool { return listens("unix", Socket) && listens("unix", NRISocket) }); err != nil {
		return err
	}
	for _, a := range archives {
		if err := Import(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// Import gives containerd the images of an archive.
func Import(ctx context.Context, archive string) error {
	out, err := exec.CommandContext(ctx, Program("ctr"), "-a", Socket, "-n", "k8s.io", "images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import image %s: %w: %s", archive, err, out)
	}
	return nil
}

// Control starts the programs of the control plane and waits for the API server. kinds
// chooses among scheduler and controllers.
func (n *Node) Control(ctx context.Context, kinds ...string) error {
	if _, err := n.start("etcd", Program("hyperkube"), "etcd", file("etcd"), storeURL, peerURL); err != nil {
		return err
	}
	if err := n.StartAPIServer(ctx); err != nil {
		return err
	}
	for _, k := range kinds {
		if err := n.StartComponent(k); err != nil {
			return err
		}
	}
	return nil
}

// StartAPIServer starts the API server, which may have been stopped, and waits until it
// is ready.
func (n *Node) StartAPIServer(ctx context.Context) error {
	p, err := n.start("apiserver", Program("hyperkube"), "apiserver",
		"--etcd-servers="+storeURL, "--cert-dir="+file("certs"), "--secure-port=443", "--advertise-address="+Address,
		"--service-cluster-ip-range=10.96.0.0/24", "--token-auth-file="+file("tokens.csv"), "--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+file("accounts.pub"), "--service-account-signing-key-file="+file("accounts.key"),
		"--kubelet-preferred-address-types=InternalIP", "--enable-priority-and-fairness=false", "--v=1")
	if err != nil {
		return err
	}
	c, err := n.Client(Admin)
	if err != nil {
		return err
	}
	return p.WaitReady(ctx, func() bool {
		b, err := c.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && string(b) == "ok"
	})
}

// StartComponent starts the scheduler, the controllers or the kubelet, with further flags.
func (n *Node) StartComponent(name string, more ...string) error {
	var args []string
	config := "--kubeconfig=" + Kubeconfig(name)
	rights := []string{"--authentication-kubeconfig=" + Kubeconfig(name), "--authorization-kubeconfig=" + Kubeconfig(name), "--leader-elect=false", "--cert-dir=" + file("certs"), "--v=1"}
	switch name {
	case "scheduler":
		args = append([]string{config}, rights...)
	case "controllers":
		args = append([]string{config, "--service-account-private-key-file=" + file("accounts.key"), "--root-ca-file=" + file("certs/apiserver.crt"),
			"--use-service-account-credentials=true"}, rights...)
	case "kubelet":
		args = []string{config, "--config=" + file("kubelet.yaml"), "--root-dir=" + kubelet, "--hostname-override=" + Name, "--node-ip=" + Address, "--cert-dir=" + file("certs/kubelet"), "--v=2"}
	default:
		return fmt.Errorf("start %s: unknown program of a node", name)
	}
	_, err := n.start(name, Program("hyperkube"), slices.Concat([]string{name}, args, more)...)
	return err
}

// Restart kills a program and starts it again, with further flags unless it is the API
// server.
func (n *Node) Restart(ctx context.Context, name string, more ...string) error {
	n.Process(name).Kill()
	if name == "apiserver" {
		return n.StartAPIServer(ctx)
	}
	return n.StartComponent(name, more...)
}

// Stop ends all programs in an order in which none waits for another. Programs that are
// still there when the test ends are killed without it.
func (n *Node) Stop() error {
	var err error
	for _, name := range []string{"kubelet", "scheduler", "controllers", "apiserver", "etcd", "containerd"} {
		switch p := n.Process(name); {
		case p == nil:
		case name == "apiserver": // waits for those who watch
			p.Kill()
		default:
			err = errors.Join(err, p.Stop())
		}
	}
	return err
}

// configure writes the files that the programs read.
func (n *Node) configure() error {
	for _, dir := range []string{"etcd", "certs", "cni", "log", "containerd"} {
		if err := os.MkdirAll(file(dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{CDIFolder, PodLogs, "/var/log/containers", kubelet, "/run/containerd", "/run/nri"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	values := map[string]any{"Folder": Folder(), "Socket": Socket, "NRI": NRISocket, "CDI": CDIFolder, "Pause": PauseImage, "Plugins": pluginFolder(), "Runc": runc,
		"Validator": n.opts.Validator, "Loopback": n.opts.Loopback, "Cgroup": n.cgroup, "PodLogs": PodLogs}
	for name, t := range configs {
		f, err := os.Create(file(name))
		if err != nil {
			return err
		}
		if err := errors.Join(template.Must(template.New(name).Parse(t)).Execute(f, values), f.Close()); err != nil {
			return err
		}
	}
	return errors.Join(writeUsers(), writeKeys())
}
