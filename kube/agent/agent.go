// Package agent is the agent of a Kubernetes node: a plugin of the container runtime (NRI)
// that gives each container the GPU memory that its claim consumed, and no more.
//
// # A container's start
//
// The runtime asks CreateContainer, with the names of the CDI devices that the container
// gets. They have the UIDs of its claims.
//
//	resolve.go   the pod's claims, what they consumed, and which GPUs those devices are
//	books.go     for each GPU one account: a lease of the registry and a ledger, shared by
//	             all containers and pods with the same shares
//	adjust.go    the lease's file, the ledgers and the library are mounted, and the
//	             environment has the frameworks take their memory through it
//
// An error anywhere means that the container is not created. The kubelet tries again, and
// the pod's events say why. A container without claims costs a look at its CDI devices.
//
// # When the agent is away
//
// The runtime starts containers without asking. So pods with claims are marked at
// admission (kube/chart), and the runtime's validator refuses marked ones without this
// plugin. Containers that run keep their limits, which the ledgers enforce without an
// agent. A new agent takes up what runs (Synchronize), from its files and the runtime's
// list; a container that runs without its lease is reported as LeaseIgnored.
//
// # Programs past the library
//
// Nothing makes a program load it: a script may set LD_LIBRARY_PATH anew, and a program may
// be static. So the agent looks at the processes of containers with a lease, and ends those
// that have loaded the driver without the library (watch.go).
//
// # What it asks of the API server
//
// A GET of the pod and of each claim for a container's first start, an event where something
// is refused, the node's condition when that changes, and a GET of the node every five
// minutes. Nothing else, and nothing is watched but the resource slices of this node where
// the agent publishes GPUs.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"k8s.io/client-go/kubernetes"

	"gpumem/kube/claim"
)

// Plugin is the agent's name in the runtime, which the admission policy requires.
const Plugin = "gpumem"

// index orders plugins: ours is after those that choose devices.
const index = "50"

// Config says what an agent serves.
type Config struct {
	Client  kubernetes.Interface
	Node    string
	Drivers []string // whose devices' memory counts
	Socket  string   // of NRI
	Run     string   // the registry's folder on the host
	Library string   // the library's folder on the host, see [Install]
	Pool    string   // the policy of the pool that the library serves memory from
	GPUs    []GPU    // that can be read here; others are known by their slices
	Proc    string   // the folder /proc of the host's pid namespace
	// KeepPast lets programs go on that use a GPU without the library, and only reports them.
	KeepPast bool
	Log      *slog.Logger
}

// Agent is the agent of a node.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	resolver *resolver
	books    *books
	giver    *giver
	events   *events
	status   *condition
	counts   counts
	blind    sync.Once  // said that processes cannot be looked into
	taking   sync.Mutex // held by takeUp
	// life ends with close. takeUp is called by timers, which no caller's context reaches: one
	// that fires late would say of a stopped agent that it enforces.
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	named   bool                      // the runtime says which CDI devices a container gets
	runtime string                    // its name and version
	old     string                    // what it lacks
	pending map[string]*api.Container // that ran before, and whose leases are not known yet
	tookUp  bool                      // there are none of those any more
	round   int                       // number of the synchronization
	pods    map[string]podRef         // by the sandbox's ID
}

// New returns an agent. Nothing is started.
func New(cfg Config) (*Agent, error) {
	a := &Agent{cfg: cfg, log: cfg.Log, pending: map[string]*api.Container{}, pods: map[string]podRef{}}
	a.life, a.end = context.WithCancel(context.Background())
	var err error
	if a.books, err = newBooks(cfg.Run, cfg.Proc, cfg.GPUs, cfg.Log); err != nil {
		return nil, err
	}
	if a.resolver, err = newResolver(cfg.Client, cfg.Node, cfg.Drivers, filepath.Join(cfg.Run, "pods")); err != nil {
		return nil, err
	}
	a.giver = &giver{dir: filepath.Join(cfg.Run, "containers"), lib: cfg.Library, pool: cfg.Pool}
	if err := MakeOwn(a.giver.dir); err != nil {
		return nil, err
	}
	a.events = newEvents(cfg.Client, cfg.Node)
	a.status = &condition{client: cfg.Client, node: cfg.Node, log: cfg.Log}
	return a, nil
}

// close ends what timers began, and waits for it.
func (a *Agent) close() {
	a.end()
	a.taking.Lock()
	defer a.taking.Unlock()
	a.books.shutdown()
}

