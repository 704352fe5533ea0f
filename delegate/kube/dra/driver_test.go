package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

const driverName = "net.example.com"

// resultOfAdd is the result of each ADD.
const resultOfAdd = `{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/run/netns/a"}],` +
	`"ips":[{"interface":1,"address":"192.0.2.5/24"},{"interface":1,"address":"2001:db8::5/64"}]}`

// opaque are parameters for the driver.
func opaque(source resourcev1.AllocationConfigSource, parameters string, requests ...string) resourcev1.DeviceAllocationConfiguration {
	return resourcev1.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: resourcev1.DeviceConfiguration{
		Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

type parameters = resourcev1.DeviceAllocationConfiguration

func fromClaim(text string, requests ...string) parameters {
	return opaque(resourcev1.AllocationConfigSourceClaim, text, requests...)
}

func fromClass(text string, requests ...string) parameters {
	return opaque(resourcev1.AllocationConfigSourceClass, text, requests...)
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
	server     *kubetest.Server
	kubeconfig string
	config     Config

	mu       sync.Mutex
	attached []delegate.Attached // in one container of each pod
	detached []string            // interfaces
	others   []Detachable        // of containers whose networks cannot be detached
	failure  error               // of the records, and of detaching
	looking  func(look int)      // is called before the read of all records, with a count, and after it
	looks    int
}

// newNode starts a driver. edit may change its configuration.
func newNode(t *testing.T, edit func(*Config)) *node {
	t.Helper()
	server := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(server.Close)
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	nodetest.OK(t, err)
	n := &node{server: server, kubeconfig: kubeconfig}
	view, err := kube.Open(t.Context(), kube.Config{Kubeconfig: kubeconfig, UserAgent: "daemon"})
	nodetest.OK(t, err)
	t.Cleanup(view.Close)
	n.await(t, "watched", func() bool { return n.server.Watches() == 1 }) // tests count other requests
	n.config = Config{
		Name: driverName, Node: "node1", View: view, Ready: make(chan struct{}), Dir: filepath.Join(t.TempDir(), "claims"),
		Records: n.records, KubeletDir: kubeletDir(t), AllowedTypes: []string{"bridge", "host-local", "tuning", "macvlan", "vlan"},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if edit != nil {
		edit(&n.config)
	}
	n.restart(t)
	return n
}

// kubeletDir returns the directory of a kubelet that has run.
func kubeletDir(t *testing.T) string {
	t.Helper()
	dir := nodetest.ShortDir(t)
	nodetest.OK(t, os.Mkdir(filepath.Join(dir, "plugins_registry"), 0o750))
	return dir
}

// registry returns the directory of sockets that the kubelet looks for.
func (c Config) registry() string { return filepath.Join(c.KubeletDir, "plugins_registry") }

// restart starts the driver, or another one in place of the first.
func (n *node) restart(t *testing.T) {
	t.Helper()
	if n.Driver != nil {
		n.Stop()
	}
	d, err := Start(t.Context(), n.config)
	nodetest.OK(t, err)
	t.Cleanup(d.Stop)
	n.Driver = d
}

// records is Config.Records.
func (n *node) records(_ context.Context, podUID string) ([]Detachable, error) {
	if n.looking != nil && podUID == "" {
		n.looks += 2
		n.looking(n.looks - 1)
		defer n.looking(n.looks)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	r := Detachable{Detach: func(_ context.Context, ifName string) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.failure == nil {
			n.detached = append(n.detached, ifName)
			n.attached = slices.DeleteFunc(n.attached, func(a delegate.Attached) bool { return a.IfName == ifName })
		}
		return n.failure
	}}
	r.State = scratch.Added
	for _, a := range n.attached {
		if podUID == "" || nad.PodOf(a.Args).UID == podUID {
			r.Attached = append(r.Attached, a)
		}
	}
	return append([]Detachable{r}, n.others...), n.failure
}

// detach does what a DEL, or a sweep, of the plugin does with the networks of a claim.
func (n *node) detach(claimUID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attached = slices.DeleteFunc(n.attached, func(a delegate.Attached) bool { return nad.ParseOrigin(a.Origin).Claim.UID == claimUID })
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
	claims := n.claims(t, pod)
	nodetest.Equal(t, pod+" has claims", len(claims) > 0, true)
	n.mu.Lock()
	for _, c := range claims {
		for _, network := range c.Networks {
			n.attached = append(n.attached, attachedTo(pod, network))
		}
	}
	n.mu.Unlock()
	nodetest.OK(t, n.UpdateMetadata(t.Context(), pod))
	n.Attached(pod, nil)
}

// attachedTo returns what a plugin records of the network of a claim.
func attachedTo(pod string, n Network) delegate.Attached {
	return delegate.Attached{
		Attachment: delegate.Attachment{IfName: n.IfName, Args: "K8S_POD_UID=" + pod, Origin: nad.Origin{Use: nad.UseClaimed, Claim: n.Claim}.JSON()},
		Result:     json.RawMessage(resultOfAdd),
	}
}

// kubelet registers the driver, as the kubelet does.
func (n *node) kubelet(t *testing.T, update ...string) *dratest.Kubelet {
	t.Helper()
	k, err := dratest.Register(t.Context(), filepath.Join(n.config.registry(), driverName+strings.Join(update, "")+"-reg.sock"), "")
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// prepareClaims has the kubelet prepare claims and returns the errors by the name of the claim.
func prepareClaims(t *testing.T, k *dratest.Kubelet, claims ...*resourcev1.ResourceClaim) (devices map[string][]*drav1.Device, failures map[string]string) {
	t.Helper()
	devices, failures = map[string][]*drav1.Device{}, map[string]string{}
	all, err := k.Prepare(t.Context(), claims...)
	for _, c := range claims {
		switch p := all[string(c.UID)]; {
		case err != nil:
			failures[c.Name] = err.Error()
		case p.Err != nil:
			failures[c.Name] = p.Err.Error()
		default:
			devices[c.Name] = p.Devices
		}
	}
	return devices, failures
}

// mustPrepare is prepareClaims without errors.
func mustPrepare(t *testing.T, k *dratest.Kubelet, claims ...*resourcev1.ResourceClaim) {
	t.Helper()
	if _, failures := prepareClaims(t, k, claims...); len(failures) > 0 {
		t.Fatalf("not prepared: %v", failures)
	}
}

// refused is prepareClaims of a claim that is not prepared, for a reason.
func refused(t *testing.T, k *dratest.Kubelet, c *resourcev1.ResourceClaim, why string) {
	t.Helper()
	if _, failures := prepareClaims(t, k, c); failures[c.Name] == "" || !strings.Contains(failures[c.Name], why) {
		t.Errorf("got %v, want %q", failures, why)
	}
}

// prepared returns a node whose kubelet has prepared the claim a.
func prepared(t *testing.T) (*node, *dratest.Kubelet, *resourcev1.ResourceClaim) {
	t.Helper()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := kubetest.Put(n.server, newClaim("a", nil))
	mustPrepare(t, k, a)
	return n, k, a
}

// wantClaims fails the test unless so many claims are prepared for a pod.
func (n *node) wantClaims(t *testing.T, pod string, want int) {
	t.Helper()
	nodetest.Equal(t, "claims of "+pod, len(n.claims(t, pod)), want)
}

// await waits until the API server is as it should be.
func (n *node) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := n.server.Wait(ctx, done); err != nil {
		t.Fatalf("%s: %v; requests: %v", what, err, n.server.Requests())
	}
}

// claims returns the claims that are prepared for a pod.
func (n *node) claims(t *testing.T, pod string) []Claim {
	t.Helper()
	claims, err := n.Claims(t.Context(), nad.Pod{UID: pod})
	nodetest.OK(t, err)
	return claims
}

// matching are the files that match a pattern.
func matching(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	nodetest.OK(t, err)
	return files
}

// Who may have which networks may change between the request of the kubelet and the ADD. An
// administrator who forbids something wants that to hold for pods that start later.
func TestThePodGetsNoNetworkThatItMayNotHaveAnyMore(t *testing.T) {
	t.Parallel()
	n, _, _ := prepared(t)
	n.restart(t)
	n.wantClaims(t, "pod-web", 1)
	n.config.AllowedTypes = nil
	n.restart(t)
	claims, err := n.Claims(t.Context(), nad.Pod{UID: "pod-web"})
	nodetest.Equal(t, "claims", claims, nil)
	nodetest.Is(t, err, errClaim)
	nodetest.Code(t, err, 7)
}

func TestAClaimThatCannotBePreparedHarmsNoOther(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.Policy = nad.Policy{Isolation: true} })
	bad := kubetest.Put(n.server, newClaim("bad", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{fromClaim(own(`,"definition":"red/n"`))}
	}))
	devices, failures := prepareClaims(t, n.kubelet(t), bad, kubetest.Put(n.server, newClaim("good", nil)))
	if len(devices) != 1 || devices["good"] == nil || !strings.Contains(failures["bad"], "namespaceIsolation") {
		t.Errorf("got %v and %q", devices, failures)
	}
	n.wantClaims(t, "pod-web", 1)
}

