package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	npwg "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// A reading is the result of parsing an annotation.
type reading struct {
	elements []npwg.NetworkSelectionElement
	err      error
}

var errPanic = errors.New("panic")

// byClient reads an annotation with NPWG's client.
func byClient(text string) (r reading) {
	defer func() {
		if recover() != nil {
			r = reading{err: errPanic}
		}
	}()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Annotations: map[string]string{npwg.NetworkAttachmentAnnot: text}}}
	list, err := utils.ParsePodNetworkAnnotation(pod)
	if _, none := errors.AsType[*npwg.NoK8sNetworkError](err); none {
		return reading{}
	}
	for _, e := range list {
		r.elements = append(r.elements, *e)
	}
	r.err = err
	return r
}

// byUs reads an annotation with package netconf, as elements of NPWG's client.
func byUs(text string) (r reading) {
	list, err := netconf.ParseSelection(text)
	if err != nil {
		return reading{err: err}
	}
	for _, s := range list {
		e := npwg.NetworkSelectionElement{
			Name: s.Name, Namespace: s.Namespace, InterfaceRequest: s.Interface, MacRequest: s.MAC,
			InfinibandGUIDRequest: s.InfinibandGUID, IPRequest: s.IPs, IPAMClaimReference: s.IPAMClaimReference,
		}
		if e.Namespace == "" {
			e.Namespace = "default"
		}
		for raw, into := range map[*json.RawMessage]any{&s.PortMappings: &e.PortMappingsRequest, &s.Bandwidth: &e.BandwidthRequest} {
			if *raw != nil {
				_ = json.Unmarshal(*raw, into) // what fails here fails in the client
			}
		}
		if s.CNIArgs != nil {
			e.CNIArgs = &map[string]any{}
			for key, raw := range s.CNIArgs {
				var value any
				r.err = errors.Join(r.err, json.Unmarshal(raw, &value))
				(*e.CNIArgs)[key] = value
			}
		}
		for _, gw := range s.DefaultRoute {
			e.GatewayRequest = append(e.GatewayRequest, gw.AsSlice())
		}
		r.elements = append(r.elements, e)
	}
	return r
}

// canonical returns elements as JSON, with the spellings of nothing and of a gateway taken away.
func canonical(t *testing.T, elements []npwg.NetworkSelectionElement) []any {
	t.Helper()
	var list []any
	for _, e := range elements {
		if e.BandwidthRequest != nil && *e.BandwidthRequest == (npwg.BandwidthEntry{}) {
			e.BandwidthRequest = nil
		}
		var gateways []string
		for _, gw := range e.GatewayRequest {
			a, _ := netip.AddrFromSlice(gw)
			gateways = append(gateways, a.Unmap().String())
		}
		e.GatewayRequest = nil
		list = append(list, []any{plain(t, e), gateways})
	}
	return list
}

// Words in our errors for annotations that NPWG's client reads, and the rows of README.md.
var stricterAnnotations = [][2]string{
	{"missing", "no name, or an empty item of a list"},
	{"two values", "a key with two values"},
	{"not UTF-8", "bytes that are not UTF-8"},
	{"are selected, at most", "a size above a limit"},
	{"longer than", "a size above a limit"},
	{"not the name of a network", "a name that no network, namespace or interface can have"},
	{`name"`, "a name that no network, namespace or interface can have"},
	{`.name`, "a name that no network, namespace or interface can have"},
	{"is not a DNS label", "a name that no network, namespace or interface can have"},
	{"interface", "a name that no network, namespace or interface can have"},
	{"ipam-claim-reference", "`ips` and a claim, or a claim's name that is none"},
	{"mac", "an address that no interface can have"},
	{"infiniband-guid", "an address that no interface can have"},
	{"ips[", "an address that no interface can have"},
	{"default-route[", "a gateway that is none, or a second one of a family"},
	{"default-route", "gateways in two elements"},
	{"portMappings", "a port or protocol that is none"},
	{"bandwidth", "a rate below 0, or a burst without a rate"},
}

// Words in errors of NPWG's client for annotations that we read, and the rows.
var milderAnnotations = [][2]string{
	{"did not match comma-delimited format", "in the list form, a name with a dot, an underscore or upper case"},
}

// The rows for annotations that both read, and mean different things by.
const (
	rowNull  = "`null`"
	rowBlank = "nothing but white space"
	rowPanic = "`null` as an element"
)

