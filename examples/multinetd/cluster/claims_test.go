package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A node has a Cluster that serves claims, and a kubelet.
type node struct {
	*Cluster
	api  *kubetest.Server
	dir  string
	log  *nodetest.Log
	stop func()

	asked atomic.Int64 // calls of Plugin.Process
}

// newNode starts a Cluster whose view knows the pods ns/web and ns/plain. Claims of ns/web are
// those that the caller has made. edit may change the configuration.
func newNode(t *testing.T, edit func(dir string, c *Config)) *node {
	t.Helper()
	dir, err := nodetest.ShortDir(t), error(nil)
	n := &node{api: kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode), dir: dir, log: &nodetest.Log{}}
	t.Cleanup(n.api.Close)
	conf := DefaultConfig()
	if conf.Kubeconfig, err = n.api.Kubeconfig(dir); err != nil {
		t.Fatal(err)
	}
	conf.Node, conf.KubeletDir, conf.DRA, conf.ClaimDir = "n1", dir+"/kubelet", &DRA{Driver: driverName, AllowedTypes: []string{"bridge", "macvlan", "vlan", "x"}}, dir+"/claims"
	nodetest.OK(t, os.MkdirAll(dir+"/kubelet/plugins_registry", 0o750))
	if edit != nil {
		edit(dir, &conf)
	}
	n.Cluster = New(conf, Plugin{
		Dirs: func() []string { return nil },
		Own:  []byte(`{"type":"multinet-shim"}`),
		Process: func(context.Context) plugin.Process {
			n.asked.Add(1)
			return plugin.Process{Exec: nodetest.New(t).Exec}
		},
	}, slog.New(slog.NewTextHandler(n.log, nil)))
	stop, err := n.Start(t.Context())
	nodetest.OK(t, err)
	n.stop = sync.OnceFunc(stop)
	t.Cleanup(n.stop)
	return n
}

// until waits until done is true.
func (n *node) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	nodetest.Until(t, what, done, n.log)
}

// pod makes the pod ns/name with these claims, and waits until it is known.
func (n *node) pod(t *testing.T, name string, claims ...string) nad.Pod {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: "n1"}}
	for _, c := range claims {
		o.Spec.ResourceClaims = append(o.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	kubetest.Put(n.api, o)
	p := nad.Pod{Namespace: "ns", Name: name, UID: "uid-" + name, Container: "c-" + name}
	n.until(t, "the pod is known", func() bool { _, known := n.view.KnownPod(p); return known })
	return p
}

// claim makes a claim for the pod p, which the driver has allocated. It has a request for each of
// parameters.
func (n *node) claim(name string, p nad.Pod, parameters ...string) *resourcev1.ResourceClaim {
	var devices resourcev1.DeviceAllocationResult
	for i, text := range parameters {
		request, share := fmt.Sprint("net", i), types.UID(fmt.Sprint(name, i))
		devices.Results = append(devices.Results, resourcev1.DeviceRequestAllocationResult{Request: request, Driver: driverName, Pool: "n1", Device: "storage", ShareID: &share})
		devices.Config = append(devices.Config, resourcev1.DeviceAllocationConfiguration{
			Source: resourcev1.AllocationConfigSourceClaim, Requests: []string{request},
			DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(text)}},
			},
		})
	}
	return kubetest.Put(n.api, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: types.UID(p.UID)}},
			Allocation:  &resourcev1.AllocationResult{Devices: devices},
		},
	})
}

