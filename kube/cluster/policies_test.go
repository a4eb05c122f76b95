package cluster

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpumem/kube/cluster/node"
)

// TestPolicies asks a real API server which pods the policies of the manifests mark, and what
// of the marks a pod's author may change.
func TestPolicies(t *testing.T) {
	if !*clusterFlag {
		t.Skip("an API server takes a quarter of a minute: go test -run Policies -cluster")
	}
	need(t)
	p := &page{T: t, ctx: within(t, 3*time.Minute), begin: time.Now()}
	var err error
	p.node, err = node.New(node.Options{})
	p.check("", err)
	p.check("control plane", p.node.Control(p.ctx, "controllers"))
	p.kube, err = p.node.Kube()
	p.check("", err)
	p.check("manifests", p.kube.Apply(p.ctx, p.read("gpumem-lab.yaml")))
	pods := p.kube.CoreV1().Pods("default")
	const implicit = "deviceclass.resource.kubernetes.io/gpu.gpumem.dev: 1"
	create := func(name, spec, resources string, annotations map[string]string) (*corev1.Pod, error) {
		var list []string
		for k, v := range annotations {
			list = append(list, k+`: "`+strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(v)+`"`)
		}
		err := p.kube.Apply(p.ctx, "apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+", annotations: {"+strings.Join(list, ", ")+"}}\nspec: {automountServiceAccountToken: false, "+spec+"containers: [{name: main, image: x, resources: {"+resources+"}}]}\n")
		if err != nil {
			return nil, err
		}
		return pods.Get(p.ctx, name, metav1.GetOptions{})
	}
	mark := func(o *corev1.Pod) string {
		if o == nil {
			return ""
		}
		return o.Annotations[required]
	}
	denied := func(err error) bool { return err != nil && strings.Contains(err.Error(), "'gpumem-required'") }
	const spec, use = "resourceClaims: [{name: g, resourceClaimName: c}], ", "claims: [{name: g}]"
	// Policies are in force a moment after they are there, and the service account default, too.
	p.check("policies are in force", wait.PollUntilContextCancel(p.ctx, time.Second/5, true, func(context.Context) (bool, error) {
		o, err := create("first", spec, use, nil)
		if o != nil {
			defer func() { _ = pods.Delete(p.ctx, "first", *metav1.NewDeleteOptions(0)) }()
		}
		return err == nil && o.Annotations[required] != "", nil
	}))
	for name, c := range map[string]struct{ spec, resources, want string }{
		"plain":         {"", "", ""},
		"claim":         {spec, use, "[gpumem]"},
		"limit":         {"", "limits: {" + implicit + "}", "[gpumem]"},
		"request":       {"", "requests: {" + implicit + "}", "[gpumem]"},
		"init-request":  {"initContainers: [{name: first, image: x, resources: {requests: {" + implicit + "}}}], ", "", "[gpumem]"},
		"other-request": {"", "requests: {cpu: 1}", ""},
	} {
		if o, err := create(name, c.spec, c.resources, nil); err != nil || mark(o) != c.want {
			t.Errorf("pod %s: %v; the mark is %q, want %q", name, err, mark(o), c.want)
		}
	}
	for name, c := range map[string]struct {
		annotations map[string]string
		want        string // the mark; "" where the pod is refused
	}{
		"another":             {map[string]string{required: "[other]"}, "[other, gpumem]"},
		"has-it":              {map[string]string{required: `["gpumem"]`}, "[gpumem]"},
		"container-has-it":    {map[string]string{required + "/container.main": "[gpumem, other]"}, "[gpumem]"},
		"container-has-none":  {map[string]string{required + "/container.main": "[]"}, ""},
		"container-comment":   {map[string]string{required + "/container.main": "[] #,gpumem"}, ""},
		"container-two-lines": {map[string]string{required + "/container.main": "[]\n#,gpumem\n"}, ""},
		"pod-comment":         {map[string]string{required + "/pod": "[] #,gpumem"}, ""},
		"comment":             {map[string]string{required: "[] #,gpumem"}, ""},
	} {
		o, err := create("marks-"+name, spec, use, c.annotations)
		switch {
		case c.want == "" && !denied(err):
			t.Errorf("%s: error %v; the mark is %q", name, err, mark(o))
		case c.want != "" && (err != nil || mark(o) != c.want):
			t.Errorf("%s: %v; the mark is %q, want %q", name, err, mark(o), c.want)
		}
	}
	for name, change := range map[string]func(map[string]string){
		"removed":          func(a map[string]string) { delete(a, required) },
		"of another":       func(a map[string]string) { a[required] = "[xgpumem]" },
		"of the container": func(a map[string]string) { a[required+"/container.main"] = "[] #,gpumem" },
	} {
		o, err := pods.Get(p.ctx, "claim", metav1.GetOptions{})
		p.check("", err)
		o.Annotations = maps.Clone(o.Annotations)
		change(o.Annotations)
		if _, err := pods.Update(p.ctx, o, metav1.UpdateOptions{}); !denied(err) {
			t.Errorf("a change of a mark, %s: %v", name, err)
		}
	}
	ownNode(p)
	p.check("stopped", p.node.Stop())
}

// ownNode checks that an agent changes nothing of other nodes: it is known by its token.
func ownNode(p *page) {
	for _, name := range []string{"mine", "theirs"} {
		_, err := p.kube.CoreV1().Nodes().Create(p.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		p.check("", err)
	}
	type client = kubernetes.Interface
	status := func(name string) func(client) error {
		return func(c client) error {
			_, err := c.CoreV1().Nodes().PatchStatus(p.ctx, name, []byte(`{"status":{"conditions":[{"type":"GPUMemoryEnforced","status":"True","reason":"Enforced"}]}}`))
			return err
		}
	}
	slice := func(on, driver string) func(client) error {
		return func(c client) error {
			s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"},
				Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &on, Pool: resourcev1.ResourcePool{Name: on, ResourceSliceCount: 1}}}
			s, err := c.ResourceV1().ResourceSlices().Create(p.ctx, s, metav1.CreateOptions{})
			if err == nil {
				err = c.ResourceV1().ResourceSlices().Delete(p.ctx, s.Name, metav1.DeleteOptions{})
			}
			return err
		}
	}
	for name, c := range map[string]struct {
		node   string // in the token
		change func(client) error
		want   string // of the error
	}{
		"its own status":         {"mine", status("mine"), ""},
		"another's status":       {"mine", status("theirs"), "the agent of node mine may change the status of that node only"},
		"a token without a node": {"", status("mine"), "the agent's token has no node's name"},
		"its own slice":          {"mine", slice("mine", "gpu.gpumem.dev"), ""},
		"another's slice":        {"mine", slice("theirs", "gpu.gpumem.dev"), "the agent of node mine may change slices of that node only"},
		"another driver's slice": {"mine", slice("mine", "gpu.nvidia.com"), "slices of the driver gpu.gpumem.dev only"},
	} {
		who := rest.ImpersonationConfig{UserName: "system:serviceaccount:gpumem:gpumem-kube", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
		if c.node != "" {
			who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {c.node}}
		}
		config, err := p.node.Config(node.Admin)
		p.check("", err)
		config.Impersonate = who
		as, err := kubernetes.NewForConfig(config)
		p.check("", err)
		if err := c.change(as); err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
			p.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
