// Package cri makes the calls of a kubelet to a container runtime: a pod, its containers
// with devices of CDI, their end. Pods use the node's network.
package cri

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Client is a connection to a runtime.
type Client struct {
	runtime runtime.RuntimeServiceClient
	conn    *grpc.ClientConn
	cgroup  string
	logs    string
}

// New connects to the runtime at a unix socket. Pods are in a cgroup below cgroup; what
// their containers print is in a folder for each below logs.
func New(socket, cgroup, logs string) (*Client, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &Client{runtime: runtime.NewRuntimeServiceClient(conn), conn: conn, cgroup: cgroup, logs: logs}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Pod is a pod that runs. One goroutine at a time may use it.
type Pod struct {
	Namespace, Name, UID string
	ID                   string // the runtime's

	client   *Client
	config   *runtime.PodSandboxConfig
	attempts uint32 // to make containers: a name is used once
}

// Run starts a pod without containers.
func (c *Client) Run(ctx context.Context, namespace, name, uid string, annotations map[string]string) (*Pod, error) {
	logs := filepath.Join(c.logs, namespace+"_"+name+"_"+uid)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	config := &runtime.PodSandboxConfig{
		Metadata:     &runtime.PodSandboxMetadata{Name: name, Uid: uid, Namespace: namespace},
		LogDirectory: logs, Annotations: annotations,
		Labels: map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.uid": uid},
		Linux: &runtime.LinuxPodSandboxConfig{CgroupParent: c.cgroup + "/pod" + uid,
			SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE}}},
	}
	r, err := c.runtime.RunPodSandbox(ctx, &runtime.RunPodSandboxRequest{Config: config})
	if err != nil {
		return nil, fmt.Errorf("run pod %s/%s: %w", namespace, name, err)
	}
	return &Pod{Namespace: namespace, Name: name, UID: uid, ID: r.PodSandboxId, client: c, config: config}, nil
}

// Remove ends a pod and its containers.
func (p *Pod) Remove(ctx context.Context) error {
	if _, err := p.client.runtime.StopPodSandbox(ctx, &runtime.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return err
	}
	_, err := p.client.runtime.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: p.ID})
	return err
}

// Spec is what a container is made from.
type Spec struct {
	Name    string
	Image   string
	Args    []string
	Devices []string          // names of CDI
	Env     map[string]string // of the pod's author
}

// Container is a container that was made.
type Container struct {
	ID  string
	pod *Pod
	log string
}

// Create makes a container and does not start it.
func (p *Pod) Create(ctx context.Context, s Spec) (*Container, error) {
	p.attempts++
	config := &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: s.Name, Attempt: p.attempts}, Image: &runtime.ImageSpec{Image: s.Image}, Args: s.Args, LogPath: fmt.Sprintf("%s-%d.log", s.Name, p.attempts),
		Labels: map[string]string{"io.kubernetes.container.name": s.Name, "io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.uid": p.UID},
		Linux:  &runtime.LinuxContainerConfig{},
	}
	for _, d := range s.Devices {
		config.CDIDevices = append(config.CDIDevices, &runtime.CDIDevice{Name: d})
	}
	for k, v := range s.Env {
		config.Envs = append(config.Envs, &runtime.KeyValue{Key: k, Value: []byte(v)})
	}
	r, err := p.client.runtime.CreateContainer(ctx, &runtime.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.config})
	if err != nil {
		return nil, fmt.Errorf("create container %s/%s/%s: %w", p.Namespace, p.Name, s.Name, err)
	}
	return &Container{ID: r.ContainerId, pod: p, log: filepath.Join(p.config.LogDirectory, config.LogPath)}, nil
}

// Start makes a container and starts it.
func (p *Pod) Start(ctx context.Context, s Spec) (*Container, error) {
	c, err := p.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	if _, err := p.client.runtime.StartContainer(ctx, &runtime.StartContainerRequest{ContainerId: c.ID}); err != nil {
		return nil, fmt.Errorf("start container %s/%s/%s: %w", p.Namespace, p.Name, s.Name, err)
	}
	return c, nil
}

// Stop ends a container: SIGTERM, and SIGKILL after the seconds.
func (c *Container) Stop(ctx context.Context, seconds int64) error {
	_, err := c.pod.client.runtime.StopContainer(ctx, &runtime.StopContainerRequest{ContainerId: c.ID, Timeout: seconds})
	return err
}

// Status returns the container's state, with its exit status.
func (c *Container) Status(ctx context.Context) (*runtime.ContainerStatus, error) {
	r, err := c.pod.client.runtime.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: c.ID})
	return r.GetStatus(), err
}

// Lines returns what the container printed so far, by line.
func (c *Container) Lines() ([]string, error) {
	b, err := os.ReadFile(c.log)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		// TIME STREAM TAG TEXT; the last may be incomplete.
		if f := strings.SplitN(line, " ", 4); len(f) == 4 && strings.HasSuffix(line, "\n") {
			lines = append(lines, strings.TrimSuffix(f[3], "\n"))
		}
	}
	return lines, nil
}

// Wait waits until the container has printed a line that begins with prefix, and returns
// all lines. If prefix is "", it waits for the container's end.
func (c *Container) Wait(ctx context.Context, prefix string) ([]string, error) {
	return c.wait(ctx, prefix)
}