// The kubelet has lost a pod: it prepares the claim for the next one without releasing it.
func TestAClaimGoesToTheNextPodWhenTheFirstIsDetached(t *testing.T) {
	t.Parallel()
	n, _, a := prepared(t)
	n.attach(t, "pod-web")
	a.Status.ReservedFor[0] = resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "next", UID: "pod-next"}
	a = kubetest.Put(n.server, a)
	k := n.kubelet(t)
	refused(t, k, a, "still attached")
	n.fail(errors.New("no records"))
	refused(t, k, a, "no records")
	n.fail(nil)
	n.detach(string(a.UID))
	mustPrepare(t, k, a)
	for pod, want := range map[string]int{"pod-web": 0, "pod-next": 1} {
		n.wantClaims(t, pod, want)
	}
}

func TestADamagedRecordIsPreparedAgainOrReleased(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	damage := func() {
		t.Helper()
		nodetest.OK(t, os.WriteFile(filepath.Join(n.config.Dir, "pod-web@claim-a@claim.json"), []byte("x"), 0o600))
		_, err := n.Claims(t.Context(), nad.Pod{UID: "pod-web"})
		nodetest.Is(t, err, scratch.ErrCorrupt)
		nodetest.Code(t, err, 5)
		nodetest.Is(t, n.sweepAll(t.Context()), scratch.ErrCorrupt)
	}
	b := kubetest.Put(n.server, newClaim("b", nil))
	damage()
	refused(t, k, b, "pod-web@claim-a@claim.json") // it may have any device
	k = n.kubelet(t)
	mustPrepare(t, k, a)
	mustPrepare(t, k, b)
	n.wantClaims(t, "pod-web", 2)
	n.attach(t, "pod-web")
	damage()
	k = n.kubelet(t)
	mustPrepare(t, k, b) // it has its device already
	nodetest.OK(t, k.Unprepare(t.Context(), a))
	nodetest.Equal(t, "detached", n.detached, []string{"a"})
	n.wantClaims(t, "pod-web", 1)
}

