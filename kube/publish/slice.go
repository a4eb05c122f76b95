// The slice of the node's GPUs, and the slices of other drivers.

package publish

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"gpumem/device/open"
	"gpumem/kube/claim"
	"gpumem/size"
)

// step is the unit in which memory is consumed, as NVIDIA's driver has it.
const step = 1 << 20

func (g GPU) check(cfg *Config) error {
	spec, err := open.Parse(g.Words)
	switch {
	case err != nil:
		return err
	case len(digits(g.UUID)) != 32:
		return fmt.Errorf("the UUID has %d hexadecimal digits; want 32", len(digits(g.UUID)))
	case spec.Kind == open.Private:
		return fmt.Errorf("device %q is private to one program; want sim@FILE or cuda:N", g.Words)
	case spec.Kind == open.Shared && cfg.SimLibrary == "":
		return fmt.Errorf("device %q: no folder with the simulated driver is named", g.Words)
	case g.published(cfg.Reserve) == 0:
		return fmt.Errorf("a reserve of %s leaves nothing of %s; want a smaller one", size.Format(cfg.Reserve), size.Format(g.Total))
	}
	return nil
}

// published returns the bytes that claims can consume.
func (g GPU) published(reserve uint64) uint64 {
	if reserve >= g.Total {
		return 0
	}
	return (g.Total - reserve) / step * step
}

// device returns the GPU as slices have it. Several claims can have parts of it; one that
// requests no memory gets all of it. Names of attributes are those of NVIDIA's driver, and
// simulated.
func (g GPU) device(reserve uint64) resourcev1.Device {
	yes := true
	all := resource.NewQuantity(int64(g.published(reserve)), resource.BinarySI)
	unit := resource.NewQuantity(step, resource.BinarySI)
	attributes := map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}
	for name, value := range map[resourcev1.QualifiedName]string{"uuid": g.UUID, "productName": g.Product, "architecture": g.Architecture} {
		if value = cut(value, 64); value != "" { // the API's limit
			attributes[name] = resourcev1.DeviceAttribute{StringValue: &value}
		}
	}
	if g.Capability != "" {
		attributes["cudaComputeCapability"] = resourcev1.DeviceAttribute{VersionValue: &g.Capability}
	}
	if g.Simulated {
		attributes["simulated"] = resourcev1.DeviceAttribute{BoolValue: &yes}
	}
	return resourcev1.Device{
		Name:                     g.Name,
		AllowMultipleAllocations: &yes,
		Attributes:               attributes,
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{claim.Memory: {
			Value: *all,
			RequestPolicy: &resourcev1.CapacityRequestPolicy{
				Default:    all,
				ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: unit, Max: all, Step: unit},
			},
		}},
	}
}

// cut returns the first characters of a text, of at most n bytes.
func cut(s string, n int) string {
	for len(s) > n {
		_, last := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-last]
	}
	return s
}

// watch returns an informer of the node's slices, of all drivers but this one. It polls
// nothing, and the API server sends it no other node's.
func (d *Driver) watch() cache.SharedIndexInformer {
	selector := fields.AndSelectors(
		fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, d.cfg.Node),
		fields.OneTermNotEqualSelector(resourcev1.ResourceSliceSelectorDriver, d.cfg.Driver),
	).String()
	client := d.cfg.Client.ResourceV1().ResourceSlices()
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return client.Watch(ctx, o)
		},
	}, d.cfg.Client), &resourcev1.ResourceSlice{}, 0, nil)
	again := func(any) { d.change() }
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: again, UpdateFunc: func(_, _ any) { d.change() }, DeleteFunc: again})
	return informer
}

// foreign returns the drivers of other slices on the node, by the digits of the UUIDs that
// they have. A slice of a GPU has its parent's UUID, too.
func (d *Driver) foreign() map[string]string {
	drivers := map[string]string{}
	for _, object := range d.slices.GetStore().List() {
		s, ok := object.(*resourcev1.ResourceSlice)
		if !ok || s.Spec.Driver == d.cfg.Driver || s.Spec.NodeName == nil || *s.Spec.NodeName != d.cfg.Node {
			continue
		}
		for _, device := range s.Spec.Devices {
			for name, a := range device.Attributes {
				_, base, ok := strings.Cut(string(name), "/")
				if !ok {
					base = string(name)
				}
				if base = strings.ToLower(base); a.StringValue != nil && (base == "uuid" || base == "parentuuid") {
					drivers[digits(*a.StringValue)] = s.Spec.Driver
				}
			}
		}
	}
	return drivers
}

// digits returns the hexadecimal digits of a UUID, which tools write in several ways.
func digits(uuid string) string {
	uuid = strings.ToLower(uuid)
	for _, prefix := range []string{"gpu-", "mig-"} {
		uuid = strings.TrimPrefix(uuid, prefix)
	}
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' || 'a' <= r && r <= 'f' {
			return r
		}
		return -1
	}, uuid)
}

// devices returns what is to be published: the GPUs that no other driver has, and those
// that one has and that claims are prepared on. It logs what changes.
func (d *Driver) devices() []resourcev1.Device {
	foreign := d.foreign()
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.taken
	d.taken = map[string]string{}
	list := []resourcev1.Device{}
	for _, g := range d.cfg.GPUs {
		other, taken := foreign[digits(g.UUID)]
		n := d.users(g.Name)
		state := other
		if n > 0 {
			state += " and prepared"
		}
		log := d.cfg.Log.With("gpu", g.Name, "uuid", g.UUID)
		switch {
		case !taken:
			if before[g.Name] != "" {
				log.Info("GPU is published again: no other driver has it now")
			}
		case n > 0:
			if before[g.Name] != state {
				log.Warn("GPU stays published until its claims have ended, although another driver publishes it", "other", other, "claims", n)
			}
		case before[g.Name] != state:
			log.Warn("GPU is not published: another driver publishes it", "other", other)
		}
		if taken {
			d.taken[g.Name] = state
		}
		if !taken || n > 0 {
			list = append(list, g.device(d.cfg.Reserve))
		}
	}
	return list
}

// sameNames reports whether two lists have devices of the same names. The rest of a device
// never changes.
func sameNames(a, b []resourcev1.Device) bool {
	return slices.EqualFunc(a, b, func(x, y resourcev1.Device) bool { return x.Name == y.Name })
}
