// Package schedule simulates a cluster of thousands of GPUs whose memory is claimed: the
// real store, API server and scheduler, and nodes that are objects only. It measures how
// fast claims are placed, how tightly, and what the agents of the nodes would ask of the
// API server.
package schedule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	driver    = "gpu.gpumem.dev"
	namespace = "default"
	gib       = 1 << 30
)

// Part is a part of the claims: Weight of them have Bytes.
type Part struct {
	Weight int
	Bytes  int64
}

// Mixture is what users claim: notebooks and services beside trainings of a whole GPU. It
// was chosen, not measured.
var Mixture = []Part{{25, 6 * gib}, {25, 12 * gib}, {25, 24 * gib}, {15, 40 * gib}, {10, 80 * gib}}

// Config is the size of a simulation.
type Config struct {
	Nodes   int
	GPUs    int   // of each node
	Memory  int64 // of each GPU, bytes
	Claims  int   // each with its pod
	Mixture []Part
	Seed    uint64
	Workers int // concurrent requests that make objects
}

// Sizes returns the bytes of each claim. They depend on the seed alone.
func (c Config) Sizes() []int64 {
	total := 0
	for _, p := range c.Mixture {
		total += p.Weight
	}
	r := rand.New(rand.NewPCG(c.Seed, c.Seed))
	sizes := make([]int64, c.Claims)
	for i := range sizes {
		n := r.IntN(total)
		for _, p := range c.Mixture {
			if n -= p.Weight; n < 0 {
				sizes[i] = p.Bytes
				break
			}
		}
	}
	return sizes
}

// Packing is how the claims lie on the GPUs.
type Packing struct {
	Placed  int   // claims
	Bytes   int64 // of them
	Used    int   // GPUs with a claim
	Least   int   // GPUs that a first fit of the same claims, the largest first, takes
	Nodes   int   // with a claim
	Over    int   // GPUs whose claims are more than their memory; must be 0
	Largest int64 // bytes of the largest claim that would still fit on a GPU that is in use
}

// Pack reads where the claims lie. gpus are the allocated bytes by GPU.
func Pack(placed []int64, gpus map[string]int64, nodes int, memory int64) Packing {
	p := Packing{Placed: len(placed), Used: len(gpus), Nodes: nodes, Least: firstFit(placed, memory)}
	for _, n := range placed {
		p.Bytes += n
	}
	for _, n := range gpus {
		if n > memory {
			p.Over++
		}
		p.Largest = max(p.Largest, memory-n)
	}
	return p
}

// firstFit returns how many GPUs the sizes take, the largest first, each on the first GPU
// that has room.
func firstFit(sizes []int64, memory int64) int {
	sorted := slices.Clone(sizes)
	slices.SortFunc(sorted, func(a, b int64) int { return int(b>>20) - int(a>>20) })
	var free []int64
	first := 0 // GPUs before are full
	for _, n := range sorted {
		placed := false
		for i := first; i < len(free); i++ {
			if free[i] >= n {
				free[i] -= n
				placed = true
				break
			}
		}
		if !placed {
			free = append(free, memory-n)
		}
		for first < len(free) && free[first] == 0 {
			first++
		}
	}
	return len(free)
}

// Result is what a simulation measured.
type Result struct {
	Created   time.Duration // to make all objects of the nodes
	Submitted time.Duration // to make all claims and pods
	Placed    time.Duration // from the first pod's creation to the last one's node
	Half      time.Duration // until half of them had their node
	Waiting   int           // pods without a node at the end
	Packing   Packing
}

// Run makes the nodes, then the claims and pods, and waits until every pod has a node or
// settle has passed without another one getting it.
func Run(ctx context.Context, client kubernetes.Interface, c Config, settle time.Duration) (Result, error) {
	var r Result
	begin := time.Now()
	if err := c.nodes(ctx, client); err != nil {
		return r, err
	}
	r.Created = time.Since(begin)

	w := newWatch(ctx, client)
	begin = time.Now()
	sizes := c.Sizes()
	err := parallel(ctx, c.Workers, len(sizes), func(i int) error {
		name := fmt.Sprintf("job-%05d", i)
		if _, err := client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim(name, sizes[i]), metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := client.CoreV1().Pods(namespace).Create(ctx, pod(name), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return r, err
	}
	r.Submitted = time.Since(begin)
	times := w.wait(ctx, len(sizes), settle)
	r.Waiting = len(sizes) - len(times)
	if len(times) > 0 {
		r.Half, r.Placed = times[len(times)/2].Sub(begin), times[len(times)-1].Sub(begin)
	}
	r.Packing, err = packing(ctx, client, c.Memory)
	return r, err
}

// packing reads every claim.
func packing(ctx context.Context, client kubernetes.Interface, memory int64) (Packing, error) {
	list, err := client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return Packing{}, err
	}
	gpus, nodes := map[string]int64{}, map[string]bool{}
	var placed []int64
	for _, c := range list.Items {
		if c.Status.Allocation == nil {
			continue
		}
		for _, d := range c.Status.Allocation.Devices.Results {
			q := d.ConsumedCapacity["memory"]
			gpus[d.Pool+"/"+d.Device] += q.Value()
			nodes[d.Pool] = true
			placed = append(placed, q.Value())
		}
	}
	return Pack(placed, gpus, len(nodes), memory), nil
}

// nodes makes the device class, the nodes and their GPUs.
func (c Config) nodes(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.ResourceV1().DeviceClasses().Create(ctx, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return parallel(ctx, c.Workers, c.Nodes, func(i int) error {
		name := NodeName(i)
		capacity := corev1.ResourceList{"cpu": resource.MustParse("256"), "memory": resource.MustParse("2Ti"), "pods": resource.MustParse("1000")}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
			Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		if _, err := client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := client.ResourceV1().ResourceSlices().Create(ctx, c.slice(name), metav1.CreateOptions{})
		return err
	})
}

// NodeName returns the name of a simulated node.
func NodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// slice returns a node's GPUs as the agent publishes them.
func (c Config) slice(name string) *resourcev1.ResourceSlice {
	yes := true
	model := "simulated"
	whole, step := *resource.NewQuantity(c.Memory, resource.BinarySI), resource.MustParse("1Mi")
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1}}}
	for g := range c.GPUs {
		uuid := fmt.Sprintf("GPU-%s-%d", name, g)
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", g), AllowMultipleAllocations: &yes,
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"productName": {StringValue: &model}, "uuid": {StringValue: &uuid}},
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: whole,
				RequestPolicy: &resourcev1.CapacityRequestPolicy{Default: &whole, ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: &step, Step: &step}}}}})
	}
	return s
}