func TestTheDriverSweepsFromTimeToTime(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
	mustPrepare(t, n.kubelet(t), a, b)
	kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
	n.config.sweepInterval = time.Millisecond
	n.restart(t)
	n.await(t, "forgotten", func() bool { // looks again whenever the driver asks for b
		claims, err := n.Claims(t.Context(), nad.Pod{UID: "pod-web"})
		return len(claims) == 1 && claims[0].Name == "b" && err == nil
	})
}

// A daemon has one way to the API server: that of its View, which reads the credentials again
// when they change.
func TestTheDriverSharesTheCredentialsOfAView(t *testing.T) {
	t.Parallel()
	n, k, _ := prepared(t)
	n.server.SetToken("second")
	_, err := n.server.Kubeconfig(filepath.Dir(n.kubeconfig))
	nodetest.OK(t, err)
	mustPrepare(t, k, kubetest.Put(n.server, newClaim("b", nil)))
	n.attach(t, "pod-web")
	n.await(t, "written", n.ready("b", "True"))
	for _, r := range n.server.Requests() {
		if r.Verb == "update" && r.UserAgent != "daemon" {
			t.Errorf("the UserAgent is %q", r.UserAgent)
		}
	}
}

// The kubelet hears the path that it knows, although the socket is elsewhere for the driver.
func TestTheSocketMayBeElsewhereForTheKubelet(t *testing.T) {
	t.Parallel()
	root := kubeletDir(t)
	inRoot := func(path string) (string, error) { return filepath.Join(root, strings.TrimPrefix(path, "/node")), nil }
	n := newNode(t, func(c *Config) { c.KubeletDir, c.Resolve = "/node", inRoot })
	link := nodetest.ShortDir(t)
	k, err := dratest.Register(t.Context(), filepath.Join(root, "plugins_registry", driverName+"-reg.sock"), link)
	nodetest.OK(t, errors.Join(err, os.Symlink(root, filepath.Join(link, "node"))))
	defer func() { _ = k.Close() }()
	nodetest.Equal(t, "endpoint", k.Endpoint, "/node/plugins/"+driverName+"/dra.sock")
	mustPrepare(t, k, kubetest.Put(n.server, newClaim("a", nil)))
	n.restart(t) // in place of a socket that is still there
	n.Stop()
	nodetest.Equal(t, "left", matching(t, root+"/plugins/*/*.sock"), nil)
	n.config.CDIDir = "/node/cdi"
	for _, same := range []bool{false, true} {
		if same {
			n.config.KubeletDir = filepath.Join(link, "node")
			n.config.Resolve = func(path string) (string, error) { return strings.Replace(path, n.config.KubeletDir, root, 1), nil }
		}
		d, err := Start(t.Context(), n.config)
		nodetest.OK(t, err)
		if err := d.Err(); (err == nil) != same || err != nil && !strings.Contains(err.Error(), "/node/plugins/"+driverName+" is not the same directory") {
			t.Errorf("metadata, the same directory %v: %v", same, err)
		}
		d.Stop()
	}
}

