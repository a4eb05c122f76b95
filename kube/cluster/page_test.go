package cluster

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpumem/kube/cluster/image"
	"gpumem/kube/cluster/node"
	"gpumem/kube/internal/archive"
)

// page is a cluster on which the operator's page was followed to the agent.
type page struct {
	*testing.T
	ctx   context.Context
	begin time.Time
	node  *node.Node
	kube  *node.Kube
}

// check ends the test at an error, and else logs what was done and when.
func (p *page) check(what string, err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
	if what != "" {
		p.Logf("%5.1f s %s", time.Since(p.begin).Seconds(), what)
	}
}

// read returns a file of the folder kube.
func (p *page) read(name string) string {
	p.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	p.check("", err)
	return string(text)
}

// follow makes the images and a cluster.
func follow(t *testing.T) *page {
	t.Helper()
	if !*clusterFlag {
		t.Skip("the real cluster takes a minute: go test -run Page -cluster")
	}
	need(t)
	p := &page{T: t, ctx: within(t, 3*time.Minute), begin: time.Now()}
	p.check("agent's image", run("..", "go", "run", "./cmd/image", "--out", at("agent.tar")))
	p.check("Python's image", pythonImage(at("python.tar")))
	var err error
	p.node, err = node.New(node.Options{Validator: true})
	p.check("", err)
	p.check("runtime", p.node.Runtime(p.ctx, at("pause.tar"), at("agent.tar"), at("python.tar")))
	p.check("control plane", p.node.Control(p.ctx, "scheduler", "controllers"))
	p.check("kubelet", p.node.StartComponent("kubelet"))
	p.kube, err = p.node.Kube()
	p.check("", err)
	p.check("node", p.kube.WaitNode(p.ctx))
	return p
}

// install applies the manifests and waits for the agent.
func (p *page) install(manifests string) {
	p.Helper()
	p.check("manifests", p.kube.Apply(p.ctx, manifests))
	p.check("agent", p.kube.WaitNodeCondition(p.ctx, "GPUMemoryEnforced", corev1.ConditionTrue))
}