func claim(name string, bytes int64) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: driver,
			Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(bytes, resource.BinarySI)}}}}}}}}
}

func pod(name string) *corev1.Pod {
	no := false
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{AutomountServiceAccountToken: &no,
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
		Containers: []corev1.Container{{Name: "main", Image: "simulated", Resources: corev1.ResourceRequirements{
			Claims: []corev1.ResourceClaim{{Name: "gpu"}}, Requests: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}}}}}}
}

// parallel calls f with 0 to n-1 from as many goroutines as workers, until one fails.
func parallel(ctx context.Context, workers, n int, f func(int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := range numbers {
				if err := f(i); err != nil {
					cancel(err)
				}
			}
		})
	}
send:
	for i := range n {
		select {
		case numbers <- i:
		case <-ctx.Done():
			break send
		}
	}
	close(numbers)
	group.Wait()
	return context.Cause(ctx)
}

// watch notes when pods get their nodes.
type watch struct {
	mu     sync.Mutex
	seen   map[string]bool
	times  []time.Time
	placed chan struct{} // has one for a pod that was placed since the last look
}

func newWatch(ctx context.Context, client kubernetes.Interface) *watch {
	w := &watch{seen: map[string]bool{}, placed: make(chan struct{}, 1)}
	f := informers.NewSharedInformerFactory(client, 0)
	note := func(o any) {
		p, ok := o.(*corev1.Pod)
		if !ok || p.Spec.NodeName == "" {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.seen[p.Name] {
			w.seen[p.Name] = true
			w.times = append(w.times, time.Now())
			select {
			case w.placed <- struct{}{}:
			default:
			}
		}
	}
	_, _ = f.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, o any) { note(o) }})
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	return w
}

// wait returns when n pods have nodes, or no further pod got one for as long as settle.
func (w *watch) wait(ctx context.Context, n int, settle time.Duration) []time.Time {
	for {
		w.mu.Lock()
		times := slices.Clone(w.times)
		w.mu.Unlock()
		if len(times) >= n {
			return times
		}
		select {
		case <-w.placed:
		case <-time.After(settle):
			return times
		case <-ctx.Done():
			return times
		}
	}
}

// Asking is what the agents' requests took.
type Asking struct {
	Pods, Slices      int           // pods that started, lists of a node's slices
	PerPod, PerList   time.Duration // of one of them, the median
	Elapsed           time.Duration
	RequestsPerSecond float64
}

// Ask makes the requests that the agents of all nodes make when every placed pod starts:
// the pod and its claim, and for the first pod of a node its slices.
func Ask(ctx context.Context, client kubernetes.Interface, c Config) (Asking, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return Asking{}, err
	}
	var mu sync.Mutex
	var pods, lists []time.Duration
	first := map[string]bool{}
	begin := time.Now()
	err = parallel(ctx, c.Workers, len(list.Items), func(i int) error {
		p := &list.Items[i]
		if p.Spec.NodeName == "" {
			return nil
		}
		at := time.Now()
		got, err := client.CoreV1().Pods(namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err == nil {
			_, err = client.ResourceV1().ResourceClaims(namespace).Get(ctx, *got.Spec.ResourceClaims[0].ResourceClaimName, metav1.GetOptions{})
		}
		if err != nil {
			return err
		}
		took := time.Since(at)
		mu.Lock()
		pods = append(pods, took)
		ask := !first[p.Spec.NodeName]
		first[p.Spec.NodeName] = true
		mu.Unlock()
		if !ask {
			return nil
		}
		at = time.Now()
		s, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorNodeName + "=" + p.Spec.NodeName})
		if err == nil && len(s.Items) != 1 {
			err = fmt.Errorf("node %s has %d slices, want 1", p.Spec.NodeName, len(s.Items))
		}
		took = time.Since(at)
		mu.Lock()
		lists = append(lists, took)
		mu.Unlock()
		return err
	})
	a := Asking{Pods: len(pods), Slices: len(lists), PerPod: median(pods), PerList: median(lists), Elapsed: time.Since(begin)}
	a.RequestsPerSecond = float64(2*a.Pods+a.Slices) / a.Elapsed.Seconds()
	return a, err
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[len(d)/2]
}