// A driver starts without a kubelet, says so once, and serves the kubelet that comes later,
// wherever that is then.
func TestTheKubeletMayComeLater(t *testing.T) {
	t.Parallel()
	var log strings.Builder // only read after Stop
	late := nodetest.ShortDir(t)
	n := newNode(t, func(c *Config) {
		c.KubeletDir = filepath.Join(c.KubeletDir, "none")
		none := c.KubeletDir
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.Resolve = func(path string) (string, error) {
			if _, err := os.Stat(filepath.Join(late, "plugins_registry")); err == nil {
				path = strings.Replace(path, none, late, 1)
			}
			return path, nil
		}
	})
	nodetest.Is(t, n.Err(), fs.ErrNotExist)
	nodetest.Says(t, n.Err(), n.config.registry())
	_, err := os.Stat(n.config.plugin())
	nodetest.Is(t, err, fs.ErrNotExist) // for no kubelet
	kubetest.Put(n.server, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	n.Attached("pod-web", nil)
	none := n.config.KubeletDir
	n.config.KubeletDir = late
	nodetest.OK(t, errors.Join(n.publish(t.Context(), []resourcev1.Device{{Name: "storage"}}), n.UpdateMetadata(t.Context(), "pod-web"), os.Symlink(late, none), os.Mkdir(n.config.registry(), 0o750)))
	n.serveIfLost(t.Context())
	nodetest.OK(t, n.Err())
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", nil)))
	n.await(t, "published", func() bool { return len(kubetest.List[resourcev1.ResourceSlice](n.server)) == 1 })
	n.Stop()
	nodetest.Equal(t, "said", strings.Count(log.String(), "does not reach"), 1)
}

// With rolling updates two drivers serve the same claims at the same time.
func TestTheNextDriverStartsBeforeTheLastHasStopped(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.RollingUpdate = "pod-1" })
	next := n.config
	next.RollingUpdate = "pod-2"
	d, err := Start(t.Context(), next)
	nodetest.OK(t, err)
	defer d.Stop()
	first, second := n.kubelet(t, "-pod-1"), n.kubelet(t, "-pod-2")
	c := kubetest.Put(n.server, newClaim("a", nil))
	mustPrepare(t, first, c)
	n.Stop()
	n.Driver = d
	n.wantClaims(t, "pod-web", 1)
	nodetest.OK(t, second.Unprepare(t.Context(), c))
	n.wantClaims(t, "pod-web", 0)
}