// Run serves the runtime until ctx is done. Where the runtime is away, as in a restart, it
// waits for it and connects again.
func (a *Agent) Run(ctx context.Context) error {
	defer a.events.stop()
	defer a.close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go a.watch(ctx, end)
	for wait := time.Second / 4; ; {
		began := time.Now()
		err := a.serve(ctx)
		if again := context.Cause(ctx); errors.Is(again, errNewNode) {
			return again
		}
		if ctx.Err() != nil {
			a.close()
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second) // the pod's end is waited for
			defer cancel()
			a.status.set(last, false, stopped, "the agent has stopped; running containers keep their limits")
			return nil
		}
		a.log.Warn("not connected to the container runtime", "socket", a.cfg.Socket, "err", err)
		go a.status.set(ctx, false, noRuntime, fmt.Sprintf("the agent is not connected to the container runtime at %s: %v. If NRI is off there, its validator is off, too, and pods start without a limit", a.cfg.Socket, err))
		if time.Since(began) > time.Minute {
			wait = time.Second / 4
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// serve serves one connection to the runtime.
func (a *Agent) serve(ctx context.Context) error {
	lost := make(chan struct{})
	s, err := stub.New(a, stub.WithPluginName(Plugin), stub.WithPluginIdx(index), stub.WithSocketPath(a.cfg.Socket),
		stub.WithOnClose(sync.OnceFunc(func() { close(lost) })))
	if err != nil {
		return err
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	defer s.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-lost:
		return errors.New("the runtime has closed the connection")
	}
}

// Configure is called by the runtime first.
func (a *Agent) Configure(ctx context.Context, config, runtime, version string) (stub.EventMask, error) {
	old := tooOld(runtime, version)
	a.mu.Lock()
	a.runtime, a.old = runtime+" "+version, old
	a.named = old == "" && !slices.ContainsFunc(a.cfg.Drivers, func(d string) bool { return !claim.Named(d) })
	a.mu.Unlock()
	a.log.Info("connected", "runtime", runtime, "version", version, "cdi", old == "")
	if old != "" {
		a.log.Warn(old)
	}
	if !validates(runtime, version) {
		return mask, nil
	}
	return 0, nil // all events that this type has methods for
}

// mask is the events that a runtime without validators knows: it closes the connection of a
// plugin that asks for more, again and again (seen with containerd 2.1.5).
const mask = stub.EventMask(1<<(api.Event_RUN_POD_SANDBOX-1) | 1<<(api.Event_STOP_POD_SANDBOX-1) | 1<<(api.Event_REMOVE_POD_SANDBOX-1) |
	1<<(api.Event_CREATE_CONTAINER-1) | 1<<(api.Event_STOP_CONTAINER-1) | 1<<(api.Event_REMOVE_CONTAINER-1))

// validates reports whether a runtime asks plugins to validate containers: containerd does
// from 2.2 on. Of others it is believed.
func validates(runtime, version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor); runtime != "containerd" || err != nil {
		return true
	}
	return major > 2 || major == 2 && minor >= 2
}

// tooOld says what a runtime lacks; "" if nothing is known to be missing. Of containerd 2.1.5,
// 2.2.1 and 2.3.7 were run, and 2.0.7 and 2.3.0 read: those before 2.3 do not pass the CDI
// devices' names; 2.0.7 and 2.1.5 have no validator.
func tooOld(runtime, version string) string {
	if runtime != "containerd" {
		return fmt.Sprintf("it is not known what %s %s passes to plugins: each container of a pod is looked up at the API server, and whether pods start without a limit while the agent is away was not tried; containerd 2.3.7 was", runtime, version)
	}
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor); err != nil || major > 2 || major == 2 && minor >= 3 {
		return ""
	}
	text := fmt.Sprintf("containerd %s does not pass the names of CDI devices to plugins: each container of a pod is looked up at the API server", version)
	if major < 2 || minor < 2 {
		text += ", and it has no validator: while the agent is away pods start without a limit (fails open)"
	}
	return text + "; upgrade containerd to 2.3.7 or later"
}

func refOf(p *api.PodSandbox) podRef { return podRef{p.Uid, p.Namespace, p.Name} }

// static reports whether a pod is one of the kubelet's own files, as those of a control plane
// are: the kubelet refuses such pods that name claims, and the API server has them under
// another UID, if it runs at all. The kubelet writes the annotation, whatever a pod's author
// has.
func static(p *api.PodSandbox) bool {
	source := p.GetAnnotations()["kubernetes.io/config.source"]
	return source == "file" || source == "http"
}

// cdiOf returns the UIDs of claims among the CDI devices of a container.
func cdiOf(c *api.Container) []string {
	var list []string
	for _, d := range c.CDIDevices {
		list = append(list, d.Name)
	}
	return claim.UIDs(list)
}

