package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"gpumem/kube/cluster/node"
	"gpumem/kube/cluster/observe"
)

const (
	labGPU    = 16 * gib // memory of the node's only GPU
	runFolder = "/run/gpumem"
	simFile   = runFolder + "/sim/" + node.Name
)

// lab is a cluster of one node with the agent, which publishes a simulated GPU.
type lab struct {
	*testing.T
	ctx      context.Context
	node     *node.Node
	kube     *node.Kube
	agent    *node.Process
	observer *observer
	pods     []string // made in this subtest
}

// newLab starts the cluster.
func newLab(t *testing.T, ctx context.Context, flags map[string][]string) *lab {
	t.Helper()
	l := &lab{T: t, ctx: ctx}
	begin := time.Now()
	var err error
	l.node, err = node.New(node.Options{Validator: true, Flags: flags})
	l.check(err)
	l.check(os.MkdirAll(simFolder, 0o755))
	l.check(l.node.Runtime(ctx, at("pause.tar"), at("probe.tar")))
	l.check(l.node.Control(ctx, "scheduler", "controllers"))
	l.check(l.node.StartComponent("kubelet"))
	l.kube, err = l.node.Kube()
	l.check(err)
	l.check(l.kube.WaitNode(ctx))
	up := time.Since(begin)
	manifests, err := os.ReadFile("testdata/agent.yaml")
	l.check(err)
	l.check(l.kube.Apply(ctx, string(manifests)))
	l.startAgent()
	l.observer = newObserver(ctx, l.kube)
	t.Logf("cluster: %.1f s, with agent %.1f s", up.Seconds(), time.Since(begin).Seconds())
	return l
}

func (l *lab) check(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// test runs a subtest. Its pods are deleted at the end, and what they held must be free then.
func (l *lab) test(name string, f func(l *lab)) bool {
	return l.Run(name, func(t *testing.T) {
		c := *l
		c.T, c.pods = t, nil
		defer func() { l.agent = c.agent }()
		defer c.clean()
		f(&c)
	})
}

// startAgent starts the agent as a process of the node and waits for the node's condition.
func (l *lab) startAgent() {
	l.Helper()
	l.check(l.tryAgent())
}

func (l *lab) tryAgent() (err error) {
	l.agent, err = node.Start("agent", at("bin", "gpumem-kube"), "agent", "--node", node.Name, "--kubeconfig", node.Kubeconfig("agent"),
		"--library", at("library"), "--sim-library", at("sim"), "--publish", "sim", "--sim-gpus", "1", "--sim-memory", fmt.Sprint(labGPU), "--metrics", "127.0.0.1:9835")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, time.Minute)
	defer cancel()
	if err := l.kube.WaitNodeCondition(ctx, "GPUMemoryEnforced", corev1.ConditionTrue); err != nil {
		return fmt.Errorf("%w\n%s", err, l.agent.Tail(20))
	}
	return nil
}

// claimSpec returns a claim with requests by name, in bytes; 0 asks for no memory.
func claimSpec(requests map[string]int64) resourcev1.ResourceClaimSpec {
	var s resourcev1.ResourceClaimSpec
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		r := &resourcev1.ExactDeviceRequest{DeviceClassName: ours}
		if n := requests[name]; n > 0 {
			r.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(n, resource.BinarySI)}}
		}
		s.Devices.Requests = append(s.Devices.Requests, resourcev1.DeviceRequest{Name: name, Exactly: r})
	}
	return s
}

// one is a claim with one request.
func one(bytes int64) map[string]int64 { return map[string]int64{"gpu": bytes} }

// labPod is a pod of the probe.
type labPod struct {
	name     string
	requests map[string]int64 // of a claim of its own
	claim    string           // or the name of one that is there
	args     [][]string       // of each container
	again    bool             // containers start again when they fail
	memory   string           // limit on the host's memory
}

// create makes a pod, with a claim template for its claim.
func (l *lab) create(p labPod) {
	l.Helper()
	l.check(l.tryCreate(p))
	l.pods = append(l.pods, p.name)
}

func (l *lab) tryCreate(p labPod) error {
	no, grace := false, int64(1)
	kind := corev1.HostPathDirectory
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: "default"}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &grace, DNSPolicy: corev1.DNSDefault,
		Volumes: []corev1.Volume{{Name: "orders", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: simFolder, Type: &kind}}}}}}
	if p.again {
		o.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	}
	var use corev1.ResourceRequirements
	if p.claim != "" || p.requests != nil {
		claim := corev1.PodResourceClaim{Name: "gpu"}
		if p.claim != "" {
			claim.ResourceClaimName = &p.claim
		} else {
			t := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: p.name}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claimSpec(p.requests)}}
			if _, err := l.kube.ResourceV1().ResourceClaimTemplates("default").Create(l.ctx, t, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			claim.ResourceClaimTemplateName = &p.name
		}
		o.Spec.ResourceClaims = []corev1.PodResourceClaim{claim}
		use.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	if p.memory != "" {
		use.Limits = corev1.ResourceList{"memory": resource.MustParse(p.memory)}
	}
	for i, args := range p.args {
		o.Spec.Containers = append(o.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: tag, ImagePullPolicy: corev1.PullNever, Resources: use,
			Args: append([]string{"env", "GPUMEM_OUTSIDE"}, args...), VolumeMounts: []corev1.VolumeMount{{Name: "orders", MountPath: simFolder}}})
	}
	_, err := l.kube.CoreV1().Pods("default").Create(l.ctx, o, metav1.CreateOptions{})
	return err
}