// The kubelet asks again when it has waited too long: requests for the same claim may run at
// once. What was asked for last is what the store has.
func TestRequestsForAClaimMayRunAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := kubetest.Put(n.server, newClaim("a", nil))
	for _, prepared := range []bool{true, false, true} {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				_, failures := prepareClaims(t, k, a)
				nodetest.Equal(t, "failures", failures, nil)
			})
			all.Go(func() { nodetest.Equal(t, "unprepare", k.Unprepare(t.Context(), a), nil) })
		}
		all.Wait()
		want := 0
		if prepared {
			mustPrepare(t, k, a)
			want = 1
		} else {
			nodetest.OK(t, k.Unprepare(t.Context(), a))
		}
		n.wantClaims(t, "pod-web", want)
	}
}

// A claim whose record cannot be written is refused, and nothing is left of the attempt. Others
// are prepared, and so is the claim as soon as its record can be written.
func TestAClaimThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
	mustPrepare(t, k, a)
	blocker := filepath.Join(n.config.Dir, "pod-web@claim-b@claim.json")
	nodetest.OK(t, os.MkdirAll(filepath.Join(blocker, "x"), 0o700)) // no file can take this name
	refused(t, k, b, "claim blue/b: ")
	mustPrepare(t, k, a)
	nodetest.OK(t, os.RemoveAll(blocker))
	mustPrepare(t, k, b)
	nodetest.Equal(t, "left", len(matching(t, n.config.Dir+"/*.json")), 2)
}

func TestThePodFindsWhatTheKubeletHasPrepared(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	var k *dratest.Kubelet
	a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
	before := n.server.Count("", "")
	for range 2 { // the kubelet asks again after a restart
		k = n.kubelet(t)
		devices, failures := prepareClaims(t, k, a, b)
		nodetest.Equal(t, "failures", failures, nil)
		d := devices["a"][0]
		nodetest.Equal(t, "the kubelet is told", append(d.GetRequestNames(), d.GetPoolName(), d.GetDeviceName(), d.GetShareId()), []string{"net", "node1", "storage", "share-a"})
	}
	claims := n.claims(t, "pod-web")
	if len(claims) != 2 || claims[0].Networks[0].Config != bridge {
		t.Fatalf("%+v", claims)
	}
	nodetest.Equal(t, "requests", n.server.Count("", "")-before, 4)
	nodetest.Equal(t, "requests of the kubelet's helper", n.server.Count("get", "resourceclaims"), 4)
	n.restart(t)
	nodetest.Equal(t, "claims after a restart", n.claims(t, "pod-web"), claims)
	k = n.kubelet(t)
	n.attach(t, "pod-web")
	for range 2 {
		nodetest.OK(t, k.Unprepare(t.Context(), a))
		nodetest.Equal(t, "left", n.claims(t, "pod-web"), claims[1:])
		nodetest.Equal(t, "detached", n.detached, []string{"a"})
	}
}

// Also if the record of the claim is lost, before its status is written: what its pod is attached to is
// not.
func TestAClaimStaysWhileItCannotBeDetached(t *testing.T) {
	t.Parallel()
	for left, lost := range []bool{true, false} {
		n, k, a := prepared(t)
		if !lost {
			n.attach(t, "pod-web")
			n.await(t, "written", n.ready("a", "True"))
		} else {
			heal := n.server.Break(kubetest.Fault{Verb: "update", Status: 500})
			n.attach(t, "pod-web")
			n.counts(t, func(s Stats) bool { return s.Failed > 0 && s.Pending == 1 })
			nodetest.OK(t, os.Remove(filepath.Join(n.config.Dir, "pod-web@claim-a@claim.json")))
			n.counts(t, func(s Stats) bool { return s.Pending == 0 }) // the writer forgets it
			heal()
		}
		n.fail(errors.New("the plugin fails"))
		nodetest.Says(t, k.Unprepare(t.Context(), a), "claim blue/a: the plugin fails")
		n.wantClaims(t, "pod-web", left)
		n.fail(nil)
		kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
		before := n.server.Count("get", "")
		nodetest.OK(t, k.Unprepare(t.Context(), a))
		n.wantClaims(t, "pod-web", 0)
		nodetest.Equal(t, "detached", n.detached, []string{"a"})
		nodetest.Equal(t, "requests to release a claim", n.server.Count("get", "")-before, 0)
	}
}

