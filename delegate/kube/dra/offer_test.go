package dra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

func TestDevicesHaveAttributesOfTheirNetworks(t *testing.T) {
	t.Parallel()
	offer := Offer{Network: "blue/n", Exclusive: true}
	for config, want := range map[string]map[string]string{
		`{"name":"n","type":"bridge"}`:                                               {"plugin": "bridge"},
		`{"name":"n","type":"macvlan","master":"eth1"}`:                              {"plugin": "macvlan", "master": "eth1"},
		`{"name":"n","plugins":[{"type":"vlan","master":"eth1"},{"type":"tuning"}]}`: {"plugin": "vlan", "master": "eth1"},
		`{"name":"n","plugins":[{"type":"vlan"},{"type":"tuning","master":"eth1"}]}`: {"plugin": "vlan"},
		`{"name":"n","type":"macvlan","master":["eth1"]}`:                            {"plugin": "macvlan"},
		`{"name":"n","type":"macvlan","master":"` + strings.Repeat("e", 65) + `"}`:   {"plugin": "macvlan"},
		`{"name":"n","type":"` + strings.Repeat("p", 65) + `","master":"e"}`:         {"master": "e"},
	} {
		n, err := netconf.Parse([]byte(config))
		nodetest.OK(t, err)
		nodetest.Equal(t, config, attributes(offer.device(n)), want)
	}
	n, err := netconf.Parse([]byte(`{"name":"n","type":"macvlan","master":"eth1"}`))
	nodetest.OK(t, err)
	offer.Attributes = map[string]string{"master": "bond0", "speed": "fast"}
	want := map[string]string{"plugin": "macvlan", "master": "bond0", "speed": "fast"}
	nodetest.Equal(t, "with attributes of its own", attributes(offer.device(n)), want)
	nodetest.Equal(t, "of no network", attributes(offer.device(netconf.Network{})), offer.Attributes)
}

// attributes returns those of a device, which are all strings.
func attributes(d resourcev1.Device) map[string]string {
	all := map[string]string{}
	for name, a := range d.Attributes {
		all[string(name)] = *a.StringValue
	}
	return all
}

func TestDevicesAreNamedForTheirNetworks(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]string{
		"storage": "storage", "blue/storage.v2": "storage-v2", "My_Net.2": "my-net-2", "_a_": "a", "é": "",
		strings.Repeat("a", 62) + "_b": strings.Repeat("a", 62),
	} {
		got := Offer{Network: network}.name()
		nodetest.Equal(t, fmt.Sprintf("%q is named", network), got, want)
	}
	nodetest.Equal(t, "got", (Offer{Network: "blue/storage", Device: "other"}).name(), "other")
}

func TestOffersThatNoAPIServerTakesAreRefused(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("a%d", i)] = ""
		}
		return all
	}
	for _, row := range []struct {
		offers []Offer
		want   string // of the error; empty means none
	}{
		{nil, ""},
		{[]Offer{{Network: "blue/storage", Attributes: map[string]string{"speed": "fast", "example.com/rack": "7"}}, {Network: "My_Net"}, {Network: "_My_Net", Device: "x"}}, ""},
		{[]Offer{{Network: "a", Attributes: many(30)}}, ""},
		{[]Offer{{Network: "a", Attributes: many(31)}}, "attributes"},
		{[]Offer{{Network: "a"}, {}}, "networks[1]: network: missing"},
		{[]Offer{{Network: "a/b/c"}}, `"a/b/c" is not namespace/name`},
		{[]Offer{{Network: "A/b"}}, `"A/b" is not namespace/name`},
		{[]Offer{{Network: "a/"}}, `"a/" is not namespace/name`},
		{[]Offer{{Network: "a", Device: "A"}}, `device "A"`},
		{[]Offer{{Network: "___"}}, `device ""`},
		{[]Offer{{Network: "a", Attributes: map[string]string{"x y": "1"}}}, `"x y"`},
		{[]Offer{{Network: "a", Attributes: map[string]string{strings.Repeat("x", 33): "1"}}}, "no name of an attribute"},
		{[]Offer{{Network: "a", Attributes: map[string]string{"A_B/a": "1"}}}, `"A_B/a"`},
		{[]Offer{{Network: "a", Attributes: map[string]string{"x": strings.Repeat("1", 65)}}}, "longer than 64"},
		{[]Offer{{Network: "a/b"}, {Network: "a/b", Device: "c"}}, `networks[1]: network "a/b" is listed twice`},
		{[]Offer{{Network: "a/b"}, {Network: "c/b"}}, `networks[1]: two networks are the device "b"`},
	} {
		err := Check(driverName, row.offers)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: %v, want %q", row.offers, err, row.want)
		}
	}
}

