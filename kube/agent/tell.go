// What the agent tells the cluster: events on pods, and the node's condition.

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reasons of the events on pods.
const (
	LeaseRefused = "LeaseRefused" // a container was not created, for it could not have its lease
	LeaseIgnored = "LeaseIgnored" // a container uses GPU memory past its lease, or without one
	OutOfLease   = "OutOfLease"   // a program asked for more than is left of its lease
)

// quiet is how long the same words about the same pod are not repeated: the kubelet tries
// a refused container every few seconds.
const quiet = 5 * time.Minute

// events writes events on pods. An event is not waited for.
type events struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	now         func() time.Time

	mu     sync.Mutex
	said   map[said]time.Time
	purged time.Time
}

type said struct{ pod, reason, about string }

func newEvents(client kubernetes.Interface, node string) *events {
	e := &events{broadcaster: record.NewBroadcaster(), now: time.Now, said: map[said]time.Time{}}
	e.broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	e.recorder = e.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "gpumem", Host: node})
	return e
}

func (e *events) stop() { e.broadcaster.Shutdown() }

// say writes an event, unless one about the same was written a while ago.
func (e *events) say(pod podRef, reason, about, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	if now.Sub(e.purged) > quiet || len(e.said) > 10_000 {
		maps.DeleteFunc(e.said, func(_ said, at time.Time) bool { return now.Sub(at) > quiet || len(e.said) > 10_000 })
		e.purged = now
	}
	key := said{pod.uid, reason, about}
	if at, ok := e.said[key]; ok && now.Sub(at) <= quiet {
		return
	}
	e.said[key] = now
	if len(text) > 1000 { // the API server refuses more than 1,024 bytes
		text = strings.ToValidUTF8(text[:997], "") + "..."
	}
	e.recorder.Event(&corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.namespace, Name: pod.name, UID: types.UID(pod.uid)}, corev1.EventTypeWarning, reason, text)
}

// refused tells that a container was refused. Errors that differ in figures are the same.
func (e *events) refused(pod podRef, container string, err error) {
	words := strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) || r == '.' {
			return -1
		}
		return r
	}, err.Error())
	e.say(pod, LeaseRefused, container+": "+words[:min(len(words), 80)], "container "+container+" is not created: "+err.Error())
}

func (e *events) ignored(pod podRef, about, text string) { e.say(pod, LeaseIgnored, about, text) }

// ConditionType is the condition of a node that says whether claims are enforced on it.
const ConditionType corev1.NodeConditionType = "GPUMemoryEnforced"

// Reasons of the condition with which nothing asks the agent.
const (
	noRuntime = "NoRuntime"
	stopped   = "AgentStopped"
)

// condition writes the node's condition when it changes, or was changed by another.
type condition struct {
	client kubernetes.Interface
	node   string
	log    *slog.Logger

	writing sync.Mutex // held while the API server is asked

	mu      sync.Mutex
	want    *corev1.NodeCondition
	written bool
	uid     types.UID // of the node, as it was first seen
}

// set sets the condition.
func (c *condition) set(ctx context.Context, enforced bool, reason, text string) {
	now := metav1.Now()
	n := &corev1.NodeCondition{Type: ConditionType, Status: corev1.ConditionFalse, Reason: reason, Message: text, LastTransitionTime: now, LastHeartbeatTime: now}
	if enforced {
		n.Status = corev1.ConditionTrue
	}
	c.mu.Lock()
	if c.want == nil || c.want.Status != n.Status || c.want.Reason != reason {
		c.want, c.written = n, false
	}
	c.mu.Unlock()
	c.write(ctx)
}

// write writes a condition that is not written yet. One that cannot be written, as without
// an API server, is logged and tried again later.
func (c *condition) write(ctx context.Context) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	want, written := c.want, c.written
	c.mu.Unlock()
	if want == nil || written {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []*corev1.NodeCondition{want}}})
	if err == nil {
		_, err = c.client.CoreV1().Nodes().Patch(ctx, c.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		c.log.Error("the node's condition cannot be written", "reason", want.Reason, "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = c.want == want
}

// errNewNode is the error of a node that was made anew: what the agent has published went
// with the old one.
var errNewNode = errors.New("the node was deleted and made anew")

// compare has the condition written again if it is not what it should be: another has
// written it, or the node was made anew, which is errNewNode. An API server that does not
// answer is no error.
func (c *condition) compare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	n, err := c.client.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		c.log.Warn("the node cannot be read", "node", c.node, "err", err)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.uid == "":
		c.uid = n.UID
	case c.uid != n.UID:
		return fmt.Errorf("node %s: %w", c.node, errNewNode)
	}
	i := slices.IndexFunc(n.Status.Conditions, func(nc corev1.NodeCondition) bool { return nc.Type == ConditionType })
	if c.written && (i < 0 || n.Status.Conditions[i].Status != c.want.Status || n.Status.Conditions[i].Reason != c.want.Reason) {
		c.log.Warn("another has changed the node's condition; it is written again", "condition", ConditionType)
		c.written = false
	}
	return nil
}

// Ready returns nil if the runtime asks the agent before it creates a container, and else why
// it does not.
func (a *Agent) Ready() error {
	c := a.status
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.want == nil:
		return errors.New("the container runtime has not connected yet")
	case c.want.Reason == noRuntime || c.want.Reason == stopped:
		return errors.New(c.want.Message)
	}
	return nil
}

// enforced reports whether claims are enforced.
func (c *condition) enforced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.want != nil && c.want.Status == corev1.ConditionTrue
}
