package dra

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

const driverName = "net.example.com"

// resultOfAdd is that of an ADD.
const resultOfAdd = `{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/run/netns/a"}],` +
	`"ips":[{"interface":1,"address":"192.0.2.5/24"},{"interface":1,"address":"2001:db8::5/64"}]}`

// opaque are parameters for the driver.
func opaque(source resourcev1.AllocationConfigSource, parameters string, requests ...string) resourcev1.DeviceAllocationConfiguration {
	return resourcev1.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourcev1.DeviceConfiguration{
		Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

func fromClaim(parameters string, requests ...string) resourcev1.DeviceAllocationConfiguration {
	return opaque(resourcev1.AllocationConfigSourceClaim, parameters, requests...)
}

func fromClass(parameters string, requests ...string) resourcev1.DeviceAllocationConfiguration {
	return opaque(resourcev1.AllocationConfigSourceClass, parameters, requests...)
}

func allocatedTo(request, device, share string) resourcev1.DeviceRequestAllocationResult {
	r := resourcev1.DeviceRequestAllocationResult{Request: request, Driver: driverName, Pool: "node1", Device: device}
	if share != "" {
		uid := types.UID(share)
		r.ShareID = &uid
	}
	return r
}

// newClaim returns a claim that is allocated and reserved for the pod "web": one request, one
// share of the device storage.
func newClaim(name string, edit func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, UID: types.UID("claim-" + name)},
		Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "web", UID: "pod-web"}},
			Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{allocatedTo("net", "storage", "share-"+name)},
				Config:  []resourcev1.DeviceAllocationConfiguration{fromClaim(cni(`,"ifName":"` + name + `","config":` + bridge))},
			}},
		},
	}
	if edit != nil {
		edit(c)
	}
	return c
}

// A node is a driver, its kubelet, and the records of its plugin.
type node struct {
	*Driver
	server *kubetest.Server
	config Config

	mu       sync.Mutex
	attached map[string][]Attachment // by the UID of the claim
	detached []Ref
	failure  error // of Attachments and Detach
}

// newNode starts a driver. edit may change its configuration.
func newNode(t *testing.T, edit func(*Config)) *node {
	t.Helper()
	server := kubetest.NewServer()
	t.Cleanup(server.Close)
	n := &node{server: server, attached: map[string][]Attachment{}}
	client := server.Config()
	client.ContentType, client.AcceptContentTypes, client.QPS = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf, -1
	set, err := kubernetes.NewForConfig(client)
	if err != nil {
		t.Fatal(err)
	}
	n.config = Config{
		Name: driverName, Node: "node1", Client: set, Store: Store{Dir: filepath.Join(t.TempDir(), "claims")},
		Attachments: n.attachments, Detach: n.detach,
		RegistryDir: socketDir(t), PluginDir: socketDir(t), SweepInterval: time.Hour,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if edit != nil {
		edit(&n.config)
	}
	n.restart(t)
	return n
}

// socketDir returns a directory with a short path: that of a socket has at most 108 bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // whose directories have the name of the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// restart starts the driver, or another one in place of the first.
func (n *node) restart(t *testing.T) {
	t.Helper()
	if n.Driver != nil {
		n.Stop()
	}
	d, err := Start(t.Context(), n.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	n.Driver = d
}

func (n *node) attachments(_ context.Context, c Claim) ([]Attachment, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.attached[c.UID]), n.failure
}

func (n *node) detach(_ context.Context, r Ref) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failure != nil {
		return n.failure
	}
	n.detached = append(n.detached, r)
	delete(n.attached, r.UID)
	return nil
}

// fail makes the callbacks of the driver fail.
func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failure = err
}

// attach does what the ADD of a pod does.
func (n *node) attach(t *testing.T, pod string) {
	t.Helper()
	claims, err := n.Claims(pod)
	if err != nil || len(claims) == 0 {
		t.Fatalf("%d claims of %s, %v", len(claims), pod, err)
	}
	n.mu.Lock()
	for _, c := range claims {
		n.attached[c.UID] = nil
		for _, network := range c.Networks {
			n.attached[c.UID] = append(n.attached[c.UID], Attachment{DeviceID: network.DeviceID, IfName: "net1", Result: json.RawMessage(resultOfAdd)})
		}
	}
	n.mu.Unlock()
	if err := n.UpdateMetadata(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.Attached(pod, nil)
}

// dial connects to a socket.
func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// kubelet registers the driver and returns a client, as the kubelet does.
func (n *node) kubelet(t *testing.T) drav1.DRAPluginClient {
	t.Helper()
	registrar := registrationv1.NewRegistrationClient(dial(t, filepath.Join(n.config.RegistryDir, driverName+"-reg.sock")))
	info, err := registrar.GetInfo(t.Context(), &registrationv1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetName() != driverName || info.GetType() != registrationv1.DRAPlugin || !slices.Contains(info.GetSupportedVersions(), drav1.DRAPluginService) {
		t.Fatalf("registered as %v", info)
	}
	if _, err := registrar.NotifyRegistrationStatus(t.Context(), &registrationv1.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	return drav1.NewDRAPluginClient(dial(t, info.GetEndpoint()))
}

func idOf(c *resourcev1.ResourceClaim) *drav1.Claim {
	return &drav1.Claim{Namespace: c.Namespace, Uid: string(c.UID), Name: c.Name}
}

// prepareClaims has the kubelet prepare claims and returns the errors by the name of the claim.
func prepareClaims(t *testing.T, k drav1.DRAPluginClient, claims ...*resourcev1.ResourceClaim) (devices map[string][]*drav1.Device, failures map[string]string) {
	t.Helper()
	devices, failures = map[string][]*drav1.Device{}, map[string]string{}
	q := &drav1.NodePrepareResourcesRequest{}
	for _, c := range claims {
		q.Claims = append(q.Claims, idOf(c))
	}
	answer, err := k.NodePrepareResources(t.Context(), q)
	for _, c := range claims {
		a := answer.GetClaims()[string(c.UID)]
		switch {
		case err != nil:
			failures[c.Name] = err.Error()
		case a == nil:
			t.Errorf("no answer for claim %s", c.Name)
		case a.GetError() != "":
			failures[c.Name] = a.GetError()
		default:
			devices[c.Name] = a.GetDevices()
		}
	}
	return devices, failures
}

// mustPrepare is prepareClaims without errors.
func mustPrepare(t *testing.T, k drav1.DRAPluginClient, claims ...*resourcev1.ResourceClaim) {
	t.Helper()
	if _, failures := prepareClaims(t, k, claims...); len(failures) > 0 {
		t.Fatalf("not prepared: %v", failures)
	}
}

// unprepareClaim has the kubelet release a claim.
func unprepareClaim(t *testing.T, k drav1.DRAPluginClient, c *resourcev1.ResourceClaim) error {
	t.Helper()
	answer, err := k.NodeUnprepareResources(t.Context(), &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{idOf(c)}})
	if err != nil {
		return err
	}
	if text := answer.GetClaims()[string(c.UID)].GetError(); text != "" {
		return fmt.Errorf("%s", text)
	}
	return nil
}

// await waits until the API server is as it should be.
func (n *node) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := n.server.Wait(ctx, done); err != nil {
		t.Fatalf("%s: %v; requests: %v", what, err, n.server.Requests())
	}
}