// kubelet registers the driver, as the kubelet does.
func (n *node) kubelet(t *testing.T, root string) *dratest.Kubelet {
	t.Helper()
	var k *dratest.Kubelet
	n.until(t, "the driver registers", func() bool {
		var err error
		k, err = dratest.Register(t.Context(), filepath.Join(n.dir, "kubelet/plugins_registry", driverName+"-reg.sock"), root)
		return err == nil
	})
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func prepare(t *testing.T, k *dratest.Kubelet, claims ...*resourcev1.ResourceClaim) {
	t.Helper()
	all, err := k.Prepare(t.Context(), claims...)
	nodetest.OK(t, err)
	for _, c := range claims {
		if err := all[string(c.UID)].Err; err != nil {
			t.Fatalf("claim %s: %v", c.Name, err)
		}
	}
}

const (
	named  = `{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","ifName":"net7","definition":"blue"}`
	inline = `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","config":{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","x":1.0}]}}`
)

func TestAnADDGetsTheNetworksOfPreparedClaimsInOrder(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t, "")
	p := n.pod(t, "web", "b", "a")
	b, a := n.claim("b", p, named), n.claim("a", p, inline, strings.Replace(named, "net7", "net8", 1))
	prepare(t, k, b, a)
	before := len(n.api.Requests())
	got, err := n.claimed(t.Context(), p)
	nodetest.OK(t, err)
	var texts []string
	for _, c := range got {
		config := ""
		if !c.Network.IsZero() {
			text, err := c.Network.MarshalJSON()
			nodetest.OK(t, err)
			config = string(text)
		}
		texts = append(texts, fmt.Sprintf("%s %s %s/%s %s|%s|%s|%s", c.Claim.Name, c.Claim.Request, c.Claim.Pool, c.Claim.Device, c.Claim.Share, c.IfName, c.Definition, config))
		if c.Claim.UID != string(map[string]*resourcev1.ResourceClaim{"a": a, "b": b}[c.Claim.Name].UID) {
			t.Errorf("UID of claim %+v", c.Claim)
		}
	}
	want := []string{
		`a net0 n1/storage a0|||{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","x":1.0}]}`,
		`a net1 n1/storage a1|net8|ns/blue|`,
		`b net0 n1/storage b0|net7|ns/blue|`,
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if asked := n.api.Requests()[before:]; len(asked) > 0 {
		t.Errorf("asked: %v", asked)
	}
}

// The daemon starts without a kubelet, says so, and pods without claims do not notice. The
// kubelet may come later.
func TestTheKubeletMayComeLater(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(dir string, c *Config) { c.KubeletDir = dir + "/late" })
	p := n.pod(t, "web", "x")
	n.until(t, "the probe says why claims are not served", func() bool {
		ok, err := n.Probe(t.Context())
		return ok && err != nil && strings.Contains(err.Error(), "ResourceClaims: ") && strings.Contains(err.Error(), "late/plugins_registry")
	})
	if _, err := n.claimed(t.Context(), n.pod(t, "plain")); err != nil {
		t.Error(err)
	}
	n.claim("x", p, named)
	if _, err := n.claimed(t.Context(), p); status.Code(err) != 11 || !strings.Contains(err.Error(), "plugins_registry") {
		t.Errorf("code %d: %v", status.Code(err), err)
	}
	n.tellContainers(t.Context(), p) // does nothing yet
	n.driver.Attached(p.UID, nil)
	n.Swept()
	nodetest.OK(t, os.MkdirAll(n.dir+"/late/plugins_registry", 0o750))
	n.until(t, "claims are served", func() bool { ok, err := n.Probe(t.Context()); return ok && err == nil })
	if got := strings.Count(n.log.String(), "ResourceClaims are not served yet"); got != 1 {
		t.Errorf("said %d times:\n%s", got, n.log)
	}
}

// Resident plugins are launched before the daemon is ready, and none is asked for its STATUS
// before.
func TestNetworksAreOfferedWhenTheDaemonIsReady(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(_ string, c *Config) { c.DRA.Networks = []dra.Offer{{Network: "ns/storage"}} })
	kubetest.Put(n.api, kubetest.Definition{Namespace: "ns", Name: "storage", Config: `{"cniVersion":"1.0.0","type":"bridge"}`})
	kubetest.Put(n.api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	n.kubelet(t, "")
	if got := n.asked.Load(); got != 0 {
		t.Errorf("asked %d times before", got)
	}
	n.Ready()
	n.until(t, "the network is offered", func() bool { return n.asked.Load() > 0 && len(kubetest.List[resourcev1.ResourceSlice](n.api)) == 1 })
}

// With a root directory the kubelet hears the path of the node, and the socket is below the
// root.
func TestTheKubeletFindsTheSocketOfADaemonInAContainer(t *testing.T) {
	t.Parallel()
	for _, metadata := range []bool{false, true} {
		n := newNode(t, func(dir string, c *Config) {
			c.Root, c.KubeletDir, c.DRA.Metadata = plugin.Root(dir), "/kubelet", metadata
			nodetest.OK(t, os.Mkdir(dir+"/var", 0o750))
		})
		if metadata {
			n.until(t, "the probe says what is missing", func() bool {
				_, err := n.Probe(t.Context())
				return err != nil && strings.Contains(err.Error(), "/kubelet/plugins/"+driverName+" is not the same directory")
			})
			continue
		}
		k := n.kubelet(t, n.dir)
		if want := "/kubelet/plugins/" + driverName + "/dra.sock"; k.Endpoint != want {
			t.Errorf("endpoint %s, want %s", k.Endpoint, want)
		}
		p := n.pod(t, "web", "x")
		prepare(t, k, n.claim("x", p, named))
		n.stop()
		if left, _ := filepath.Glob(n.dir + "/kubelet/*/*.sock"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

func TestARuleThatCannotBeReadEndsTheDaemon(t *testing.T) {
	t.Parallel()
	c := New(Config{Kubeconfig: "/k", Node: "n1", DRA: &DRA{Driver: driverName}}, Plugin{Own: []byte(`{"type":"x","globalNamespaces":5}`)}, slog.New(slog.DiscardHandler))
	if _, err := c.Start(t.Context()); !errors.Is(err, netconf.ErrDecode) || !strings.HasPrefix(err.Error(), "kubernetes: dra: ") {
		t.Error(err)
	}
}
