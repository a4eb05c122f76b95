// Package chart_test checks what scripts/kube-yaml made of the chart, and the examples.
package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// decode reads a file of manifests. A field that the API does not have is an error.
func decode(t *testing.T, file string) (list []runtime.Object) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for i, part := range strings.Split(string(text), "\n---\n") {
		if strings.TrimSpace(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(part, "")) == "" {
			continue
		}
		o, _, err := strict.Decode([]byte(part), nil, nil)
		if err != nil {
			t.Fatalf("%s, document %d: %v", file, i, err)
		}
		list = append(list, o)
	}
	return list
}

// find returns the one object of a type.
func find[T runtime.Object](t *testing.T, list []runtime.Object) (found T) {
	t.Helper()
	n := 0
	for _, o := range list {
		if x, ok := o.(T); ok {
			found = x
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d objects of type %T, want 1", n, found)
	}
	return found
}

var manifests = []struct {
	file    string
	publish string
	slices  string // verbs
	mounts  int
}{
	{"../gpumem.yaml", "none", "get list", 3},
	{"../gpumem-lab.yaml", "sim", "get list watch create update patch delete", 6},
}

func TestAgentHasNoMoreThanItNeeds(t *testing.T) {
	for _, m := range manifests {
		t.Run(m.publish, func(t *testing.T) {
			list := decode(t, m.file)
			pod := find[*appsv1.DaemonSet](t, list).Spec.Template.Spec
			c := pod.Containers[0]
			s := c.SecurityContext
			switch {
			case *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem:
				t.Errorf("security context %v", s)
			case !slices.Equal(s.Capabilities.Add, []corev1.Capability{"SYS_PTRACE", "KILL"}) || s.Capabilities.Drop[0] != "ALL":
				t.Errorf("capabilities %v", s.Capabilities)
			case !pod.HostPID || pod.HostNetwork || pod.HostIPC:
				t.Error("want the host's pid namespace and no other")
			case len(c.VolumeMounts) != m.mounts || len(pod.Volumes) != m.mounts:
				t.Errorf("%d mounts of %d volumes, want %d", len(c.VolumeMounts), len(pod.Volumes), m.mounts)
			}
			at := map[string]string{}
			for _, v := range pod.Volumes {
				at[v.Name] = v.HostPath.Path
			}
			for _, v := range c.VolumeMounts {
				if at[v.Name] != v.MountPath {
					t.Errorf("%s is %s on the host and %s in the agent", v.Name, at[v.Name], v.MountPath)
				}
			}
			rights := map[string]string{}
			for _, r := range find[*rbacv1.ClusterRole](t, list).Rules {
				for _, name := range r.Resources {
					rights[name] = strings.Join(r.Verbs, " ")
				}
			}
			for name, want := range map[string]string{"nodes": "get", "nodes/status": "patch", "pods": "get", "events": "create patch", "resourceclaims": "get", "resourceslices": m.slices} {
				if rights[name] != want {
					t.Errorf("%s: %q, want %q", name, rights[name], want)
				}
				delete(rights, name)
			}
			if len(rights) > 0 {
				t.Errorf("more rights: %v", rights)
			}
		})
	}
}

// A flag that the agent does not know would keep it from starting on every node.
func TestAgentKnowsItsFlags(t *testing.T) {
	help, err := exec.Command("go", "run", "../cmd/gpumem-kube", "agent", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	for _, m := range manifests {
		c := find[*appsv1.DaemonSet](t, decode(t, m.file)).Spec.Template.Spec.Containers[0]
		if c.Args[0] != "agent" {
			t.Errorf("%s: %v", m.file, c.Args)
		}
		for _, arg := range c.Args[1:] {
			flag, _, _ := strings.Cut(arg, "=")
			if !regexp.MustCompile(`(?m)^ +` + flag + ` `).Match(help) {
				t.Errorf("%s: the agent has no flag %s", m.file, flag)
			}
		}
		if !strings.Contains(strings.Join(c.Args, " "), "--publish="+m.publish) {
			t.Errorf("%s: %v", m.file, c.Args)
		}
	}
}

// TestExamples: each is of the API, its pods' claims are of a template beside it, and its
// requests are of the chart's class.
func TestExamples(t *testing.T) {
	class := find[*resourcev1.DeviceClass](t, decode(t, "../gpumem.yaml")).Name
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("examples %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			templates, pods := map[string]bool{}, 0
			list := decode(t, file)
			for _, o := range list {
				if c, ok := o.(*resourcev1.ResourceClaimTemplate); ok {
					templates[c.Name] = true
					for _, r := range c.Spec.Spec.Devices.Requests {
						if memory := r.Exactly.Capacity.Requests["memory"]; r.Exactly.DeviceClassName != class || memory.IsZero() || memory.Value()%(1<<20) != 0 {
							t.Errorf("%s, request %s: %s of class %s", c.Name, r.Name, memory.String(), r.Exactly.DeviceClassName)
						}
					}
				}
			}
			for _, o := range list {
				spec, ok := podOf(o)
				if !ok {
					continue
				}
				pods++
				for _, c := range spec.ResourceClaims {
					if c.ResourceClaimTemplateName == nil || !templates[*c.ResourceClaimTemplateName] {
						t.Errorf("claim %s has no template here", c.Name)
					}
				}
				for _, c := range spec.Containers {
					if len(c.Resources.Claims) == 0 {
						t.Errorf("container %s has no claim", c.Name)
					}
				}
			}
			if pods == 0 || len(templates) == 0 {
				t.Errorf("%d pods and %d templates", pods, len(templates))
			}
		})
	}
}

func podOf(o runtime.Object) (corev1.PodSpec, bool) {
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Spec, true
	case *appsv1.Deployment:
		return o.Spec.Template.Spec, true
	case *batchv1.Job:
		return o.Spec.Template.Spec, true
	}
	return corev1.PodSpec{}, false
}