func rowOf(text string, words [][2]string) (string, bool) {
	for _, w := range words {
		if strings.Contains(text, w[0]) {
			return w[1], true
		}
	}
	return "", false
}

// sameAnnotation fails unless both make the same of an annotation, or the difference has a row.
func sameAnnotation(t *testing.T, met *rows, text string) (read bool) {
	t.Helper()
	return compareReadings(t, met, "NPWG's client", text, byClient(text))
}

// compareReadings compares what who makes of an annotation with what we make of it.
func compareReadings(t *testing.T, met *rows, who, text string, theirs reading) (read bool) {
	t.Helper()
	ours := byUs(text)
	switch trimmed := strings.TrimSpace(text); {
	case theirs.err == errPanic && ours.err != nil:
		met.meet(rowPanic)
	case theirs.err != nil && ours.err != nil:
	case trimmed == "null" && ours.err == nil && ours.elements == nil:
		met.meet(rowNull)
	case trimmed == "" && ours.err == nil && ours.elements == nil:
		if text != "" {
			met.meet(rowBlank)
		}
	case theirs.err != nil:
		row, ok := rowOf(theirs.err.Error(), milderAnnotations)
		if !ok {
			t.Errorf("%s: we read it, %s: %v", text, who, theirs.err)
		}
		met.meet(row)
	case ours.err != nil:
		row, ok := rowOf(ours.err.Error(), stricterAnnotations)
		if !ok {
			t.Errorf("%s: %s reads it, we: %v", text, who, ours.err)
		}
		met.meet(row)
	default:
		if d := cmp.Diff(canonical(t, theirs.elements), canonical(t, ours.elements)); d != "" {
			t.Errorf("%s (-%s +metacni):\n%s", text, who, d)
		}
		return true
	}
	return false
}

// annotation returns an annotation in one of its forms.
func (g generator) annotation() string {
	if g.oneIn(60) {
		return g.pick([]string{"", " ", "null", " null\n", "[]", "{}", `"a"`, "[null]", `[{"name":"a"},null]`, `{"name":"a"}`, "[" + strings.Repeat(`{"name":"a"},`, 70) + `{"name":"a"}]`}, nil)
	}
	var parts []string
	n := 1 + g.IntN(3)
	if g.oneIn(3) {
		for range n {
			parts = append(parts, g.item())
		}
		return strings.Join(parts, g.pick([]string{",", ", ", " ,\n"}, []string{",,"}))
	}
	for range n {
		parts = append(parts, g.element())
	}
	return "[" + strings.Join(parts, ",") + "]"
}

var (
	goodNames = []string{"blue", "red-1", "a"}
	badNames  = []string{"", "Blue", "b.c", "b_c", "-a", "a/b", "../a", "ä", "a b", strings.Repeat("a", 64), strings.Repeat("n", 2000), "a\xff"}
)

// item returns an element of the list form.
func (g generator) item() string {
	text := g.pick(goodNames, badNames)
	if g.oneIn(3) {
		text = g.pick([]string{"ns", " ns "}, badNames) + "/" + text
	}
	if g.oneIn(3) {
		text += "@" + g.pick([]string{"net1", "eth0", " net1 "}, []string{"", "Net1", "net1.100", "a_b", "a@b", "a/b", "interface-of-16b", "a b", "a:b"})
	}
	return text
}

