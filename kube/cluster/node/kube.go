package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Kube is a cluster as its administrator uses it.
type Kube struct {
	*kubernetes.Clientset
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
}

// Kube returns the cluster; its API server must be ready.
func (n *Node) Kube() (*Kube, error) {
	config, err := n.Config(Admin)
	if err != nil {
		return nil, err
	}
	k := &Kube{}
	if k.Clientset, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if k.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClient(k.RESTClient()))
	if err != nil {
		return nil, err
	}
	k.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	return k, nil
}

// Apply creates or changes the objects of a YAML text, as kubectl apply --server-side does.
func (k *Kube) Apply(ctx context.Context, text string) error {
	objects, err := decode(text)
	if err != nil {
		return err
	}
	for _, o := range objects {
		r, err := k.resource(o)
		if err == nil {
			_, err = r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "test", Force: true})
		}
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// Delete deletes the objects of a YAML text, the last first. Objects that are not there
// are no error.
func (k *Kube) Delete(ctx context.Context, text string) error {
	objects, err := decode(text)
	for i := len(objects) - 1; i >= 0; i-- {
		r, e := k.resource(objects[i])
		if e == nil {
			e = r.Delete(ctx, objects[i].GetName(), metav1.DeleteOptions{})
		}
		if e != nil && !apierrors.IsNotFound(e) {
			err = errors.Join(err, fmt.Errorf("delete %s %s: %w", objects[i].GetKind(), objects[i].GetName(), e))
		}
	}
	return err
}

// decode returns the objects of a YAML text.
func decode(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := d.Decode(o)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("YAML: %w", err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// resource returns where objects like o are.
func (k *Kube) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	m, err := k.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return k.dynamic.Resource(m.Resource), nil
	}
	ns := o.GetNamespace()
	if ns == "" {
		ns = metav1.NamespaceDefault
	}
	return k.dynamic.Resource(m.Resource).Namespace(ns), nil
}

// WaitPod waits until a condition holds for a pod and returns the pod. gone is true in the
// last call if the pod was deleted. The watch survives restarts of the API server.
func (k *Kube) WaitPod(ctx context.Context, namespace, name string, holds func(p *corev1.Pod, gone bool) (bool, error)) (*corev1.Pod, error) {
	var last *corev1.Pod
	by := fields.OneTermEqualSelector("metadata.name", name).String()
	pods := k.CoreV1().Pods(namespace)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = by
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = by
			return pods.Watch(ctx, o)
		},
	}
	exists := func(s cache.Store) (bool, error) {
		if len(s.List()) > 0 {
			return false, nil
		}
		return holds(nil, true)
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, exists, func(e watch.Event) (bool, error) {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			return false, nil
		}
		last = p
		return holds(p, e.Type == watch.Deleted)
	})
	if err != nil {
		return last, fmt.Errorf("pod %s/%s: %w; %s", namespace, name, err, k.Describe(namespace, name))
	}
	return last, nil
}

// WaitPhase waits until a pod is in a phase. It fails when the pod has ended in another.
func (k *Kube) WaitPhase(ctx context.Context, namespace, name string, phase corev1.PodPhase) (*corev1.Pod, error) {
	return k.WaitPod(ctx, namespace, name, func(p *corev1.Pod, gone bool) (bool, error) {
		switch {
		case p == nil || gone:
			return false, nil // not made yet, or made again
		case p.Status.Phase == phase:
			return true, nil
		case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
			return false, fmt.Errorf("is %s, not %s", p.Status.Phase, phase)
		}
		return false, nil
	})
}

// WaitEvent waits for an event about an object whose reason and message contain the texts.
func (k *Kube) WaitEvent(ctx context.Context, namespace, name, reason, message string) (*corev1.Event, error) {
	events := k.CoreV1().Events(namespace)
	by := fields.OneTermEqualSelector("involvedObject.name", name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = by
			return events.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = by
			return events.Watch(ctx, o)
		},
	}
	e, err := watchtools.UntilWithSync(ctx, lw, &corev1.Event{}, nil, func(e watch.Event) (bool, error) {
		v, ok := e.Object.(*corev1.Event)
		return ok && strings.Contains(v.Reason, reason) && strings.Contains(v.Message, message), nil
	})
	if err != nil {
		return nil, fmt.Errorf("event %q with %q about %s/%s: %w; %s", reason, message, namespace, name, err, k.Describe(namespace, name))
	}
	return e.Object.(*corev1.Event), nil
}

// Events returns what was reported about an object, as "TYPE REASON: MESSAGE".
func (k *Kube) Events(ctx context.Context, namespace, name string) ([]string, error) {
	list, err := k.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.name", name).String()})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Type+" "+e.Reason+": "+e.Message)
	}
	return out, nil
}

// Log returns what a container printed so far.
func (k *Kube) Log(ctx context.Context, namespace, pod, container string) (string, error) {
	b, err := k.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	return string(b), err
}

// Describe returns what is known of a pod, for messages.
func (k *Kube) Describe(namespace, name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var s strings.Builder
	if p, err := k.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		fmt.Fprintf(&s, "phase %s", p.Status.Phase)
		for _, c := range p.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				fmt.Fprintf(&s, "\n  condition %s %s: %s", c.Type, c.Reason, c.Message)
			}
		}
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil {
				fmt.Fprintf(&s, "\n  container %s waits: %s: %s", c.Name, w.Reason, w.Message)
			}
			if t := c.State.Terminated; t != nil {
				fmt.Fprintf(&s, "\n  container %s ended with %d: %s", c.Name, t.ExitCode, t.Reason)
			}
			if log, err := k.Log(ctx, namespace, name, c.Name); err == nil && log != "" {
				fmt.Fprintf(&s, "\n  container %s printed:\n    %s", c.Name, strings.ReplaceAll(strings.TrimSpace(log), "\n", "\n    "))
			}
		}
	} else {
		fmt.Fprintf(&s, "%v", err)
	}
	events, err := k.Events(ctx, namespace, name)
	if err != nil {
		events = []string{err.Error()}
	}
	for _, e := range events {
		fmt.Fprintf(&s, "\n  event %s", e)
	}
	return s.String()
}

// WaitNode waits until the node is ready and the namespace default can have pods, which is
// when the controllers have made its service account.
func (k *Kube) WaitNode(ctx context.Context) error {
	lw := cache.NewListWatchFromClient(k.CoreV1().RESTClient(), "serviceaccounts", metav1.NamespaceDefault, fields.OneTermEqualSelector("metadata.name", "default"))
	_, err := watchtools.UntilWithSync(ctx, lw, &corev1.ServiceAccount{}, nil, func(watch.Event) (bool, error) { return true, nil })
	if err != nil {
		return fmt.Errorf("service account default: %w", err)
	}
	return k.WaitNodeCondition(ctx, corev1.NodeReady, corev1.ConditionTrue)
}

// WaitNodeCondition waits until a condition of the node has a status.
func (k *Kube) WaitNodeCondition(ctx context.Context, kind corev1.NodeConditionType, status corev1.ConditionStatus) error {
	lw := cache.NewListWatchFromClient(k.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector("metadata.name", Name))
	_, err := watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		if n, ok := e.Object.(*corev1.Node); ok {
			for _, c := range n.Status.Conditions {
				if c.Type == kind {
					return c.Status == status, nil
				}
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("node %s: condition %s is not %s: %w", Name, kind, status, err)
	}
	return nil
}
