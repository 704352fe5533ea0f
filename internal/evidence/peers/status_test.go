package peers

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"
	npwg "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// A statusRow is a difference in what a result means: the keys of network-status in which it may
// show, and the results that have it.
type statusRow struct {
	row  string
	keys []string
	has  func(*types100.Result) bool
}

// netns is the network namespace of the container.
const netns = "/run/netns/c1"

// rowGateways is the row for default routes that NPWG's client gives to every interface.
const rowGateways = "default routes, and several interfaces"

func several(r *types100.Result) bool { return len(r.Interfaces) > 1 }

func inContainer(r *types100.Result) (n int) {
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			n++
		}
	}
	return n
}

// to returns the interface of an address, or nil.
func to(r *types100.Result, ip *types100.IPConfig) *types100.Interface {
	if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
		return nil
	}
	return r.Interfaces[*ip.Interface]
}

func routes(r *types100.Result, has func(*types.Route) bool) bool {
	return slices.ContainsFunc(r.Routes, has)
}

func ips(r *types100.Result, has func(*types100.IPConfig) bool) bool {
	return slices.ContainsFunc(r.IPs, has)
}

var statusRows = []statusRow{
	{"an interface with another sandbox than the container's", []string{"list"}, func(r *types100.Result) bool {
		return inContainer(r) > 0 && slices.ContainsFunc(r.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" && i.Sandbox != netns })
	}},
	{"no interface in the container, of none or several", []string{"list"}, func(r *types100.Result) bool { return inContainer(r) == 0 && len(r.Interfaces) != 1 }},
	{"an address of an interface that the result does not have", []string{"ips"}, func(r *types100.Result) bool {
		return several(r) && ips(r, func(ip *types100.IPConfig) bool { return ip.Interface != nil && to(r, ip) == nil })
	}},
	{"no address where one should be", []string{"ips"}, func(r *types100.Result) bool {
		return ips(r, func(ip *types100.IPConfig) bool { return ip.Address.IP == nil })
	}},
	{"an address twice", []string{"ips"}, func(r *types100.Result) bool {
		seen := map[string]bool{}
		return ips(r, func(ip *types100.IPConfig) bool {
			again := seen[ip.Address.IP.String()]
			seen[ip.Address.IP.String()] = true
			return again
		})
	}},
	{"a default route without a gateway", []string{"gateway"}, func(r *types100.Result) bool {
		return routes(r, func(rt *types.Route) bool { return rt.GW == nil })
	}},
	{"a default route twice", []string{"gateway"}, func(r *types100.Result) bool {
		seen := map[string]bool{}
		return routes(r, func(rt *types.Route) bool {
			again := seen[rt.GW.String()]
			seen[rt.GW.String()] = true
			return again
		})
	}},
	{"a default route in another table", []string{"gateway"}, func(r *types100.Result) bool {
		return routes(r, func(rt *types.Route) bool { return rt.Table != nil && *rt.Table != 0 && *rt.Table != 254 })
	}},
	{"a route to 0.0.0.0/1, ::/1 or the like", []string{"gateway"}, func(r *types100.Result) bool {
		return routes(r, func(rt *types.Route) bool {
			ones, _ := rt.Dst.Mask.Size()
			return rt.Dst.IP.IsUnspecified() && ones > 0
		})
	}},
	{"the first gateway outside of the container, or of no interface", []string{"default"}, func(r *types100.Result) bool {
		for _, ip := range r.IPs {
			if ip.Gateway != nil {
				i := to(r, ip)
				return i == nil || i.Sandbox == ""
			}
		}
		return false
	}},
	{"a negative MTU", []string{"mtu"}, func(r *types100.Result) bool {
		return slices.ContainsFunc(r.Interfaces, func(i *types100.Interface) bool { return i.Mtu < 0 })
	}},
	{"a PCI address", []string{"device-info"}, func(r *types100.Result) bool {
		return slices.ContainsFunc(r.Interfaces, func(i *types100.Interface) bool { return i.PciID != "" })
	}},
}

// differing returns the keys in which two lists of network-status differ, or "list".
func differing(a, b []npwg.NetworkStatus) []string {
	if len(a) != len(b) {
		return []string{"list"}
	}
	keys := map[string]bool{}
	for i := range a {
		x, y := object(a[i]), object(b[i])
		for key := range mergedKeys(x, y) {
			if !cmp.Equal(x[key], y[key]) {
				keys[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

func object(s npwg.NetworkStatus) (keys map[string]any) {
	text, _ := json.Marshal(s)
	_ = json.Unmarshal(text, &keys)
	return keys
}

func mergedKeys(x, y map[string]any) map[string]any {
	both := maps.Clone(x)
	maps.Copy(both, y)
	return both
}

// published is what a pod's annotation has, written and read back by NPWG's client.
func published(t *testing.T, list []*npwg.NetworkStatus) []npwg.NetworkStatus {
	t.Helper()
	var values []npwg.NetworkStatus
	for _, s := range list {
		values = append(values, *s)
	}
	text, err := json.Marshal(values)
	nodetest.OK(t, err)
	return readBack(t, string(text))
}

func readBack(t *testing.T, text string) []npwg.NetworkStatus {
	t.Helper()
	list, err := utils.GetNetworkStatus(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{npwg.NetworkStatusAnnot: text}}})
	nodetest.OK(t, err)
	return list
}

// sameStatus fails unless both make the same network-status of a result, or the difference has a
// row.
func sameStatus(t *testing.T, met *rows, text string, isDefault bool) (equal bool) {
	t.Helper()
	result, err := create.CreateFromBytes([]byte(text))
	if err != nil {
		return false
	}
	newest, err := types100.NewResultFromResult(result)
	if err != nil || slices.Contains(newest.Interfaces, nil) || slices.Contains(newest.IPs, nil) || slices.Contains(newest.Routes, nil) {
		return false // the client panics
	}
	ours, err := status.NetworksIn(netns, "ns/n", result, isDefault)
	nodetest.OK(t, err)
	annotation, _ := status.Annotation(ours)
	theirs, err := utils.CreateNetworkStatuses(result, "ns/n", isDefault, nil)
	nodetest.OK(t, err)
	a, b := published(t, theirs), readBack(t, annotation)
	keys := differing(a, b)
	equal = len(keys) == 0
	if i := slices.Index(keys, "gateway"); i >= 0 && inContainer(newest) > 1 {
		met.meet(rowGateways)
		if !slices.Contains(differing(pooled(a), pooled(b)), "gateway") {
			keys = slices.Delete(keys, i, i+1)
		}
	}
	for _, key := range keys {
		explained := false
		for _, row := range statusRows {
			if slices.Contains(row.keys, key) && row.has(newest) {
				met.meet(row.row)
				explained = true
			}
		}
		if !explained {
			t.Errorf("%s: %q differs (-NPWG +metacni):\n%s", text, key, cmp.Diff(a, b))
		}
	}
	return equal
}

// pooled returns list with the gateways of all in the first.
func pooled(list []npwg.NetworkStatus) []npwg.NetworkStatus {
	var all []string
	list = slices.Clone(list)
	for i := range list {
		all = append(all, list[i].Gateway...)
		list[i].Gateway = nil
	}
	slices.Sort(all)
	list[0].Gateway = slices.Compact(all)
	return list
}

// result returns a result as plugins print it.
func (g generator) result() string {
	version := g.pick([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.1.0"}, []string{"0.2.0"})
	gateways := []string{"10.1.0.1", "fd00::1", "10.2.0.1"}
	route := func() *types.Route {
		_, dst, _ := net.ParseCIDR(g.pick([]string{"0.0.0.0/0", "::/0", "10.0.0.0/8"}, []string{"0.0.0.0/1", "::/1"}))
		rt := &types.Route{Dst: *dst}
		if !g.oneIn(5) {
			rt.GW = net.ParseIP(g.pick(gateways, []string{"169.254.1.1"}))
		}
		if g.oneIn(12) {
			table := g.IntN(2) * 7
			rt.Table = &table
		}
		return rt
	}
	r := &types100.Result{CNIVersion: version}
	for range []int{0, 1, 1, 1, 2, 2, 3, 4}[g.IntN(8)] {
		i := &types100.Interface{Name: fmt.Sprint("net", len(r.Interfaces)), Mac: g.pick([]string{"02:00:00:00:00:01", ""}, nil)}
		if len(r.Interfaces) == 0 || g.oneIn(2) {
			i.Sandbox = g.pick([]string{netns}, []string{"0"})
		}
		if g.oneIn(4) {
			i.Mtu = g.IntN(3)*1500 - g.IntN(2)
		}
		if g.oneIn(12) {
			i.PciID = "0000:03:02.1"
		}
		r.Interfaces = append(r.Interfaces, i)
	}
	for range g.IntN(4) {
		text := g.pick([]string{"10.1.0.5/24", "10.2.0.5/24", "fd00::5/64"}, []string{"10.1.0.9/32"}) // now and then taken out below
		ip, subnet, _ := net.ParseCIDR(text)
		c := &types100.IPConfig{Address: net.IPNet{IP: ip, Mask: subnet.Mask}}
		if g.oneIn(2) {
			c.Gateway = net.ParseIP(g.pick(gateways, nil))
		}
		if g.oneIn(40) {
			c.Interface = new(g.IntN(9) - 4)
		} else if n := len(r.Interfaces); n > 0 && !g.oneIn(4) {
			c.Interface = new(g.IntN(n))
		}
		r.IPs = append(r.IPs, c)
	}
	for range g.IntN(3) {
		r.Routes = append(r.Routes, route())
	}
	if g.oneIn(3) {
		r.DNS = types.DNS{Nameservers: []string{"10.0.0.1"}, Domain: g.pick([]string{"", "x"}, nil), Search: []string{"a", "b"}}
	}
	converted, err := r.GetAsVersion(version)
	if err != nil {
		return "{}"
	}
	text, _ := json.Marshal(converted)
	return strings.Replace(string(text), `"address":"10.1.0.9/32"`, `"x":0`, g.IntN(2))
}

func TestNetworkStatusIsTheSameToNPWGsClient(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(5, 6))}
	var met rows
	const all = 8000
	equal := 0
	for range all {
		if sameStatus(t, &met, g.result(), g.oneIn(2)) {
			equal++
		}
	}
	if equal < all/4 || equal > all*19/20 {
		t.Errorf("%d of %d results mean the same to both: the generator has become one-sided", equal, all)
	}
	want := []string{rowGateways}
	for _, row := range statusRows {
		want = append(want, row.row)
	}
	met.check(t, "What a result means", want)
	t.Logf("%d of %d results mean the same to both", equal, all)
}

// What NPWG's client writes into a pod and what we write is the same to a reader: every field of
// the client's type has its key in ours, and the other way round.
func TestTheAnnotationOfNPWGsClientIsReadBack(t *testing.T) {
	t.Parallel()
	full := npwg.NetworkStatus{
		Name: "ns/n", Interface: "net1", IPs: []string{"10.0.0.2"}, Mac: "02:00:00:00:00:01", Mtu: 1400, Default: true, Gateway: []string{"10.0.0.1"},
		DNS:        npwg.DNS{Nameservers: []string{"10.0.0.1"}, Domain: "d", Search: []string{"s"}, Options: []string{"o"}},
		DeviceInfo: &npwg.DeviceInfo{Type: "pci", Version: "1.1.0", Pci: &npwg.PciDevice{PciAddress: "a", Vhostnet: "b", RdmaDevice: "c", PfPciAddress: "d", RepresentorDevice: "e"}},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	client := fake.NewClientset(pod)
	nodetest.OK(t, utils.SetNetworkStatus(client, pod, []npwg.NetworkStatus{full}))
	got, err := client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
	nodetest.OK(t, err)
	var ours []status.Network
	decoder := json.NewDecoder(strings.NewReader(got.Annotations[status.NetworkStatusAnnotation]))
	decoder.DisallowUnknownFields()
	nodetest.OK(t, decoder.Decode(&ours))
	text, _ := status.Annotation(ours)
	nodetest.Equal(t, "read back", readBack(t, text), []npwg.NetworkStatus{full})
}

func FuzzNetworkStatusIsTheSameToNPWGsClient(f *testing.F) {
	g := generator{rand.New(rand.NewPCG(7, 8))}
	for range 50 {
		f.Add(g.result(), g.oneIn(2))
	}
	f.Fuzz(func(t *testing.T, text string, isDefault bool) {
		if len(text) < 4096 {
			sameStatus(t, new(rows), text, isDefault)
		}
	})
}