// CreateContainer is called before a container is created. An error keeps it from that.
func (a *Agent) CreateContainer(ctx context.Context, p *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if static(p) {
		return nil, nil, nil
	}
	began := time.Now()
	pod := refOf(p)
	adj, asked, err := a.create(ctx, pod, c)
	if err != nil {
		a.counts.refused.Add(1)
		a.log.Error("a container is refused", "pod", pod.String(), "container", c.Name, "err", err)
		a.events.refused(pod, c.Name, err)
		return nil, nil, fmt.Errorf("%s: %w", Plugin, err)
	}
	if adj != nil {
		a.counts.given.Add(1)
		a.log.Info("a container has its lease", "pod", pod.String(), "container", c.Name, "took", time.Since(began), "asked", asked)
	}
	return adj, nil, nil
}

// asking is how long the API server and the registry may take together. The runtime gives up
// on a plugin after 2 s.
const asking = 1600 * time.Millisecond

// create returns the adjustment of a container, nil for one without a lease, and the time
// that the API server took.
func (a *Agent) create(ctx context.Context, pod podRef, c *api.Container) (adj *api.ContainerAdjustment, asked time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	leases, asked, err := a.leases(ctx, pod, c)
	if err != nil || len(leases) == 0 {
		return nil, asked, err
	}
	if err := errors.Join(covered(c.Mounts), preloaded(c.Env)); err != nil {
		return nil, asked, err
	}
	var accounts []*account
	for _, l := range leases {
		acc, err := a.books.join(ctx, l, memberOf(pod, c), false)
		if err != nil {
			a.books.leave(c.Id)
			return nil, asked, err
		}
		accounts = append(accounts, acc)
	}
	if adj, err = a.giver.give(pod, c, accounts); err != nil {
		a.books.leave(c.Id)
	}
	return adj, asked, err
}

// leases returns the leases of a container.
func (a *Agent) leases(ctx context.Context, pod podRef, c *api.Container) ([]lease, time.Duration, error) {
	uids := cdiOf(c)
	a.mu.Lock()
	named := a.named
	a.mu.Unlock()
	if named && len(uids) == 0 {
		return nil, 0, nil
	}
	began := time.Now()
	leases, err := a.resolver.leases(ctx, pod, c.Name, uids)
	return leases, time.Since(began), err
}

func memberOf(pod podRef, c *api.Container) member {
	m := member{pod: pod, box: c.PodSandboxId}
	m.ID, m.Namespace, m.Pod, m.Name = c.Id, pod.namespace, pod.name, c.Name
	return m
}

// Synchronize is called after a connection with what runs.
func (a *Agent) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.pods)
	uids, boxes, ids := map[string]bool{}, map[string]bool{}, map[string]bool{}
	own := map[string]bool{} // of the kubelet
	for _, p := range pods {
		a.pods[p.Id] = refOf(p)
		uids[p.Uid], boxes[p.Id], own[p.Id] = true, true, static(p)
	}
	clear(a.pending)
	for _, c := range containers {
		ids[c.Id] = true
		if !own[c.PodSandboxId] {
			a.pending[c.Id] = c
		}
	}
	// No container is created before this returns.
	a.books.unknown()
	a.books.reconcile(boxes, ids)
	if err := errors.Join(a.giver.keep(ids), a.resolver.keep(uids)); err != nil {
		a.log.Error("files of pods that are gone", "err", err)
	}
	a.tookUp = false
	a.round++
	time.AfterFunc(registered, a.takeUp)
	return nil, nil
}

// registered is how long after Synchronize the runtime surely has the plugin among those
// that it asks. It says nothing, and the node's condition is not to be true before.
const registered = 200 * time.Millisecond

// takeUp takes up the containers that run. Those whose leases cannot be found out now, as
// without an API server, are tried again by watch. Ledgers of pods that are gone are
// removed only after that. No lock is held while the API server is asked.
func (a *Agent) takeUp() {
	a.taking.Lock()
	defer a.taking.Unlock()
	a.mu.Lock()
	runtime, old, round := a.runtime, a.old, a.round
	list, pods := maps.Clone(a.pending), maps.Clone(a.pods)
	done := a.tookUp || runtime == "" || a.life.Err() != nil
	a.mu.Unlock()
	if done {
		return
	}
	ctx, cancel := context.WithTimeout(a.life, time.Minute)
	defer cancel()
	if old != "" {
		a.status.set(ctx, false, "OldRuntime", old)
	} else {
		a.status.set(ctx, true, "Enforced", "claims on GPU memory are enforced with "+runtime+"; whether pods wait while the agent is away is up to the runtime's validator")
	}
	for id, c := range list {
		pod, ok := pods[c.PodSandboxId]
		if runs := c.State == api.ContainerState_CONTAINER_CREATED || c.State == api.ContainerState_CONTAINER_RUNNING || c.State == api.ContainerState_CONTAINER_PAUSED; ok && runs {
			if err := a.resume(ctx, pod, c); err != nil {
				a.log.Warn("the lease of a container that runs is not known yet", "pod", pod.String(), "container", c.Name, "err", err)
				continue
			}
		}
		a.mu.Lock()
		_, there := a.pending[id]
		if round == a.round {
			delete(a.pending, id)
		}
		a.mu.Unlock()
		if !there { // it was removed meanwhile
			a.books.leave(id)
		}
	}
	a.mu.Lock()
	a.tookUp = round == a.round && len(a.pending) == 0
	done = a.tookUp
	a.mu.Unlock()
	if done {
		if err := a.books.sweep(); err != nil {
			a.log.Error("files of pods that are gone", "err", err)
		}
	}
}