// delete deletes a pod and its claim template.
func (l *lab) delete(name string) error {
	ctx := context.WithoutCancel(l.ctx)
	err := l.kube.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{})
	if terr := l.kube.ResourceV1().ResourceClaimTemplates("default").Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(terr) {
		err = errors.Join(err, terr)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// clean deletes the pods of the subtest and waits until nothing is held any more.
func (l *lab) clean() {
	l.Helper()
	for _, p := range l.pods {
		if l.Failed() {
			l.Logf("pod %s: %s", p, l.kube.Describe("default", p))
		}
		if err := l.delete(p); err != nil {
			l.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(l.ctx, 90*time.Second)
	defer cancel()
	for _, p := range l.pods {
		if _, err := l.kube.WaitPod(ctx, "default", p, func(_ *corev1.Pod, gone bool) (bool, error) { return gone, nil }); err != nil {
			l.Error(err)
		}
	}
	if err := l.waitFree(ctx); err != nil {
		l.Error(err)
	}
	for _, err := range l.observer.take() {
		l.Errorf("seen from outside: %v", err)
	}
}

// waitFree waits until no share has a ledger and nobody holds memory of the GPU.
func (l *lab) waitFree(ctx context.Context) error {
	var left []os.DirEntry
	var holders []observe.Holder
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		var err error
		left, _ = os.ReadDir(filepath.Join(runFolder, "shares"))
		if holders, err = observe.Holders(simFile, 0); err != nil {
			return false, err
		}
		return len(left) == 0 && len(holders) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("after the pods are gone there are ledgers %v and holders %v: %w", left, holders, err)
	}
	return nil
}

// succeed waits until a pod has ended well and returns the lines of its first container.
func (l *lab) succeed(name string) []string {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, 2*time.Minute)
	defer cancel()
	_, err := l.kube.WaitPhase(ctx, "default", name, corev1.PodSucceeded)
	l.check(err)
	return l.lines(name, "c0")
}

// lines returns what a container printed.
func (l *lab) lines(pod, container string) []string {
	l.Helper()
	text, err := l.kube.Log(l.ctx, "default", pod, container)
	l.check(err)
	return strings.Split(strings.TrimSpace(text), "\n")
}

// waitLine waits until a container has printed a line with a prefix.
func (l *lab) waitLine(pod, container, prefix string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, 2*time.Minute)
	defer cancel()
	_, err := l.kube.WaitPod(ctx, "default", pod, func(p *corev1.Pod, gone bool) (bool, error) {
		if p == nil {
			return false, nil
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.Name == container && (c.State.Running != nil || c.State.Terminated != nil) {
				return true, nil
			}
		}
		return false, nil
	})
	l.check(err)
	stream, err := l.kube.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	l.check(err)
	defer stream.Close()
	s := bufio.NewScanner(stream)
	for s.Scan() {
		if strings.HasPrefix(s.Text(), prefix) {
			return
		}
	}
	l.Fatalf("container %s of pod %s has not printed %q (%v): %s", container, pod, prefix, s.Err(), l.kube.Describe("default", pod))
}

// event waits for an event about a pod.
func (l *lab) event(pod, reason, message string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, time.Minute)
	defer cancel()
	if _, err := l.kube.WaitEvent(ctx, "default", pod, reason, message); err != nil {
		l.Error(err)
	}
}

// observer looks at the node from outside all the time.
type observer struct {
	mu        sync.Mutex
	claims    map[string]uint64 // consumed bytes by share, of claims that are gone, too
	errs      map[string]error
	looks     int
	processes int // most at once
	held      uint64
}

// newObserver looks at the node every 50 ms until ctx ends.
func newObserver(ctx context.Context, k *node.Kube) *observer {
	o := &observer{claims: map[string]uint64{}, errs: map[string]error{}}
	note := func(v any) {
		c, ok := v.(*resourcev1.ResourceClaim)
		if !ok || c.Status.Allocation == nil {
			return
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, r := range c.Status.Allocation.Devices.Results {
			if q, ok := r.ConsumedCapacity["memory"]; ok && r.ShareID != nil {
				o.claims[string(*r.ShareID)] = uint64(q.Value())
			}
		}
	}
	f := informers.NewSharedInformerFactory(k, 0)
	_, _ = f.Resource().V1().ResourceClaims().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, v any) { note(v) }})
	f.Start(ctx.Done())
	go wait.UntilWithContext(ctx, func(context.Context) {
		o.mu.Lock()
		claims := maps.Clone(o.claims)
		o.mu.Unlock()
		n, err := observe.Look(simFile, filepath.Join(runFolder, "shares"), "/probe", claims)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.looks++
		o.processes, o.held = max(o.processes, n.Processes), max(o.held, n.Held)
		if err != nil {
			o.errs[err.Error()] = err
		}
	}, 50*time.Millisecond)
	return o
}

// take returns what was wrong since the last call.
func (o *observer) take() []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	errs := slices.Collect(maps.Values(o.errs))
	clear(o.errs)
	return errs
}