func TestTheSweepForgetsWhatNobodyHasReleased(t *testing.T) {
	t.Parallel()
	gone := func(n *node, c *resourcev1.ResourceClaim) {
		kubetest.Delete[resourcev1.ResourceClaim](n.server, c.Namespace, c.Name)
	}
	put := func(edit func(*resourcev1.ResourceClaim)) func(*node, *resourcev1.ResourceClaim) {
		return func(n *node, c *resourcev1.ResourceClaim) { edit(c); kubetest.Put(n.server, c) }
	}
	answer := func(code int) func(*node, *resourcev1.ResourceClaim) {
		return func(n *node, _ *resourcev1.ResourceClaim) { n.server.Break(kubetest.Fault{Status: code}) }
	}
	for name, row := range map[string]struct {
		edit     func(n *node, c *resourcev1.ResourceClaim)
		attached bool
		forgets  bool
		fails    bool
		next     int // other pods that have the claim
	}{
		"a claim that is used":                   {edit: put(func(*resourcev1.ResourceClaim) {})},
		"a claim that has gone":                  {edit: gone, forgets: true},
		"a claim that has gone, and is attached": {edit: gone, attached: true},
		"a claim that has been replaced":         {edit: put(func(c *resourcev1.ResourceClaim) { c.UID = "other" }), forgets: true},
		"a claim of another pod":                 {edit: put(func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor[0].UID = "other" }), forgets: true, next: 1},
		"a claim of another pod of another node": {edit: put(func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor[0].UID = "other"
			c.Status.Allocation.Devices.Results[0].Pool = "node2"
		}), forgets: true},
		"an API that is away": {edit: answer(500), fails: true},
		// An API server without the whole resource, or a proxy, answers 404 as well.
		"an API without claims": {edit: answer(404), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, func(c *Config) { c.CDIDir = t.TempDir() })
			c := kubetest.Put(n.server, newClaim("a", nil))
			mustPrepare(t, n.kubelet(t), c)
			if row.attached {
				n.attach(t, "pod-web")
			}
			row.edit(n, c)
			nodetest.Equal(t, "fails", n.sweepAll(t.Context()) != nil, row.fails)
			want := 1
			if row.forgets {
				want = 0
			}
			n.wantClaims(t, "pod-web", want)
			seen := len(matching(t, n.config.CDIDir+"/*")) + len(matching(t, n.config.plugin()+"/dra-device-metadata/*"))
			nodetest.Equal(t, "files that containers see", seen, 2*(want+row.next))
		})
	}
}

func TestContainersSeeTheirNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.CDIDir = t.TempDir() })
	devices, _ := prepareClaims(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", nil)))
	nodetest.Equal(t, "CDI devices", len(devices["a"][0].GetCdiDeviceIds()), 1)
	n.attach(t, "pod-web")
	data, err := os.ReadFile(matching(t, n.config.CDIDir+"/*")[0])
	nodetest.OK(t, err)
	var spec struct {
		Devices []struct {
			ContainerEdits struct{ Mounts []struct{ HostPath string } }
		}
	}
	nodetest.OK(t, json.Unmarshal(data, &spec))
	data, err = os.ReadFile(spec.Devices[0].ContainerEdits.Mounts[0].HostPath)
	nodetest.OK(t, err)
	for _, want := range []string{`"net1"`, `"192.0.2.5/24"`, `"2001:db8::5/64"`, `"02:00:00:00:00:01"`} {
		nodetest.Equal(t, want+" in the file", strings.Contains(string(data), want), true)
	}
	nodetest.OK(t, os.RemoveAll(n.config.plugin()))
	nodetest.Says(t, n.UpdateMetadata(t.Context(), "pod-web"), "claim blue/a: ")
}