// resume takes up one container that runs.
func (a *Agent) resume(ctx context.Context, pod podRef, c *api.Container) error {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	leases, _, err := a.leases(ctx, pod, c)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if !a.giver.given(c) {
			a.counts.ignored.Add(1)
			a.events.ignored(pod, c.Name, fmt.Sprintf("container %s was started while the agent was away, and has no limit on its GPU memory: delete the pod, so that it starts anew; install the admission policy and the runtime's validator, so that this cannot happen", c.Name))
			return nil
		}
		acc, err := a.books.join(ctx, l, memberOf(pod, c), true)
		if err != nil {
			return err
		}
		if acc.lost != nil {
			a.events.ignored(pod, c.Name, acc.lost.Error())
		}
	}
	return nil
}

// ValidateContainerAdjustment is called with what all plugins together make of a container.
// That a container with a lease has it is checked here, so that no other plugin can take it
// away. And being a validator is what refuses containers when this process is killed or
// stopped while the runtime waits for it: containerd then leaves a plugin's adjustment out
// and goes on, and its own validator still counts the plugin as there; a validator that does
// not answer is an error. (Seen with containerd 2.3.7, both ways.)
func (a *Agent) ValidateContainerAdjustment(ctx context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	pod, c := refOf(req.Pod), req.Container
	a.mu.Lock()
	named := a.named
	a.mu.Unlock()
	if static(req.Pod) || named && len(cdiOf(c)) == 0 {
		return nil
	}
	leases, ok := a.resolver.cached(pod, c.Name, nil)
	if !ok {
		return fmt.Errorf("%s: container %s of pod %s was not seen when it was created", Plugin, c.Name, pod)
	}
	if len(leases) == 0 {
		return nil
	}
	for _, at := range []string{LeaseFile, LibraryFolder} {
		if !slices.ContainsFunc(req.Adjust.GetMounts(), func(m *api.Mount) bool { return m.Destination == at }) {
			return fmt.Errorf("%s: container %s of pod %s has a lease, and nothing is mounted at %s: another plugin has removed it", Plugin, c.Name, pod, at)
		}
	}
	return nil
}

// RunPodSandbox is called when a pod has its sandbox.
func (a *Agent) RunPodSandbox(ctx context.Context, p *api.PodSandbox) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods[p.Id] = refOf(p)
	return nil
}

// StopContainer is called when a container has ended or is to end.
func (a *Agent) StopContainer(ctx context.Context, p *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	a.look(p.Uid)
	a.books.stopped(c.Id)
	return nil, nil
}

// RemoveContainer is called when a container is removed.
func (a *Agent) RemoveContainer(ctx context.Context, p *api.PodSandbox, c *api.Container) error {
	a.look(p.Uid)
	a.mu.Lock()
	delete(a.pending, c.Id)
	a.mu.Unlock()
	a.books.leave(c.Id)
	return a.giver.end(c.Id)
}

// StopPodSandbox is called when all containers of a sandbox have ended. Its leases end. The
// kubelet may stop one again much later, when the pod has another.
func (a *Agent) StopPodSandbox(ctx context.Context, p *api.PodSandbox) error {
	a.look(p.Uid)
	a.books.end(p.Id)
	return nil
}

// RemovePodSandbox is called when a pod is removed.
func (a *Agent) RemovePodSandbox(ctx context.Context, p *api.PodSandbox) error {
	a.mu.Lock()
	delete(a.pods, p.Id)
	another := false // a pod whose sandbox was lost has a new one
	for _, q := range a.pods {
		another = another || q.uid == p.Uid
	}
	a.mu.Unlock()
	a.books.end(p.Id)
	if another {
		return nil
	}
	return a.resolver.forget(p.Uid)
}