// element returns an element of the array form.
func (g generator) element() string {
	quoted := func(good, bad []string) string { return fmt.Sprintf("%q", g.pick(good, bad)) }
	keys := [][2]string{{"name", strings.ReplaceAll(quoted(goodNames, badNames), `\xff`, "\xff")}}
	if g.oneIn(60) {
		keys = nil
	}
	maybe := func(n int, key, value string) {
		if g.oneIn(n) {
			keys = append(keys, [2]string{key, g.pick([]string{value}, []string{"null", "7", `"x"`, "{}", "[]", "[7]", "true", `""`})})
		}
	}
	list := func(good, bad []string) string {
		var l []string
		for range g.IntN(3) {
			l = append(l, quoted(good, bad))
		}
		return "[" + strings.Join(l, ",") + "]"
	}
	maybe(3, "namespace", quoted([]string{"ns", "kube-system"}, badNames))
	maybe(3, "interface", quoted([]string{"net1", "eth0", "net1.100"}, []string{"", "a/b", "a:b", "interface-of-16b", ".."}))
	maybe(4, "mac", quoted([]string{"02:00:00:00:00:01", "02-00-00-00-00-0A"}, []string{"", "x", "00:00:00:00:00:00", "01:00:00:00:00:00", "02:00:00:00:00:00:00:01"}))
	maybe(6, "infiniband-guid", quoted([]string{"02:00:00:00:00:00:00:01"}, []string{"", "x", "02:00:00:00:00:01", "00:00:00:00:00:00:00:00"}))
	maybe(3, "ips", list([]string{"10.0.0.5", "10.0.0.6/24", "fd00::5", "fd00::6/64"}, []string{"", "x", "0.0.0.0", "224.0.0.1", "10.0.0.5/33", "fe80::1%eth0", "::ffff:10.0.0.5"}))
	maybe(5, "default-route", list([]string{"10.0.0.1", "fd00::1", "::ffff:10.0.0.9"}, []string{"", "x", "0.0.0.0", "fe80::1%eth0", "10.0.0.1/24", "010.0.0.1"}))
	maybe(9, "ipam-claim-reference", quoted([]string{"claim", "claim.x"}, []string{"", "A", "a/b"}))
	maybe(5, "cni-args", g.pick([]string{`{}`, `{"a":1,"b":[true,null,"x"]}`, `{"a":{"A":1,"a":2}}`, `{"n":9007199254740993}`, `{"s":"<&>\u2028"}`}, []string{`{"a":1,"a":2}`, `{"n":1e999}`, `{"s":"\ud800"}`}))
	number := func(good ...string) string {
		return g.pick(good, []string{"0", "-1", "1.5", "80.0", "8e1", "1e999", `"80"`, "70000", "null", "9223372036854775808"})
	}
	maybe(4, "portMappings", g.pick([]string{"[]", "[" + g.object([][2]string{{g.pick([]string{"hostPort", "HostPort"}, nil), number("80", "8080")}, {"containerPort", number("80", "443")}, {"protocol", quoted([]string{"tcp", "UDP", "sctp", ""}, []string{"icmp"})}, {"hostIP", g.pick([]string{`""`, `"10.0.0.1"`}, []string{`"x"`, "7"})}}) + "]"}, []string{"[null]", "[{}]", `[{"hostPort":80,"hostport":81,"containerPort":1}]`}))
	rates := [][2]string{{"ingressRate", number("1000", "0")}, {"egressRate", number("1000", "0")}}
	if g.oneIn(2) {
		rates = append(rates, [2]string{"ingressBurst", number("2000")}, [2]string{"EgressBurst", number("2000", "0")})
	}
	maybe(4, "bandwidth", g.pick([]string{"{}", g.object(rates)}, []string{`{"ingressBurst":5}`, `{"ingressRate":1,"IngressRate":2}`}))
	maybe(6, g.pick([]string{"unknown", "vendor.x/y"}, nil), g.pick([]string{"1", "{}", "null"}, []string{"1e999"}))
	if len(keys) > 0 && g.oneIn(8) { // a key in another spelling, or twice
		k := keys[g.IntN(len(keys))]
		again := [2]string{strings.ToUpper(k[0][:1]) + k[0][1:], k[1]}
		if g.oneIn(4) {
			again[1] = `"other"`
		}
		keys = append(keys, again)
	}
	return g.object(keys)
}

func TestAnAnnotationMeansTheSameToNPWGsClient(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(1, 2))}
	var met rows
	const all = 8000
	read := 0
	for range all {
		if sameAnnotation(t, &met, g.annotation()) {
			read++
		}
	}
	if read < all/4 || read > all*9/10 {
		t.Errorf("%d of %d annotations are read by both: the generator has become one-sided", read, all)
	}
	want := map[string]bool{rowNull: true, rowBlank: true, rowPanic: true}
	for _, w := range slices.Concat(stricterAnnotations, milderAnnotations) {
		want[w[1]] = true
	}
	met.check(t, "The annotation of a pod", slices.Collect(maps.Keys(want)))
	nodetest.Equal(t, "the annotation of NPWG's client", npwg.NetworkAttachmentAnnot, "k8s.v1.cni.cncf.io/networks")
	t.Logf("%d of %d annotations are read by both", read, all)
}

func FuzzAnAnnotationMeansTheSameToNPWGsClient(f *testing.F) {
	g := generator{rand.New(rand.NewPCG(3, 4))}
	for range 50 {
		f.Add(g.annotation())
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) < 4096 {
			sameAnnotation(t, new(rows), text)
		}
	})
}
