// The kubelet's calls.

package publish

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// PrepareResourceClaims writes the claims' specs and returns the names of their CDI
// devices, as [kubeletplugin.DRAPlugin] wants it. It may be called again for a claim.
func (d *Driver) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		devices, err := d.prepare(c)
		if err != nil {
			err = fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
			d.cfg.Log.Error("prepare", "err", err)
		}
		results[c.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return results, nil
}

// prepare writes a claim's spec.
func (d *Driver) prepare(c *resourcev1.ResourceClaim) ([]kubeletplugin.Device, error) {
	if c.Status.Allocation == nil {
		return nil, fmt.Errorf("it has no allocation yet")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
	_, again := d.prepared[c.UID]
	p := preparedClaim{claim: name}
	spec := cdiSpec{Version: "0.6.0", Kind: Kind, Annotations: map[string]string{claimAnnotation: name.String()}}
	var devices []kubeletplugin.Device
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != d.cfg.Driver {
			continue
		}
		i := slices.IndexFunc(d.cfg.GPUs, func(g GPU) bool { return g.Name == r.Device })
		if i < 0 || r.Pool != d.cfg.Node {
			return nil, fmt.Errorf("node %s has no %s/%s; it was allocated from what the node published before: delete the pod", d.cfg.Node, r.Pool, r.Device)
		}
		g := d.cfg.GPUs[i]
		if other := d.taken[g.Name]; other != "" && !again {
			return nil, fmt.Errorf("%s (%s) is published by another driver, too: %s; delete the pod", g.Name, g.UUID, other)
		}
		edits, beside, err := d.edits(g)
		if err != nil {
			return nil, err
		}
		id := deviceName(c.UID, r)
		spec.Devices = append(spec.Devices, cdiDevice{Name: id, Annotations: map[string]string{deviceAnnotation: g.Name}, Edits: edits})
		if !slices.Contains(p.gpus, g.Name) {
			p.gpus = append(p.gpus, g.Name)
		}
		ids := []string{Kind + "=" + id}
		if beside != "" {
			ids = append(ids, beside)
		}
		devices = append(devices, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareID: r.ShareID, CDIDeviceIDs: ids})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("nothing of its allocation is of driver %s", d.cfg.Driver)
	}
	if err := d.writeSpec(c.UID, spec); err != nil {
		return nil, err
	}
	d.prepared[c.UID] = p
	return devices, nil
}

// deviceName returns the name of a share's CDI device: the claim's UID, the GPU, and the
// beginning of the share's ID. Without that, two shares of one GPU in one claim would have
// one name, and the runtime refuses such a spec.
func deviceName(uid types.UID, r resourcev1.DeviceRequestAllocationResult) string {
	name := string(uid) + "-" + r.Device
	if r.ShareID != nil {
		name += "-" + string(*r.ShareID)[:min(8, len(*r.ShareID))]
	}
	return name
}

// UnprepareResourceClaims removes the claims' specs, as [kubeletplugin.DRAPlugin] wants it.
// A claim that is not prepared is no error.
func (d *Driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		err := d.unprepare(c.UID)
		if err != nil {
			err = fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
			d.cfg.Log.Error("unprepare", "err", err)
		}
		results[c.UID] = err
	}
	return results, nil
}

// unprepare removes a claim's spec. A GPU that it was the last to have may be withdrawn.
func (d *Driver) unprepare(uid types.UID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.removeSpec(uid); err != nil {
		return err
	}
	delete(d.prepared, uid)
	d.change()
	return nil
}
