// Package podresourcestest is a kubelet for tests of what asks for devices of pods.
package podresourcestest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// A Kubelet serves the PodResources API of a kubelet over a socket in a directory of its own. As
// a kubelet, it takes ten requests at once and 100 a second. Goroutines may share it.
type Kubelet struct {
	// Dir is a directory of the kubelet, such as /var/lib/kubelet. In it are the Socket, and
	// the device manager's Checkpoint, a file that does not exist unless a test writes it.
	Dir, Socket, Checkpoint string

	limiter *rate.Limiter

	mu          sync.Mutex
	server      *grpc.Server
	listener    net.Listener
	pods        map[string]*api.PodResources // by namespace/name
	plugins     []string                     // resources
	before      func(ctx context.Context, method string) error
	requests    []string
	connections int
}

// Start starts a kubelet without pods. Close it.
func Start() (*Kubelet, error) {
	dir, err := os.MkdirTemp("", "kubelet") // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	k := &Kubelet{
		Dir: dir, Socket: filepath.Join(dir, "pod-resources", "kubelet.sock"),
		Checkpoint: filepath.Join(dir, "device-plugins", "kubelet_internal_checkpoint"),
		limiter:    rate.NewLimiter(100, 10), pods: map[string]*api.PodResources{},
	}
	err = errors.Join(os.Mkdir(filepath.Dir(k.Socket), 0o700), os.Mkdir(filepath.Dir(k.Checkpoint), 0o700))
	if err == nil {
		err = k.Listen()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return k, nil
}

// Listen makes the socket and serves it, after [Kubelet.Crash]. It replaces a socket that is
// there.
func (k *Kubelet) Listen() error {
	temp := k.Socket + ".new"
	l, err := net.Listen("unix", temp) //nolint:noctx // at once
	if err != nil {
		return err
	}
	if err := os.Rename(temp, k.Socket); err != nil {
		return errors.Join(err, l.Close())
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(k.intercept))
	api.RegisterPodResourcesListerServer(s, service{k: k})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.server, k.listener = s, l
	go s.Serve(counted{l, k}) //nolint:errcheck // it ends with Stop
	return nil
}

// Crash ends all connections. The socket stays and refuses connections, as that of a
// kubelet that has ended.
func (k *Kubelet) Crash() {
	k.mu.Lock()
	s, l := k.server, k.listener
	k.server = nil
	k.mu.Unlock()
	if s != nil {
		_ = l.Close() // Serve may not have begun
		s.Stop()
	}
}

// Close ends the kubelet and removes its directory.
func (k *Kubelet) Close() error {
	k.Crash()
	return os.RemoveAll(k.Dir)
}

// SetPod adds a pod, or replaces the one of that name.
func (k *Kubelet) SetPod(namespace, name string, containers ...*api.ContainerResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods[namespace+"/"+name] = &api.PodResources{Namespace: namespace, Name: name, Containers: containers}
}

// SetPlugins says for which resources there are device plugins, with a device each that no pod has.
// Those of pods are served anyway.
func (k *Kubelet) SetPlugins(resources ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plugins = resources
}

// Devices returns a container with devices of one resource on NUMA node 0.
func Devices(container, resource string, ids ...string) *api.ContainerResources {
	return &api.ContainerResources{Name: container, Devices: []*api.ContainerDevices{{
		ResourceName: resource, DeviceIds: ids, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 0}}},
	}}}
}

// Before has do called before each request, with Get, List or GetAllocatableResources, from now on: it can wait, or
// return the error that the request fails with.
func (k *Kubelet) Before(do func(ctx context.Context, method string) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.before = do
}

// Requests returns the requests that have been answered, and how: "Get:OK", "List:Unavailable".
func (k *Kubelet) Requests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.requests)
}

// Connections returns how many connections there have been.
func (k *Kubelet) Connections() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.connections
}

// intercept applies the limit and what is to happen before, and notes requests.
func (k *Kubelet) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (reply any, err error) { //nolint:ireturn // grpc wants it
	method := filepath.Base(info.FullMethod)
	k.mu.Lock()
	before := k.before
	k.mu.Unlock()
	switch {
	case !k.limiter.Allow():
		err = status.Error(codes.ResourceExhausted, "rejected by rate limit")
	case before != nil:
		err = before(ctx, method)
	}
	if err == nil {
		reply, err = answer(ctx, req)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requests = append(k.requests, method+":"+status.Code(err).String())
	return reply, err
}

// A service is the API of a kubelet.
type service struct {
	api.UnimplementedPodResourcesListerServer

	k *Kubelet
}

// Get answers as a kubelet does, whose errors have no code.
func (s service) Get(_ context.Context, r *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if p := s.k.pods[r.GetPodNamespace()+"/"+r.GetPodName()]; p != nil {
		return &api.GetPodResourcesResponse{PodResources: p}, nil
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.GetPodName(), r.GetPodNamespace())
}

// List returns all pods.
func (s service) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	return &api.ListPodResourcesResponse{PodResources: slices.Collect(maps.Values(s.k.pods))}, nil
}

// GetAllocatableResources returns the devices of all pods and device plugins.
func (s service) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	var all []*api.ContainerDevices
	for _, p := range s.k.pods {
		for _, c := range p.GetContainers() {
			all = append(all, c.GetDevices()...)
		}
	}
	for _, resource := range s.k.plugins {
		all = append(all, Devices("", resource, "spare").GetDevices()...)
	}
	return &api.AllocatableResourcesResponse{Devices: all}, nil
}

// counted counts connections.
type counted struct {
	net.Listener
	k *Kubelet
}

// Accept returns the next connection.
func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.k.mu.Lock()
		l.k.connections++
		l.k.mu.Unlock()
	}
	return c, err
}
