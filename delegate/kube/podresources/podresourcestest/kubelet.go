// Package podresourcestest is a kubelet for tests of what asks for devices of pods.
package podresourcestest

import (
	"context"
	"errors"
	"fmt"
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
	dir     string
	limiter *rate.Limiter

	mu          sync.Mutex
	server      *grpc.Server
	listener    net.Listener
	pods        []*api.PodResources
	gate        *gate // nil unless requests are held
	noGet       error
	faults      []error
	requests    []string
	connections int
}

// Start starts a kubelet without pods. Close it.
func Start() (*Kubelet, error) {
	dir, err := os.MkdirTemp("", "kubelet") // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	k := &Kubelet{dir: dir, limiter: rate.NewLimiter(100, 10)}
	err = errors.Join(os.Mkdir(filepath.Dir(k.Socket()), 0o700), os.Mkdir(filepath.Dir(k.Checkpoint()), 0o700))
	if err == nil {
		err = k.Listen()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return k, nil
}

// Dir returns the directory of the kubelet, such as /var/lib/kubelet.
func (k *Kubelet) Dir() string { return k.dir }

// Socket returns the path of the socket in Dir.
func (k *Kubelet) Socket() string { return filepath.Join(k.dir, "pod-resources", "kubelet.sock") }

// Checkpoint returns the path of the device manager's checkpoint in Dir. The file does not
// exist unless a test writes it.
func (k *Kubelet) Checkpoint() string {
	return filepath.Join(k.dir, "device-plugins", "kubelet_internal_checkpoint")
}

// Listen makes the socket and serves it, after [Kubelet.Crash]. It replaces a socket that is
// there.
func (k *Kubelet) Listen() error {
	temp := k.Socket() + ".new"
	l, err := net.Listen("unix", temp) //nolint:noctx // at once
	if err != nil {
		return err
	}
	if err := os.Rename(temp, k.Socket()); err != nil {
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
	return os.RemoveAll(k.dir)
}

// SetPod adds a pod, or replaces the one of that name.
func (k *Kubelet) SetPod(namespace, name string, containers ...*api.ContainerResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &api.PodResources{Namespace: namespace, Name: name, Containers: containers}
	i := slices.IndexFunc(k.pods, func(p *api.PodResources) bool { return p.GetNamespace() == namespace && p.GetName() == name })
	if i < 0 {
		k.pods = append(k.pods, p)
		return
	}
	k.pods[i] = p
}

// Devices returns a container with devices of one resource on NUMA node 0.
func Devices(container, resource string, ids ...string) *api.ContainerResources {
	return &api.ContainerResources{Name: container, Devices: []*api.ContainerDevices{{
		ResourceName: resource, DeviceIds: ids, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 0}}},
	}}}
}

// WithoutGet makes k a kubelet before 1.27, which does not have Get, or, if disabled, one
// before 1.34, in which it is switched off.
func (k *Kubelet) WithoutGet(disabled bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noGet = status.Error(codes.Unimplemented, "unknown method Get for service v1.PodResourcesLister")
	if disabled {
		k.noGet = errors.New("PodResources API Get method disabled")
	}
}

// Fail makes the next n requests fail with a code.
func (k *Kubelet) Fail(n int, code codes.Code, message string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for range n {
		k.faults = append(k.faults, status.Error(code, message))
	}
}

// A gate is where requests wait.
type gate struct {
	reached chan struct{} // closed by reach
	reach   func()
	opened  chan struct{}
}

// Hold makes all requests from now on wait until release is called, or their clients go
// away. held is closed when the first of them has come.
func (k *Kubelet) Hold() (held <-chan struct{}, release func()) {
	g := &gate{reached: make(chan struct{}), opened: make(chan struct{})}
	g.reach = sync.OnceFunc(func() { close(g.reached) })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gate = g
	return g.reached, sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		close(g.opened)
		k.gate = nil
	})
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

// intercept applies limits and faults, and counts requests.
func (k *Kubelet) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (reply any, err error) { //nolint:ireturn // grpc wants it
	if !k.limiter.Allow() {
		err = status.Error(codes.ResourceExhausted, "rejected by rate limit")
	} else if err = k.fault(ctx); err == nil {
		reply, err = answer(ctx, req)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requests = append(k.requests, filepath.Base(info.FullMethod)+":"+status.Code(err).String())
	return reply, err
}

// fault waits while requests are held, and returns the error that is due.
func (k *Kubelet) fault(ctx context.Context) error {
	k.mu.Lock()
	g := k.gate
	k.mu.Unlock()
	if g != nil {
		g.reach()
		select {
		case <-g.opened:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.faults) == 0 {
		return nil
	}
	err := k.faults[0]
	k.faults = k.faults[1:]
	return err
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
	if s.k.noGet != nil {
		return nil, s.k.noGet
	}
	for _, p := range s.k.pods {
		if p.GetNamespace() == r.GetPodNamespace() && p.GetName() == r.GetPodName() {
			return &api.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.GetPodName(), r.GetPodNamespace())
}

// List returns all pods.
func (s service) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	return &api.ListPodResourcesResponse{PodResources: slices.Clone(s.k.pods)}, nil
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