// uninstall stops the agent, which says so in the node's condition while it may, and deletes
// what the manifests have.
func (p *page) uninstall(manifests string) {
	p.Helper()
	foreground := metav1.DeletePropagationForeground
	p.check("", p.kube.AppsV1().DaemonSets("gpumem").Delete(p.ctx, "gpumem-kube", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	p.check("agent has stopped", p.kube.WaitNodeCondition(p.ctx, "GPUMemoryEnforced", corev1.ConditionFalse))
	p.check("", p.kube.Delete(p.ctx, manifests))
	p.check("namespace is gone", wait.PollUntilContextCancel(p.ctx, time.Second/5, true, func(ctx context.Context) (bool, error) {
		_, err := p.kube.CoreV1().Namespaces().Get(ctx, "gpumem", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}))
}

// prints waits until a container has printed that it was refused, and returns all it has
// printed.
func (p *page) prints(pod, container string) (log string) {
	p.Helper()
	err := wait.PollUntilContextCancel(p.ctx, time.Second/5, true, func(ctx context.Context) (bool, error) {
		log, _ = p.kube.Log(ctx, "default", pod, container) // it has none before it runs
		return strings.Contains(log, "CUDA error"), nil
	})
	if err != nil {
		p.Fatalf("%s: %v: %s", pod, err, p.kube.Describe("default", pod))
	}
	return log
}

// remove deletes pods and waits until they are gone.
func (p *page) remove(pods ...string) {
	p.Helper()
	for _, pod := range pods {
		p.check("", p.kube.CoreV1().Pods("default").Delete(p.ctx, pod, metav1.DeleteOptions{}))
	}
	for _, pod := range pods {
		_, err := p.kube.WaitPod(p.ctx, "default", pod, func(_ *corev1.Pod, gone bool) (bool, error) { return gone, nil })
		p.check(pod+" is gone", err)
	}
}

// TestPage does what docs/kubernetes.md tells an operator of a cluster without GPUs: the
// image, the manifests as they are, the pods of the example, other GPUs, removal. The agent
// runs as the manifests have it, with their rights and policies.
func TestPage(t *testing.T) {
	p := follow(t)
	manifests := p.read("gpumem-lab.yaml")
	p.install(manifests)
	p.validator()
	p.example()
	p.uninstall(manifests)
	p.check("file of the GPUs is removed", os.Remove("/run/gpumem/sim/"+node.Name))
	two := strings.Replace(manifests, "--sim-gpus=1", "--sim-gpus=2", 1)
	p.install(two)
	p.severalGPUs()
	p.uninstall(two)
	p.check("stopped", p.node.Stop())
}

// validator does what the page has to see whether containerd's validator is on.
func (p *page) validator() {
	p.check("", p.kube.Apply(p.ctx, `
apiVersion: v1
kind: Pod
metadata: {name: validator, annotations: {required-plugins.noderesource.dev: "[no-such-plugin]"}}
spec: {restartPolicy: Never, containers: [{name: validator, image: "gpumem.dev/gpumem-kube:0.2.0", imagePullPolicy: IfNotPresent}]}
`))
	err := wait.PollUntilContextCancel(p.ctx, time.Second/5, true, func(ctx context.Context) (bool, error) {
		events, err := p.kube.Events(ctx, "default", "validator")
		return strings.Contains(strings.Join(events, "\n"), `required plugin "no-such-plugin" not present`), err
	})
	p.check("the validator refuses", err)
	p.remove("validator")
}

// ps is gpumem ps as the page has it run: in the agent's container.
func (p *page) ps() string {
	p.Helper()
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if exe, _ := os.Readlink(link); filepath.Base(exe) != "gpumem-kube" {
			continue
		}
		pid := filepath.Base(filepath.Dir(link))
		environ, err := os.ReadFile("/proc/" + pid + "/environ")
		p.check("", err)
		cmd := exec.Command("nsenter", "-t", pid, "-m", "-p", "/bin/gpumem", "ps")
		cmd.Env = strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00")
		out, err := cmd.CombinedOutput()
		if err != nil {
			p.Fatalf("gpumem ps: %v: %s", err, out)
		}
		return string(out)
	}
	p.Fatal("the agent has no process")
	return ""
}

// example starts the pods of the example and one more.
func (p *page) example() {
	example := p.read("examples/lab.yaml")
	p.check("example", p.kube.Apply(p.ctx, example))
	takes := func(pod string) {
		p.Helper()
		if log := p.prints(pod, "main"); !strings.Contains(log, "took 9216 MiB, then CUDA error 2\n") {
			p.Fatalf("%s printed %s", pod, log)
		}
		err := wait.PollUntilContextCancel(p.ctx, time.Second/5, true, func(ctx context.Context) (bool, error) {
			events, err := p.kube.Events(ctx, "default", pod)
			return strings.Contains(strings.Join(events, "\n"), "Warning OutOfLease: "), err
		})
		p.check(pod+" was refused more", err)
		p.Log(p.kube.Describe("default", pod))
	}
	takes("lab-1")
	takes("lab-2")
	text := p.ps()
	p.Log(text)
	for _, pod := range []string{"lab-1", "lab-2"} {
		// pid, user, age, what it holds, its lease, its pool, the container, the command
		if !regexp.MustCompile(`(?m)^ +\d+ .* 9 GiB +9 GiB .* default/` + pod + `/main +python`).MatchString(text) {
			p.Errorf("gpumem ps has no program of %s that holds 9 GiB", pod)
		}
	}

	// A third one waits until one of them has gone.
	parts := strings.Split(example, "\n---\n")
	p.check("third pod", p.kube.Apply(p.ctx, strings.ReplaceAll(parts[len(parts)-1], "lab-2", "lab-3")))
	_, err := p.kube.WaitPod(p.ctx, "default", "lab-3", func(pod *corev1.Pod, _ bool) (bool, error) {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return strings.Contains(c.Message, "cannot allocate all claims"), nil
			}
		}
		return false, nil
	})
	p.check("it waits", err)
	p.remove("lab-1")
	takes("lab-3")

	p.remove("lab-2", "lab-3")
}

