// What the kubelet is told of devices' health.

package publish

import (
	"time"

	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// NodeWatchResources tells the kubelet once that the health of the GPUs is not known: nothing
// here looks at it. Without this call the kubelet asks again every five seconds and logs an
// error each time.
func (d *Driver) NodeWatchResources(_ *health.NodeWatchResourcesRequest, stream health.DRAResourceHealth_NodeWatchResourcesServer) error {
	r := &health.NodeWatchResourcesResponse{}
	for _, g := range d.cfg.GPUs {
		r.Devices = append(r.Devices, &health.DeviceHealth{Device: &health.DeviceIdentifier{PoolName: d.cfg.Node, DeviceName: g.Name},
			Health: health.HealthStatus_UNKNOWN, LastUpdatedTime: time.Now().Unix()})
	}
	if err := stream.Send(r); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
