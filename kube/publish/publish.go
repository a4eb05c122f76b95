// Package publish is the DRA driver of a node's GPUs, real or simulated, for nodes on which
// no other driver publishes them.
//
// One GPU, from start to end:
//
//  1. [Sim] or [CUDA] lists the node's GPUs.
//  2. [Start] serves the kubelet's calls, and publishes a pool with the node's name: each GPU
//     with consumable memory, so that the scheduler gives parts of it to several claims
//     (slice.go).
//  3. A GPU that another driver's slice on the node has is not published, since two drivers
//     would give its memory away twice.
//  4. The kubelet has the driver prepare a claim: a CDI spec is written, by which the
//     container runtime makes the GPU visible in the containers (cdi.go, prepare.go). What
//     keeps a container within its share is the agent's, see package agent.
//  5. The kubelet has the claim unprepared, and the spec is removed.
//
// All state is on disk, in the specs: a driver that is started again goes on where it was.
package publish

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"gpumem/node/share"
)

// GPU describes a GPU of the node.
type GPU struct {
	Name         string // in slices, such as gpu-0
	UUID         string // GPU- and 32 hexadecimal digits in groups
	Product      string // as people know it
	Architecture string // such as Hopper; "" if unknown
	Capability   string // compute capability as a semantic version, such as 9.0.0; "" if unknown
	Simulated    bool
	Total        uint64      // bytes
	Key          string      // in the registry of leases, see open.Listed.Key
	Meter        share.Meter // of this GPU
	Words        string      // that choose it on the command line, see package open
}

// Config describes a driver. All fields but Reserve, SimLibrary and Log are needed.
type Config struct {
	Client     kubernetes.Interface
	Node       string // the node's name
	Driver     string // the driver's name, such as gpu.gpumem.dev
	CDIDir     string // absolute; made if it is not there
	KubeletDir string // absolute, such as /var/lib/kubelet
	GPUs       []GPU
	Reserve    uint64       // bytes of each GPU that are not published
	SimLibrary string       // folder of the host with what scripts/libcudasim builds; needed by simulated GPUs
	Log        *slog.Logger // nil means slog.Default()
}

// Driver publishes GPUs and serves the kubelet, until [Driver.Stop].
type Driver struct {
	health.UnimplementedDRAResourceHealthServer // see health.go

	cfg     Config
	cancel  context.CancelFunc
	running sync.WaitGroup
	helper  *kubeletplugin.Helper
	slices  cache.SharedIndexInformer // those of the node
	changed chan struct{}             // of capacity 1: what is published may have to change

	mu       sync.Mutex
	prepared map[types.UID]preparedClaim
	taken    map[string]string // by the GPU's name: the driver that has it, too
}

// Start serves the kubelet's calls and begins to publish the GPUs. The error names what of
// the configuration or of the node's folders is wrong. Whatever the API server refuses is
// logged and tried again, so that a node whose API server is away keeps its driver.
func Start(ctx context.Context, cfg Config) (*Driver, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, changed: make(chan struct{}, 1)}
	plugins, registry := filepath.Join(cfg.KubeletDir, "plugins", cfg.Driver), filepath.Join(cfg.KubeletDir, "plugins_registry")
	for _, dir := range []string{cfg.CDIDir, plugins, registry} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("driver %s: %w", cfg.Driver, err)
		}
	}
	var err error
	if d.prepared, err = d.readSpecs(); err != nil {
		return nil, fmt.Errorf("driver %s: %w", cfg.Driver, err)
	}
	ctx, d.cancel = context.WithCancel(ctx)
	d.slices = d.watch()
	d.helper, err = kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(cfg.Driver),
		kubeletplugin.NodeName(cfg.Node),
		kubeletplugin.KubeClient(cfg.Client),
		kubeletplugin.RegistrarDirectoryPath(registry),
		kubeletplugin.PluginDataDirectoryPath(plugins))
	if err != nil {
		d.cancel()
		return nil, fmt.Errorf("driver %s: %w", cfg.Driver, err)
	}
	d.running.Go(func() { d.slices.RunWithContext(ctx) })
	d.running.Go(func() { d.publish(ctx) })
	return d, nil
}

func (cfg *Config) check() error {
	switch {
	case cfg.Client == nil, cfg.Node == "", cfg.Driver == "":
		return fmt.Errorf("driver %q of node %q: a client and both names are needed", cfg.Driver, cfg.Node)
	case !filepath.IsAbs(cfg.CDIDir) || !filepath.IsAbs(cfg.KubeletDir):
		return fmt.Errorf("driver %s: folders %q and %q: want absolute paths", cfg.Driver, cfg.CDIDir, cfg.KubeletDir)
	case len(cfg.GPUs) == 0:
		return fmt.Errorf("driver %s: node %s has no GPU to publish", cfg.Driver, cfg.Node)
	}
	for _, g := range cfg.GPUs {
		if err := g.check(cfg); err != nil {
			return fmt.Errorf("driver %s: %s (%s): %w", cfg.Driver, g.Name, g.UUID, err)
		}
	}
	return nil
}

// Stop ends serving and publishing. The slices and the specs stay, for the containers that
// run and for the next start.
func (d *Driver) Stop() {
	d.cancel()
	d.helper.Stop()
	d.running.Wait()
}

// publish publishes what there is to publish, once and whenever that changes.
func (d *Driver) publish(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), d.slices.HasSynced) {
		return
	}
	d.removeGone(ctx)
	var last []resourcev1.Device
	for first := true; ; first = false {
		if devices := d.devices(); first || !sameNames(devices, last) {
			pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
			err := d.helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.cfg.Node: pool}})
			if err != nil && ctx.Err() == nil {
				d.cfg.Log.Error("publish GPUs", "driver", d.cfg.Driver, "err", err)
			}
			last = devices
		}
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
		}
	}
}

// HandleError logs an error of the background, as [kubeletplugin.DRAPlugin] wants it. All
// are tried again.
func (d *Driver) HandleError(_ context.Context, err error, message string) {
	d.cfg.Log.Error(message, "driver", d.cfg.Driver, "err", err)
}

// change has what is published looked at again.
func (d *Driver) change() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}