func TestADriverNeedsAWholeConfig(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	for name, edit := range map[string]func(*Config){
		"a name":                   func(c *Config) { c.Name = "" },
		"a node":                   func(c *Config) { c.Node = "" },
		"a directory":              func(c *Config) { c.Dir = "" },
		"a View":                   func(c *Config) { c.View = nil },
		"Records":                  func(c *Config) { c.Records = nil },
		"Network":                  func(c *Config) { c.Networks = []Offer{{Network: "a"}} },
		"a valid name":             func(c *Config) { c.Name = "a/b" },
		"a RollingUpdate of words": func(c *Config) { c.RollingUpdate = "a b" },
		"a RollingUpdate in it":    func(c *Config) { c.RollingUpdate = "../x" },
	} {
		c := n.config
		c.KubeletDir, c.Logger = kubeletDir(t), nil
		edit(&c)
		if d, err := Start(t.Context(), c); err == nil {
			d.Stop()
			t.Errorf("started without %s", name)
		}
	}
}

// A kubelet that is installed again has new directories, and looks for sockets in them.
func TestTheDriverMakesLostSocketsAgain(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"registry", "plugin", "both", "socket"} {
		n := newNode(t, nil)
		a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
		mustPrepare(t, n.kubelet(t), a)
		nodetest.OK(t, n.publish(t.Context(), []resourcev1.Device{{Name: "storage"}}))
		registry, plugin := n.config.registry(), n.config.plugin()
		for _, path := range map[string][]string{"registry": {registry}, "plugin": {plugin}, "both": {registry, plugin}, "socket": {plugin + "/dra.sock"}}[lost] {
			nodetest.OK(t, os.RemoveAll(path))
		}
		if lost == "registry" || lost == "both" {
			n.serveIfLost(t.Context())
			nodetest.Says(t, n.Err(), "the directory in which the kubelet finds plugins")
			nodetest.OK(t, os.Mkdir(registry, 0o750))
		}
		nodetest.Until(t, "the sockets are there", func() bool {
			return len(matching(t, registry+"/*-reg.sock"))+len(matching(t, plugin+"/dra.sock")) == 2 && n.Err() == nil
		})
		k := n.kubelet(t)
		mustPrepare(t, k, a, b)
		nodetest.OK(t, k.Unprepare(t.Context(), a))
		nodetest.OK(t, n.publish(t.Context(), nil))
		n.Stop()
		nodetest.Equal(t, "left", matching(t, registry+"/*"), nil)
	}
}

// The next daemon may start before the last one has ended: its sockets stay.
func TestADriverThatStopsLeavesTheSocketsOfTheNext(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	next, err := Start(t.Context(), n.config)
	nodetest.OK(t, err)
	t.Cleanup(next.Stop)
	n.serveIfLost(t.Context())
	nodetest.Is(t, n.Err(), errTaken)
	n.Stop()
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", nil)))
	nodetest.OK(t, next.Err())
}

