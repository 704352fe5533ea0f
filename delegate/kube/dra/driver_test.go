package dra

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

func TestThePodFindsWhatTheKubeletHasPrepared(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	var k *dratest.Kubelet
	a, b := kubetest.Put(n.server, newClaim("a", nil)), kubetest.Put(n.server, newClaim("b", nil))
	before := n.server.Count("", "")
	for range 2 { // the kubelet asks again after a restart
		k = n.kubelet(t)
		devices, failures := prepareClaims(t, k, a, b)
		if len(failures) > 0 {
			t.Fatal(failures)
		}
		d := devices["a"][0]
		if !slices.Equal(d.GetRequestNames(), []string{"net"}) || d.GetPoolName() != "node1" || d.GetDeviceName() != "storage" || d.GetShareId() != "share-a" {
			t.Errorf("the kubelet is told %v", d)
		}
	}
	claims, err := n.Claims(t.Context(), nad.Pod{UID: "pod-web"})
	if err != nil || len(claims) != 2 || claims[0].Networks[0].Config != bridge {
		t.Fatalf("%+v, %v", claims, err)
	}
	if got, want := n.server.Count("", "")-before, 4; got != want || n.server.Count("get", "resourceclaims") != want {
		t.Errorf("%d requests, want those of the kubelet's helper, %d", got, want)
	}
	n.restart(t)
	if again, err := n.Claims(t.Context(), nad.Pod{UID: "pod-web"}); cmp.Diff(claims, again) != "" || err != nil {
		t.Errorf("after a restart: %s, %v", cmp.Diff(claims, again), err)
	}
	k = n.kubelet(t)
	n.attach(t, "pod-web")
	nodetest.OK(t, k.Unprepare(t.Context(), a))
	left, err := n.Claims(t.Context(), nad.Pod{UID: "pod-web"})
	if err != nil || len(left) != 1 || left[0].Name != "b" {
		t.Errorf("left: %+v, %v", left, err)
	}
	nodetest.Equal(t, "detached", n.detached, []string{"a"})
	if err := k.Unprepare(t.Context(), a); err != nil || len(n.detached) != 1 {
		t.Errorf("the second time: %v, %v", err, n.detached)
	}
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
	if claims, err := n.all(); len(claims) != 1 || err != nil {
		t.Errorf("recorded: %v, %v", claims, err)
	}
}

func TestTheHelperRefusesClaimsThatAreNotThere(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := kubetest.Put(n.server, newClaim("a", nil))
	old := a.DeepCopy()
	old.UID = "earlier"
	for want, c := range map[string]*resourcev1.ResourceClaim{
		"got replaced":  old,
		"blue/none":     newClaim("none", nil),
		"not allocated": kubetest.Put(n.server, newClaim("b", func(c *resourcev1.ResourceClaim) { c.Status.Allocation = nil })),
	} {
		refused(t, k, c, want)
	}
	heal := n.server.Break(kubetest.Fault{Resource: "resourceclaims", Status: 500})
	refused(t, k, a, "")
	heal()
	mustPrepare(t, k, a)
}

func TestADeviceOfAnotherClaimIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := kubetest.Put(n.server, newClaim("a", nil))
	b := kubetest.Put(n.server, newClaim("b", func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.Devices.Results[0] = allocatedTo("net", "storage", "share-a")
	}))
	mustPrepare(t, k, a)
	refused(t, k, b, "in use")
	nodetest.OK(t, k.Unprepare(t.Context(), a))
	mustPrepare(t, k, b)
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

func TestAClaimStaysWhileItCannotBeDetached(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	n.attach(t, "pod-web")
	n.fail(errors.New("the plugin fails"))
	nodetest.Says(t, k.Unprepare(t.Context(), a), "claim blue/a: the plugin fails")
	n.wantClaims(t, "pod-web", 1)
	n.fail(nil)
	kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
	before := n.server.Count("", "")
	nodetest.OK(t, k.Unprepare(t.Context(), a))
	n.wantClaims(t, "pod-web", 0)
	nodetest.Equal(t, "requests to release a claim", n.server.Count("", "")-before, 0)
}

