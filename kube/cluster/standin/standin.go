// Package standin is an API server that has what the agent reads: objects that a test puts
// there, served as JSON, and a count of every request. It checks nothing and knows no user.
package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Server is the API server. Its methods may be called concurrently.
type Server struct {
	URL string

	http *httptest.Server

	mu       sync.Mutex
	objects  map[string]runtime.Object // by path
	requests []string                  // METHOD PATH
	events   []Event
	patches  []string
	changed  chan struct{} // closed and made anew at each write
	down     bool
}

// Event is an event that a client has reported.
type Event struct {
	Object  string // KIND NAMESPACE/NAME
	Type    string
	Reason  string
	Message string
}

func (e Event) String() string {
	return fmt.Sprintf("%s: %s %s: %s", e.Object, e.Type, e.Reason, e.Message)
}

// New starts a server without objects.
func New() *Server {
	s := &Server{objects: map[string]runtime.Object{}, changed: make(chan struct{})}
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL
	return s
}

// Close ends the server and every watch.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Kubeconfig writes a file with which clients reach the server.
func (s *Server) Kubeconfig(path string) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["standin"] = &clientcmdapi.Cluster{Server: s.URL}
	c.AuthInfos["user"] = &clientcmdapi.AuthInfo{}
	c.Contexts["standin"] = &clientcmdapi.Context{Cluster: "standin", AuthInfo: "user"}
	c.CurrentContext = "standin"
	return clientcmd.WriteToFile(*c, path)
}

// resources are the paths of kinds.
var resources = map[string]struct {
	prefix     string
	resource   string
	namespaced bool
}{
	"Node":          {"/api/v1", "nodes", false},
	"Pod":           {"/api/v1", "pods", true},
	"ResourceClaim": {"/apis/resource.k8s.io/v1", "resourceclaims", true},
	"ResourceSlice": {"/apis/resource.k8s.io/v1", "resourceslices", false},
}

// path returns the path of an object, and sets its kind, which typed objects leave out.
func path(o runtime.Object) (string, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return "", err
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	r, ok := resources[kinds[0].Kind]
	if !ok {
		return "", fmt.Errorf("stand-in: objects of kind %s are not served", kinds[0].Kind)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return "", err
	}
	if !r.namespaced {
		return r.prefix + "/" + r.resource + "/" + m.GetName(), nil
	}
	return r.prefix + "/namespaces/" + m.GetNamespace() + "/" + r.resource + "/" + m.GetName(), nil
}

// Put adds or replaces objects.
func (s *Server) Put(objects ...runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		p, err := path(o)
		if err != nil {
			return err
		}
		s.objects[p] = o
	}
	return nil
}

// Remove removes objects.
func (s *Server) Remove(objects ...runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		p, err := path(o)
		if err != nil {
			return err
		}
		delete(s.objects, p)
	}
	return nil
}

// SetDown has the server answer every request with 503, or no longer.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// Requests returns the requests so far, as "METHOD PATH", watches as "WATCH PATH".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Seen is what clients have written.
type Seen struct {
	Events  []Event
	Patches []string // bodies
}

// Seen returns what clients have written so far.
func (s *Server) Seen() Seen {
	seen, _ := s.seen()
	return seen
}

func (s *Server) seen() (Seen, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Seen{slices.Clone(s.events), slices.Clone(s.patches)}, s.changed
}

// Wait waits until a condition holds for what clients have written. It is asked anew after
// each write.
func (s *Server) Wait(ctx context.Context, holds func(Seen) bool) error {
	for {
		seen, changed := s.seen()
		if holds(seen) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w; events so far: %v; patches: %v", ctx.Err(), seen.Events, seen.Patches)
		}
	}
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	watch := r.URL.Query().Get("watch") != ""
	verb := r.Method
	if watch {
		verb = "WATCH"
	}
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, verb+" "+r.URL.Path)
	down := s.down
	s.mu.Unlock()
	switch {
	case down:
		fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the server is down")
	case watch:
		// Nothing changes. The watch ends with the client or the server.
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events"):
		s.event(w, body)
	case r.Method == http.MethodPatch:
		s.patch(w, r.URL.Path, body)
	case r.Method == http.MethodGet:
		s.get(w, r.URL.Path)
	default:
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.Method+" is not served by the stand-in")
	}
}

// get answers with an object or with a list of all whose path begins so.
func (s *Server) get(w http.ResponseWriter, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[path]; ok {
		answer(w, http.StatusOK, o)
		return
	}
	name := path[strings.LastIndex(path, "/")+1:]
	for kind, r := range resources {
		if r.resource != name {
			continue
		}
		items := []runtime.Object{}
		var version string
		for p, o := range s.objects {
			if o.GetObjectKind().GroupVersionKind().Kind == kind && (strings.HasPrefix(p, path+"/") || path == r.prefix+"/"+r.resource) {
				items = append(items, o)
			}
		}
		version = strings.TrimPrefix(strings.TrimPrefix(r.prefix, "/apis/"), "/api/")
		answer(w, http.StatusOK, map[string]any{"kind": kind + "List", "apiVersion": version, "metadata": map[string]any{"resourceVersion": "1"}, "items": items})
		return
	}
	fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, path+" not found")
}

// patch keeps the body and answers with the object as it was.
func (s *Server) patch(w http.ResponseWriter, path string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches = append(s.patches, string(body))
	s.change()
	if o, ok := s.objects[strings.TrimSuffix(path, "/status")]; ok {
		answer(w, http.StatusOK, o)
		return
	}
	fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, path+" not found")
}

// event keeps an event of either API.
func (s *Server) event(w http.ResponseWriter, body []byte) {
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := o.(type) {
	case *corev1.Event:
		s.events = append(s.events, Event{e.InvolvedObject.Kind + " " + e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name, e.Type, e.Reason, e.Message})
	case *eventsv1.Event:
		s.events = append(s.events, Event{e.Regarding.Kind + " " + e.Regarding.Namespace + "/" + e.Regarding.Name, e.Type, e.Reason, e.Note})
	}
	s.change()
	answer(w, http.StatusCreated, o)
}

// change wakes those who wait. Caller holds mu.
func (s *Server) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
}