// A helper that cannot serve any more is replaced, but not one that tries again by itself: that is a
// warning. The kubelet says whether it takes the driver, and the log repeats it.
func TestAHelperThatFailsIsReplaced(t *testing.T) {
	t.Parallel()
	log := &nodetest.Log{}
	n := newNode(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	helper := func() *kubeletplugin.Helper {
		n.serving.Lock()
		defer n.serving.Unlock()
		return n.service.helper
	}
	first := helper()
	plugin{n.Driver}.HandleError(t.Context(), fmt.Errorf("slices: %w", kubeletplugin.ErrRecoverable), "failed")
	nodetest.Equal(t, "warnings", log.Count("level=WARN "), 1)
	n.serveIfLost(t.Context())
	nodetest.Equal(t, "replaced", helper() != first, false)
	plugin{n.Driver}.HandleError(t.Context(), errors.New("accept: too many open files"), "the server failed")
	n.serveIfLost(t.Context())
	nodetest.Equal(t, "replaced", helper() != first, true)
	mustPrepare(t, n.kubelet(t), kubetest.Put(n.server, newClaim("a", nil)))
	_, err := n.intercept(t.Context(), &registration.RegistrationStatus{Error: "no such version"}, nil, func(context.Context, any) (any, error) { return nil, errors.New("handled") })
	nodetest.Says(t, err, "handled")
	n.Stop()
	for _, want := range []string{
		"level=INFO msg=\"the kubelet has registered the DRA driver\" driver=" + driverName,
		"level=ERROR msg=\"the kubelet refuses the DRA driver\" driver=" + driverName + " error=\"no such version\"",
	} {
		nodetest.Equal(t, want, log.Count(want), 1)
	}
}

// When Stop has returned, the driver calls nobody and writes nothing: the next one may start.
func TestStopWaitsForTheRequestsOfTheKubelet(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"unprepare", "prepare"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			called, stopping := make(chan struct{}), make(chan struct{})
			var ended atomic.Bool
			n := newNode(t, func(c *Config) {
				c.Records = func(ctx context.Context, _ string) ([]Detachable, error) {
					close(called)
					<-ctx.Done() // Stop has begun
					<-stopping
					ended.Store(true)
					return nil, ctx.Err()
				}
			})
			a := kubetest.Put(n.server, newClaim("a", nil))
			mustPrepare(t, n.kubelet(t), a)
			k := n.kubelet(t) // that does not know what is prepared
			var asking, stop sync.WaitGroup
			asking.Go(func() {
				if what == "unprepare" {
					nodetest.Equal(t, "released while it stops", k.Unprepare(t.Context(), a) == nil, false)
					return
				}
				a.Status.ReservedFor[0].UID = "pod-next" // so that the driver looks for attachments
				refused(t, k, kubetest.Put(n.server, a), "")
			})
			<-called
			var stopped atomic.Bool
			stop.Go(func() {
				n.Stop()
				stopped.Store(true)
			})
			asking.Wait() // the connection is closed, and the request still runs
			nodetest.Equal(t, "stopped while a request runs", stopped.Load(), false)
			close(stopping)
			stop.Wait()
			nodetest.Equal(t, "the request has ended before the driver", ended.Load(), true)
			n.wantClaims(t, "pod-web", 1)
			n.wantClaims(t, "pod-next", 0)
			_, err := n.intercept(t.Context(), nil, nil, nil)
			nodetest.Says(t, err, "the DRA driver has ended")
		})
	}
}

// A daemon runs for months: nothing is kept in memory about claims that are released.
func TestNothingIsKeptOfClaimsThatAreReleased(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	for _, name := range []string{"released", "swept", "lost"} {
		c := kubetest.Put(n.server, newClaim(name, nil))
		mustPrepare(t, k, c)
		n.attach(t, "pod-web")
		n.await(t, "written", n.ready(name, "True"))
		switch name {
		case "lost": // by the kubelet, which prepares it for another pod
			n.detach(string(c.UID))
			c.Status.ReservedFor[0].UID = "pod-next"
			mustPrepare(t, k, kubetest.Put(n.server, c))
			fallthrough
		case "released":
			nodetest.OK(t, k.Unprepare(t.Context(), c))
		case "swept":
			kubetest.Delete[resourcev1.ResourceClaim](n.server, c.Namespace, c.Name)
			n.detach(string(c.UID))
			nodetest.OK(t, n.sweepAll(t.Context()))
		}
		n.writer.mu.Lock()
		nodetest.Equal(t, name, n.writer.failures, nil)
		n.writer.mu.Unlock()
	}
}

// A driver tries again for as long as it cannot serve: every attempt must end what it began.
func TestAnAttemptThatFailsLeavesNoGoroutine(t *testing.T) {
	t.Parallel()
	config := newNode(t, nil).config
	config.KubeletDir = filepath.Join(config.KubeletDir, strings.Repeat("long", 30)) // for a socket
	nodetest.OK(t, os.MkdirAll(config.registry(), 0o750))
	label := "a driver that fails in " + config.KubeletDir
	pprof.Do(t.Context(), pprof.Labels("test", label), func(ctx context.Context) {
		d, err := Start(ctx, config)
		if err != nil || d.Err() == nil {
			t.Fatalf("%v, it serves", err)
		}
		d.Stop()
	})
	nodetest.Until(t, "all goroutines end", func() bool {
		var all strings.Builder
		nodetest.OK(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		return !strings.Contains(all.String(), label)
	})
}