// takeAll is a Python program that takes memory of each GPU that it sees until it is
// refused.
const takeAll = `import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
n, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(n))
text = ""
for d in range(n.value):
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), d), cuda.cuCtxSetCurrent(context)
    taken = 0
    while not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256 << 20)):
        taken += 256
    text += f"GPU {d}: {taken} MiB, "
print(text + "then CUDA error", flush=True)
import time; time.sleep(3600)
`

// severalGPUs starts a pod on two GPUs. Each of its containers must see the GPUs of its
// requests and no other, and have the bytes of each.
func (p *page) severalGPUs() {
	container := func(name, claim string) string {
		return "  - {name: " + name + ", image: \"python:3.13-slim\", command: [python, -c, " + strconv.Quote(takeAll) + "], resources: {claims: [" + claim + "]}}\n"
	}
	p.check("pod", p.kube.Apply(p.ctx, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two}
spec:
  spec:
    devices:
      requests:
      - {name: a, exactly: {deviceClassName: gpu.gpumem.dev, capacity: {requests: {memory: 2Gi}}}}
      - {name: b, exactly: {deviceClassName: gpu.gpumem.dev, capacity: {requests: {memory: 3Gi}}}}
      constraints:
      - {requests: [a, b], distinctAttribute: gpu.gpumem.dev/uuid}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: c, exactly: {deviceClassName: gpu.gpumem.dev, capacity: {requests: {memory: 1Gi}}}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: several}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  resourceClaims:
  - {name: two, resourceClaimTemplateName: two}
  - {name: other, resourceClaimTemplateName: two}
  - {name: one, resourceClaimTemplateName: one}
  containers:
`+container("both", "{name: two}")+container("first", "{name: other, request: a}")+container("second", "{name: other, request: b}")+container("single", "{name: one}")))
	for container, wants := range map[string][]string{
		"both":   {"GPU 0: 2048 MiB, GPU 1: 3072 MiB, then", "GPU 0: 3072 MiB, GPU 1: 2048 MiB, then"},
		"first":  {"GPU 0: 2048 MiB, then"},
		"second": {"GPU 0: 3072 MiB, then"},
		"single": {"GPU 0: 1024 MiB, then"},
	} {
		log := "\n" + p.prints("several", container) // with lines of the library
		if !slices.ContainsFunc(wants, func(want string) bool { return strings.Contains(log, "\n"+want) }) {
			p.Errorf("container %s printed %s, want %s", container, log, wants[0])
		}
	}
	p.check("all have what they claim", nil)
	p.remove("several")
}

// pythonImage writes an image of this machine's Python under the name that the example has.
func pythonImage(to string) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return err
	}
	out, err := exec.Command(python, "-c", "import sys, sysconfig, _ctypes; print(sys.executable, sysconfig.get_path('stdlib'), _ctypes.__file__)").Output()
	if err != nil {
		return err
	}
	words := strings.Fields(string(out))
	real, err := filepath.EvalSymlinks(words[0])
	if err != nil {
		return err
	}
	files, err := image.Needs(real, words[2])
	if err != nil {
		return err
	}
	files["/usr/local/bin/python"] = real
	err = filepath.WalkDir(words[1], func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "test" || d.Name() == "site-packages" || d.Name() == "dist-packages" || d.Name() == "__pycache__" || strings.HasPrefix(d.Name(), "config-")):
			return filepath.SkipDir
		case d.Type().IsRegular():
			files[path] = path
		}
		return nil
	})
	if err != nil {
		return err
	}
	return (archive.Image{Arch: runtime.GOARCH, Temporary: true, Tag: "docker.io/library/python:3.13-slim", Files: files, Env: []string{"PATH=/usr/local/bin", "PYTHONHOME=" + filepath.Dir(filepath.Dir(words[1]))}}).WriteFile(to)
}