// A market has the networks on offer and the slices that were published.
type market struct {
	*offers

	mu        sync.Mutex
	status    map[string]func(context.Context) error // by network; nil is ready
	asked     []string
	busy      int
	busiest   int
	published []string // the devices of each publication that changes anything
	refuse    error
	log       bytes.Buffer
}

// offer offers networks in a bubble, until do returns.
func offer(t *testing.T, networks []Offer, do func(*market)) *market {
	t.Helper()
	m := &market{status: map[string]func(context.Context) error{}}
	synctest.Test(t, func(t *testing.T) {
		m.offers = newOffers(Config{Networks: networks, Network: m.ask, Logger: slog.New(slog.NewTextHandler(&m.log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { m.run(ctx, m.publish); close(ended) }()
		synctest.Wait()
		do(m)
		cancel()
		<-ended
	})
	return m
}

func (m *market) ask(ctx context.Context, network string) (netconf.Network, error) {
	m.mu.Lock()
	m.asked = append(m.asked, network)
	m.busy++
	m.busiest = max(m.busiest, m.busy)
	status := m.status[network]
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.busy--
	}()
	time.Sleep(time.Millisecond)
	n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"macvlan","master":"eth1"},{"type":"tuning"}]}`))
	if err == nil && status != nil {
		err = status(ctx)
	}
	return n, err
}

func (m *market) publish(_ context.Context, devices []resourcev1.Device) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return m.refuse
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	m.published = slices.Compact(append(m.published, strings.Join(names, " ")))
	return nil
}

// set makes the STATUS of a network fail.
func (m *market) set(network string, status func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status[network] = status
}

func (m *market) want(t *testing.T, after time.Duration, published ...string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	nodetest.Equal(t, "published", m.published, published)
}

func fails(err error) func(context.Context) error { return func(context.Context) error { return err } }

var errNoCable = errors.New("no cable")

func TestANetworkIsWithdrawnWhileItsSTATUSFails(t *testing.T) {
	t.Parallel()
	m := offer(t, []Offer{{Device: "a", Network: "ns/a"}, {Device: "b", Network: "b"}}, func(m *market) {
		m.want(t, time.Second, "a b")
		m.set("b", fails(errNoCable))
		m.want(t, time.Minute, "a b", "a")
		m.set("ns/a", fails(errNoCable))
		m.want(t, time.Minute, "a b", "a", "")
		published, withdrawn := m.counts()
		nodetest.Equal(t, "published and withdrawn", []int{published, withdrawn}, []int{0, 2})
		m.set("b", nil)
		m.want(t, time.Minute, "a b", "a", "", "b")
	})
	nodetest.Equal(t, "times that the reason is logged", strings.Count(m.log.String(), "no cable"), 2)
	nodetest.Contains(t, "log", m.log.String(), `msg="network offered again" device=b`)
}

// A network that hangs delays neither the others nor the next look for long.
func TestANetworkThatHangsIsWithdrawn(t *testing.T) {
	t.Parallel()
	var networks []Offer
	for name := range strings.FieldsSeq("a b c d e f") {
		networks = append(networks, Offer{Device: name, Network: name})
	}
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	m := offer(t, networks, func(m *market) {
		m.want(t, time.Second, "a b c d e f")
		m.set("c", hang)
		m.want(t, time.Minute, "a b c d e f", "a b d e f")
		m.set("c", nil)
		m.want(t, time.Minute, "a b c d e f", "a b d e f", "a b c d e f")
	})
	nodetest.Equal(t, "were asked at once", m.busiest, offersAtOnce)
}

// A definition that changes is looked at soon, and many changes at once are one look.
func TestADefinitionThatChangesIsLookedAtSoon(t *testing.T) {
	t.Parallel()
	offer(t, []Offer{{Device: "a", Network: "ns/a"}, {Device: "b", Network: "a"}}, func(m *market) {
		m.want(t, 2*time.Second, "a b")
		m.set("ns/a", fails(errNoCable))
		m.changed(nad.Ref{Namespace: "other", Name: "a"})
		m.want(t, 2*time.Second, "a b")
		for range 100 {
			m.changed(nad.Ref{Namespace: "ns", Name: "a"})
		}
		m.want(t, time.Millisecond*2, "a b", "b")
		if len(m.asked) > 6 {
			t.Errorf("asked %d times", len(m.asked))
		}
	})
}

// While the API does not tell whether a definition exists, what was published stays.
func TestNothingIsWithdrawnForWantOfTheAPI(t *testing.T) {
	t.Parallel()
	offer(t, []Offer{{Device: "a", Network: "ns/a"}, {Device: "b", Network: "b"}}, func(m *market) {
		m.want(t, time.Second, "a b")
		m.set("ns/a", fails(fmt.Errorf("NAD ns/a: %w", kube.ErrNotSynced)))
		m.set("b", fails(errNoCable))
		m.want(t, time.Hour, "a b")
		m.set("ns/a", nil)
		m.want(t, 3*time.Second, "a b", "a")
	})
}

func TestAPublicationThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	offer(t, []Offer{{Device: "a", Network: "ns/a"}}, func(m *market) {
		m.want(t, time.Second, "a")
		m.mu.Lock()
		m.refuse = errNoCable
		m.mu.Unlock()
		m.set("ns/a", fails(errNoCable))
		m.want(t, time.Minute, "a")
		m.mu.Lock()
		m.refuse = nil
		m.mu.Unlock()
		m.want(t, time.Minute, "a", "")
	})
}

// published returns the devices in all slices of the node.
func (n *node) published() map[string]resourcev1.Device {
	devices := map[string]resourcev1.Device{}
	for _, s := range kubetest.List[resourcev1.ResourceSlice](n.server) {
		if s.Spec.Driver == driverName && s.Spec.Pool.Name == "node1" && s.Spec.NodeName != nil && *s.Spec.NodeName == "node1" {
			for _, d := range s.Spec.Devices {
				devices[d.Name] = d
			}
		}
	}
	return devices
}

// Nothing is written if nothing changes. An empty list is written once: an earlier configuration
// may have offered something.
func TestNetworksArePublishedAndWithdrawn(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	kubetest.Put(n.server, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	storage := Offer{Network: "storage", Attributes: map[string]string{"plugin": "bridge", "master": "eth1", "example.com/zone": "a"}}.device(netconf.Network{})
	vlan := Offer{Network: "vlan", Exclusive: true}.device(netconf.Network{})
	var many []resourcev1.Device
	for i := range 200 {
		many = append(many, resourcev1.Device{Name: fmt.Sprintf("net%d", i)})
	}
	written := func() int {
		return n.server.Count("create", "resourceslices") + n.server.Count("update", "resourceslices")
	}
	for i, devices := range [][]resourcev1.Device{{vlan, storage}, {vlan}, {storage, vlan}, {vlan, storage}, nil, nil, {vlan}, many} {
		if i == 7 {
			nodetest.Equal(t, "written", written(), 5)
		}
		nodetest.OK(t, n.publish(t.Context(), devices))
		want := map[string]resourcev1.Device{}
		for _, d := range devices {
			want[d.Name] = d
		}
		n.await(t, "published", func() bool { return cmp.Equal(want, n.published()) })
	}
}
