package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestJAX runs real JAX, with its GPU plugin, in pods with claims: it trains within its
// claim, and gets its own out-of-memory error where that is too small. The simulated GPU
// computes nothing.
func TestJAX(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX_GPU")
	if !*clusterFlag || python == "" {
		t.Skip("real JAX in a pod: GPUMEM_TEST_JAX_GPU=PYTHON go test -run TestJAX -cluster, a Python with jax and its CUDA plugin")
	}
	need(t)
	l := newLab(t, within(t, 20*time.Minute), nil)
	for _, c := range []struct {
		name  string
		bytes int64
		width int
		want  string // of the log
		phase corev1.PodPhase
	}{
		{"trains", gib, 4096, `"steps": 20`, corev1.PodSucceeded},                        // 64 MiB an array
		{"too-large", gib, 16384, "RESOURCE_EXHAUSTED: Out of memory", corev1.PodFailed}, // 1 GiB an array
	} {
		l.test(c.name, func(l *lab) {
			l.check(l.jaxPod(c.name, python, c.bytes, c.width))
			l.pods = append(l.pods, c.name)
			p, err := l.kube.WaitPod(l.ctx, "default", c.name, func(p *corev1.Pod, _ bool) (bool, error) {
				return p != nil && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed), nil
			})
			l.check(err)
			text := strings.Join(l.lines(c.name, "main"), "\n")
			if p.Status.Phase != c.phase || !strings.Contains(text, c.want) {
				l.Fatalf("phase %s, log:\n%s", p.Status.Phase, text)
			}
			for line := range strings.Lines(text) {
				if strings.Contains(line, "RESOURCE_EXHAUSTED") || strings.HasPrefix(line, "gpumem") || strings.HasPrefix(line, "{") {
					l.Log(strings.TrimSpace(line))
				}
				var figures struct {
					Peak int64 `json:"peak_bytes_in_use"`
				}
				if json.Unmarshal([]byte(line), &figures) == nil && figures.Peak > c.bytes {
					l.Errorf("JAX had %d bytes of a claim of %d", figures.Peak, c.bytes)
				}
			}
			if c.phase == corev1.PodFailed {
				l.event(c.name, "OutOfLease", "claim")
			}
		})
	}
	if err := l.agent.Stop(); err != nil {
		t.Error(err)
	}
	if err := l.node.Stop(); err != nil {
		t.Error(err)
	}
}

// jaxPod makes a pod that runs the training program with this machine's Python.
func (l *lab) jaxPod(name, python string, bytes int64, width int) error {
	real, err := filepath.EvalSymlinks(python)
	if err != nil {
		return err
	}
	program, err := filepath.Abs("../../internal/test/standin/python")
	if err != nil {
		return err
	}
	venv := filepath.Dir(filepath.Dir(python))
	nvcc, _ := filepath.Glob(filepath.Join(venv, "lib/python3*/site-packages/nvidia/cuda_nvcc/bin"))
	t := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claimSpec(one(bytes))}}
	if _, err := l.kube.ResourceV1().ResourceClaimTemplates("default").Create(l.ctx, t, metav1.CreateOptions{}); err != nil {
		return err
	}
	no := false
	c := corev1.Container{Name: "main", Image: tag, ImagePullPolicy: corev1.PullNever, Command: []string{python, filepath.Join(program, "jax_step.py"), "20", fmt.Sprint(width)},
		Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
		Env: []corev1.EnvVar{{Name: "PYTHONPATH", Value: program}, {Name: "PATH", Value: strings.Join(append(nvcc, "/usr/bin"), ":")}, {Name: "LD_LIBRARY_PATH", Value: "/opt/gpumem/sim"},
			{Name: "JAX_PLATFORMS", Value: "cuda"}, {Name: "JAX_SKIP_CUDA_CONSTRAINTS_CHECK", Value: "1"}, {Name: "XLA_FLAGS", Value: "--xla_gpu_autotune_level=0"}, {Name: "TF_CPP_MIN_LOG_LEVEL", Value: "2"}, {Name: "HOME", Value: "/tmp"}}}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, EnableServiceLinks: &no, DNSPolicy: corev1.DNSDefault,
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}}}
	for i, dir := range []string{"/usr", "/usr/lib/x86_64-linux-gnu=/lib/x86_64-linux-gnu", filepath.Dir(filepath.Dir(real)), venv, program, "/tmp"} {
		from, at, ok := strings.Cut(dir, "=")
		if !ok {
			at = from
		}
		v := fmt.Sprintf("v%d", i)
		source := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: from}}
		if from == "/tmp" {
			source = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}
		o.Spec.Volumes = append(o.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: source})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v, MountPath: at, ReadOnly: from != "/tmp"})
	}
	o.Spec.Containers = []corev1.Container{c}
	_, err = l.kube.CoreV1().Pods("default").Create(l.ctx, o, metav1.CreateOptions{})
	return err
}