func TestADamagedRecordIsPreparedAgainOrReleased(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	damage := func() {
		t.Helper()
		nodetest.OK(t, os.WriteFile(filepath.Join(n.config.Dir, "pod-web@claim-a@claim.json"), []byte("x"), 0o600))
		if _, err := n.Claims(t.Context(), nad.Pod{UID: "pod-web"}); !errors.Is(err, scratch.ErrCorrupt) || n.sweepAll(t.Context()) == nil {
			t.Errorf("got %v", err)
		}
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

func TestTheSweepForgetsWhatNobodyHasReleased(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		edit     func(n *node, c *resourcev1.ResourceClaim)
		attached bool
		forgets  bool
		fails    bool
		next     int // other pods that have the claim
	}{
		"a claim that is used": {edit: func(*node, *resourcev1.ResourceClaim) {}},
		"a claim that has gone": {edit: func(n *node, c *resourcev1.ResourceClaim) {
			kubetest.Delete[resourcev1.ResourceClaim](n.server, c.Namespace, c.Name)
		}, forgets: true},
		"a claim that has gone, and is attached": {edit: func(n *node, c *resourcev1.ResourceClaim) {
			kubetest.Delete[resourcev1.ResourceClaim](n.server, c.Namespace, c.Name)
		}, attached: true},
		"a claim that has been replaced": {edit: func(n *node, c *resourcev1.ResourceClaim) {
			c.UID = "other"
			kubetest.Put(n.server, c)
		}, forgets: true},
		"a claim of another pod": {edit: func(n *node, c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor[0].UID = "other"
			kubetest.Put(n.server, c)
		}, forgets: true, next: 1},
		"a claim of another pod of another node": {edit: func(n *node, c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor[0].UID = "other"
			c.Status.Allocation.Devices.Results[0].Pool = "node2"
			kubetest.Put(n.server, c)
		}, forgets: true},
		"an API that is away": {edit: func(n *node, _ *resourcev1.ResourceClaim) { n.server.Break(kubetest.Fault{Status: 500}) }, fails: true},
		// An API server without the whole resource, or a proxy, answers 404 as well.
		"an API without claims": {edit: func(n *node, _ *resourcev1.ResourceClaim) { n.server.Break(kubetest.Fault{Status: 404}) }, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cdi := t.TempDir()
			n := newNode(t, func(c *Config) { c.CDIDir = cdi })
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
			files, err := filepath.Glob(cdi + "/*")
			nodetest.OK(t, err)
			metadata, err := filepath.Glob(n.config.plugin() + "/dra-device-metadata/*")
			nodetest.OK(t, err)
			nodetest.Equal(t, "files that containers see", len(files)+len(metadata), 2*(want+row.next))
		})
	}
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

func TestContainersSeeTheirNetworks(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.CDIDir = t.TempDir() })
	a := kubetest.Put(n.server, newClaim("a", nil))
	devices, failures := prepareClaims(t, n.kubelet(t), a)
	if len(failures) > 0 || len(devices["a"][0].GetCdiDeviceIds()) != 1 {
		t.Fatalf("%v, %v", devices, failures)
	}
	n.attach(t, "pod-web")
	files, err := filepath.Glob(filepath.Join(n.config.CDIDir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
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
		"a name":       func(c *Config) { c.Name = "" },
		"a node":       func(c *Config) { c.Node = "" },
		"a directory":  func(c *Config) { c.Dir = "" },
		"a View":       func(c *Config) { c.View = nil },
		"Records":      func(c *Config) { c.Records = nil },
		"Network":      func(c *Config) { c.Networks = []Offer{{Network: "a"}} },
		"a valid name": func(c *Config) { c.Name = "a/b" },
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

// A daemon without ResourceClaims does not pay for them: the module of package kube knows
// nothing of the one here.
func TestKubeDoesNotNeedThisModule(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Path}}", "all")
	cmd.Dir = ".."
	out, err := cmd.Output()
	nodetest.OK(t, err)
	modules := strings.Fields(string(out))
	if !slices.Contains(modules, "k8s.io/client-go") {
		t.Fatalf("modules: %v", modules)
	}
	for _, banned := range []string{"k8s.io/dynamic-resource-allocation", "k8s.io/apiserver", "github.com/metacni/metacni/delegate/kube/dra"} {
		if slices.Contains(modules, banned) {
			t.Errorf("delegate/kube requires %s", banned)
		}
	}
}
