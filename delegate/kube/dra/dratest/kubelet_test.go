package dratest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/nodetest"
)

// A driver is one that does what its fields say.
type driver struct {
	registration.UnimplementedRegistrationServer
	api.UnimplementedDRAPluginServer
	info                *registration.PluginInfo
	prepared            map[string]*api.NodePrepareResourceResponse
	released            map[string]*api.NodeUnprepareResourceResponse
	infoErr, refusal    error
	prepareErr, freeErr error
	registered          bool
}

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return d.info, d.infoErr
}

func (d *driver) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	d.registered = s.GetPluginRegistered()
	return &registration.RegistrationStatusResponse{}, d.refusal
}

func (d *driver) NodePrepareResources(context.Context, *api.NodePrepareResourcesRequest) (*api.NodePrepareResourcesResponse, error) {
	return &api.NodePrepareResourcesResponse{Claims: d.prepared}, d.prepareErr
}

func (d *driver) NodeUnprepareResources(context.Context, *api.NodeUnprepareResourcesRequest) (*api.NodeUnprepareResourcesResponse, error) {
	return &api.NodeUnprepareResourcesResponse{Claims: d.released}, d.freeErr
}

// serve serves d at one socket, for registration and claims.
func (d *driver) serve(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "k") //nolint:usetesting // a socket needs a short path
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	nodetest.OK(t, err)
	if d.info == nil {
		d.info = &registration.PluginInfo{Type: registration.DRAPlugin, Endpoint: socket, SupportedVersions: []string{api.DRAPluginService}}
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, d)
	api.RegisterDRAPluginServer(server, d)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return socket
}

func claim(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%v, want %q", err, text)
	}
}

func TestDriversAreRegistered(t *testing.T) {
	t.Parallel()
	d := &driver{}
	socket := d.serve(t)
	k, err := dratest.Register(t.Context(), socket, "/")
	if err != nil || k.Endpoint != socket || !d.registered {
		t.Fatalf("%v, %+v, registered: %v", err, k, d.registered)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	for text, d := range map[string]*driver{
		"of another kind":  {info: &registration.PluginInfo{Type: "of another kind", SupportedVersions: []string{api.DRAPluginService}}},
		"v1beta0":          {info: &registration.PluginInfo{Type: registration.DRAPlugin, SupportedVersions: []string{"v1beta0"}}},
		"not ready":        {infoErr: errors.New("not ready")},
		"does not want to": {refusal: errors.New("does not want to")},
	} {
		_, err := dratest.Register(t.Context(), d.serve(t), "/")
		wantError(t, err, text)
	}
	_, err = dratest.Register(t.Context(), socket+"-missing", "/")
	wantError(t, err, "-missing")
}

func TestAnswersAreThoseOfTheDriver(t *testing.T) {
	t.Parallel()
	d := &driver{
		prepared: map[string]*api.NodePrepareResourceResponse{
			"uid-a": {Devices: []*api.Device{{PoolName: "p", DeviceName: "x"}}}, "uid-b": {Error: "no such network"},
		},
		released: map[string]*api.NodeUnprepareResourceResponse{"uid-a": {}, "uid-b": {Error: "still attached"}},
	}
	k, err := dratest.Register(t.Context(), d.serve(t), "/")
	nodetest.OK(t, err)
	defer func() { _ = k.Close() }()
	a, b, c := claim("a"), claim("b"), claim("c")
	got, err := k.Prepare(t.Context(), a, b)
	if err != nil || got["uid-a"].Err != nil || len(got["uid-a"].Devices) != 1 {
		t.Errorf("%v, %+v", err, got)
	}
	wantError(t, got["uid-b"].Err, "no such network")
	_, err = k.Prepare(t.Context(), a, c)
	wantError(t, err, "no answer for claim c")
	if err := k.Unprepare(t.Context(), a); err != nil {
		t.Error(err)
	}
	err = k.Unprepare(t.Context(), a, b, c)
	wantError(t, err, "still attached")
	wantError(t, err, "no answer for claim c")

	d.prepareErr, d.freeErr = errors.New("cannot prepare"), errors.New("cannot release")
	_, err = k.Prepare(t.Context(), a)
	wantError(t, err, "cannot prepare")
	wantError(t, k.Unprepare(t.Context(), a), "cannot release")
}
