// CDI specs: one file for each claim, which tells the container runtime what a container
// gets that has one of the claim's shares.

package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"gpumem/device/open"
)

// Kind is the kind of the driver's CDI devices. A device's name begins with the claim's
// UID, so that a plugin of the runtime finds the claim.
const Kind = "k8s.gpu.gpumem.dev/claim"

// Where containers have the simulated driver.
const (
	simFolder = "/opt/gpumem/sim"
	simCUDA   = simFolder + "/libcuda.so.1"
	simNVML   = simFolder + "/libnvidia-ml.so.1"
)

// toolkit is the kind of the CDI devices that NVIDIA's toolkit describes.
const toolkit = "nvidia.com/gpu"

// The parts of the CDI specification, 0.6.0, that are written or read here.
type (
	cdiSpec struct {
		Version     string            `json:"cdiVersion"`
		Kind        string            `json:"kind"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Devices     []cdiDevice       `json:"devices"`
	}
	cdiDevice struct {
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Edits       cdiEdits          `json:"containerEdits"`
	}
	cdiEdits struct {
		Env    []string   `json:"env,omitempty"`
		Mounts []cdiMount `json:"mounts,omitempty"`
	}
	cdiMount struct {
		HostPath      string   `json:"hostPath"`
		ContainerPath string   `json:"containerPath"`
		Options       []string `json:"options"`
	}
)

// Annotations by which a driver that is started again knows what it prepared.
const (
	claimAnnotation  = "gpumem.dev/claim"  // of a spec: NAMESPACE/NAME
	deviceAnnotation = "gpumem.dev/device" // of a device: the GPU's name
)

// preparedClaim describes a claim that has a spec.
type preparedClaim struct {
	claim types.NamespacedName
	gpus  []string // names
}

// users returns how many prepared claims have a GPU. Caller holds mu.
func (d *Driver) users(gpu string) (n int) {
	for _, p := range d.prepared {
		if slices.Contains(p.gpus, gpu) {
			n++
		}
	}
	return n
}

// edits returns what a container gets with a GPU, and the CDI device of NVIDIA's toolkit
// that it gets beside it; "" for none.
//
// Environment is one for a container, whatever number of requests it has. So a variable is
// the same for all GPUs of the node, or its name has the GPU's number.
func (d *Driver) edits(g GPU) (e cdiEdits, beside string, err error) {
	spec, err := open.Parse(g.Words)
	if err != nil {
		return e, "", err
	}
	if spec.Kind == open.CUDA {
		// NVIDIA's older runtime hook would give the container all GPUs of the image's
		// NVIDIA_VISIBLE_DEVICES; void is its word for none.
		beside, err = d.toolkitDevice(g)
		return cdiEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, beside, err
	}
	return cdiEdits{
		Env: []string{
			"GPUMEM_DEVICE=sim@" + spec.File,
			fmt.Sprintf("GPUMEM_SIM_VISIBLE_%d=1", spec.Index),
			"GPUMEM_LIBCUDA=" + simCUDA,
			"GPUMEM_LIBNVML=" + simNVML,
		},
		Mounts: []cdiMount{
			{d.cfg.SimLibrary, simFolder, []string{"ro", "nosuid", "nodev", "rbind"}},
			// At the host's path, from which the GPU's UUID follows.
			{spec.File, spec.File, []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
		},
	}, "", nil
}

// toolkitDevice returns the CDI device of NVIDIA's toolkit for a GPU: it has the device
// nodes and the driver's libraries, which only that tool knows for a release of the driver.
func (d *Driver) toolkitDevice(g GPU) (string, error) {
	const remedy = "make them with: nvidia-ctk cdi generate --device-name-strategy=uuid --output="
	entries, err := os.ReadDir(d.cfg.CDIDir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".json":
		default:
			continue
		}
		text, err := os.ReadFile(filepath.Join(d.cfg.CDIDir, e.Name()))
		var spec cdiSpec
		if err != nil || yaml.Unmarshal(text, &spec) != nil || spec.Kind != toolkit {
			continue
		}
		for _, device := range spec.Devices {
			if strings.EqualFold(device.Name, g.UUID) {
				return toolkit + "=" + device.Name, nil
			}
		}
	}
	return "", fmt.Errorf("%s (%s): no CDI spec in %s has %s=%s; %s%s", g.Name, g.UUID, d.cfg.CDIDir, toolkit, g.UUID, remedy, filepath.Join(d.cfg.CDIDir, "nvidia.yaml"))
}

// specFile returns the path of a claim's spec.
func (d *Driver) specFile(uid types.UID) string {
	return filepath.Join(d.cfg.CDIDir, d.cfg.Driver+"-"+string(uid)+".json")
}

// ours matches the part of a spec's name after the driver's name.
var ours = regexp.MustCompile(`^-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.json$`)

// writeSpec writes a claim's spec, whole or not at all: the runtime reads the folder
// whenever a file in it changes, files whose names end in .json.
func (d *Driver) writeSpec(uid types.UID, s cdiSpec) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	file := d.specFile(uid)
	if err := os.WriteFile(file+".tmp", text, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}

// removeSpec removes a claim's spec; there need be none.
func (d *Driver) removeSpec(uid types.UID) error {
	if err := os.Remove(d.specFile(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readSpecs returns the claims that have specs of this driver. A spec that cannot be read
// is removed: the kubelet has the claim prepared again if it needs it.
func (d *Driver) readSpecs() (map[types.UID]preparedClaim, error) {
	entries, err := os.ReadDir(d.cfg.CDIDir)
	if err != nil {
		return nil, err
	}
	list := map[types.UID]preparedClaim{}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), d.cfg.Driver)
		if !ok {
			continue
		}
		file := filepath.Join(d.cfg.CDIDir, e.Name())
		if name, half := strings.CutSuffix(rest, ".tmp"); half && ours.MatchString(name) {
			if err := os.Remove(file); err != nil {
				return nil, err
			}
			continue
		}
		m := ours.FindStringSubmatch(rest)
		if m == nil {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var s cdiSpec
		namespace, name, ok := "", "", false
		if err = json.Unmarshal(text, &s); err == nil {
			namespace, name, ok = strings.Cut(s.Annotations[claimAnnotation], "/")
		}
		if !ok || s.Kind != Kind {
			d.cfg.Log.Warn("CDI spec is damaged, and removed", "file", file, "err", err)
			if err := os.Remove(file); err != nil {
				return nil, err
			}
			continue
		}
		p := preparedClaim{claim: types.NamespacedName{Namespace: namespace, Name: name}}
		for _, device := range s.Devices {
			p.gpus = append(p.gpus, device.Annotations[deviceAnnotation])
		}
		list[types.UID(m[1])] = p
	}
	return list, nil
}

// removeGone removes the specs of claims that are no more. The kubelet has claims
// unprepared that it knows of; it forgets them when its own files are lost. What the API
// server does not answer for stays.
func (d *Driver) removeGone(ctx context.Context) {
	d.mu.Lock()
	list := map[types.UID]types.NamespacedName{}
	for uid, p := range d.prepared {
		list[uid] = p.claim
	}
	d.mu.Unlock()
	for uid, name := range list {
		c, err := d.cfg.Client.ResourceV1().ResourceClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if err == nil && c.UID == uid || err != nil && !apierrors.IsNotFound(err) {
			continue
		}
		if err := d.unprepare(uid); err != nil {
			d.cfg.Log.Error("remove the CDI spec of a claim that is gone", "claim", name, "err", err)
			continue
		}
		d.cfg.Log.Info("CDI spec removed: its claim is gone", "claim", name, "uid", uid)
	}
}
