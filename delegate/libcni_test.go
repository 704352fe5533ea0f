package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// An Exec of the cni library is one of ours, and the other way round: the Execs that
// users have, and libcni with a Process.
var (
	_ delegate.Exec = invoke.Exec(nil)
	_ invoke.Exec   = delegate.Exec(nil)
)

// Plugins cannot tell an Invoker from libcni: for generated networks and
// runtime arguments, both send the same stdin and the same CNI_ variables, in
// the same order, and read back the same result. The differences are these, and
// [normal] takes them away:
//
//   - the environment is sorted; libcni's order changes from call to call;
//   - numbers are kept as written; libcni sends 9007199254740993 as ...992:
//     they are compared as libcni has them;
//   - unknown keys of results are kept on the way to prevResult; here the
//     plugins print none;
//   - CNI variables that are empty may be absent from GC and STATUS;
//   - a network without a cniVersion is of "0.1.0"; libcni sends "";
//   - a key that is set on the way, such as prevResult, replaces the same key in
//     another spelling; libcni sends both, and the plugin has the choice;
//   - CHECK of a network older than 0.4.0 is an error in libcni and nothing to
//     do here: neither runs anything.
//
// Undoing is not compared: libcni undoes nothing.
func TestSameAsLibcni(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			t.Parallel()
			g := generator{rand.New(rand.NewPCG(seed, 1))}
			g.compare(t)
		})
	}
}

func FuzzSameAsLibcni(f *testing.F) {
	f.Add(uint64(1000))
	f.Fuzz(func(t *testing.T, seed uint64) {
		generator{rand.New(rand.NewPCG(seed, 1))}.compare(t)
	})
}

// A generator makes up networks and runtime arguments.
type generator struct{ *rand.Rand }

func (g generator) coin() bool { return g.IntN(2) == 0 }

func pick[T any](g generator, of ...T) T { return of[g.IntN(len(of))] }

var versions = []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func (g generator) value(depth int) any {
	switch n := g.IntN(8); {
	case n == 0 && depth > 0:
		return []any{g.value(depth - 1), g.value(depth - 1)}
	case n == 1 && depth > 0:
		return map[string]any{"a": g.value(depth - 1), "b<&>": g.value(depth - 1)}
	case n == 2:
		return json.Number(pick(g, "0", "1500", "9007199254740993", "1.50e+2", "-0.1"))
	case n == 3:
		return g.coin()
	case n == 4:
		return nil
	}
	return pick(g, "", "10.1.0.0/24", "ä <&> \u2028", "k=v;x", "/run/netns/c1")
}

func (g generator) plugin() map[string]any {
	p := map[string]any{"type": pick(g, "bridge", "ptp", "tuning")}
	for _, key := range []string{"mtu", "ipam", "vendor.example/x", "args", "dns"} {
		if g.IntN(3) > 0 {
			continue
		}
		p[key] = g.value(2)
		switch key { // what libcni decodes
		case "ipam":
			p[key] = map[string]any{"type": "host-local", "subnet": "10.1.0.0/24", "more": g.value(2)}
		case "dns":
			p[key] = map[string]any{"nameservers": []string{"10.0.0.1"}}
		}
	}
	if g.coin() {
		p["capabilities"] = map[string]bool{"portMappings": g.coin(), "mac": g.coin(), "io.kubernetes.cri.pod-annotations": g.coin()}
	}
	if g.IntN(4) == 0 {
		p["runtimeConfig"] = map[string]any{"mac": "own"}
	}
	if g.IntN(6) == 0 {
		p["prevResult"] = map[string]any{"cniVersion": "1.0.0", "x": g.value(1)}
	}
	if g.IntN(3) == 0 { // a key in another spelling, with the same value or in its place
		key := pick(g, "type", "capabilities", "runtimeConfig", "prevResult", "mtu", "name", "cniVersion")
		if value, ok := p[key]; ok {
			if g.coin() {
				delete(p, key)
			}
			p[strings.ToUpper(key[:1])+key[1:]] = value
		}
	}
	return p
}

// network returns a list as JSON.
func (g generator) network() []byte {
	plugins := []any{g.plugin()}
	for range g.IntN(3) {
		plugins = append(plugins, g.plugin())
	}
	network := map[string]any{"name": pick(g, "blue", "red.net-1", "a"), "plugins": plugins, "x-list": g.value(1)}
	if g.IntN(4) == 0 {
		network["disableCheck"], network["disableGC"] = g.coin(), g.coin()
	}
	if g.IntN(4) == 0 {
		network["cniVersions"] = []string{"0.4.0", pick(g, "0.3.1", "1.0.0", "1.1.0", "9.9.9")}
	}
	if v := pick(g, versions...); v != "" {
		network["cniVersion"] = v
	}
	conf, _ := json.Marshal(network)
	if g.IntN(4) == 0 { // a key twice
		conf = fmt.Appendf(nil, `{"name":%q,%s`, network["name"], conf[1:])
	}
	return conf
}

// result returns what plugins print: in the network's version, or in another.
func (g generator) result() delegatetest.Fake {
	r := &types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: "eth0", Mac: "02:00:00:00:00:01", Sandbox: "/run/netns/c1"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(0), Address: mustCIDR("10.1.0.2/24"), Gateway: mustCIDR("10.1.0.1/32").IP}},
		DNS:        types.DNS{Nameservers: []string{"10.0.0.1"}},
	}
	own := delegatetest.Result(r)
	if g.IntN(3) > 0 {
		return own
	}
	other := pick(g, "0.3.1", "0.4.0", "1.0.0", "1.1.0")
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command != "ADD" {
			return own(ctx, c)
		}
		converted, err := r.GetAsVersion(other)
		if err != nil {
			return nil, err
		}
		return json.Marshal(converted)
	}
}

func (g generator) exec() *delegatetest.Exec {
	p := g.result()
	return &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": p, "ptp": p, "tuning": p}}
}

// runtime returns what a runtime says of the container, in both forms.
func (g generator) runtime() (delegate.Attachment, *libcni.RuntimeConf) {
	rt := &libcni.RuntimeConf{ContainerID: pick(g, "c1", "0a.b-c"), NetNS: pick(g, "/run/netns/c1", ""), IfName: pick(g, "eth0", "net1")}
	var args []string
	for _, kv := range [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "p"}, {"X", "a=b"}} {
		if g.coin() {
			rt.Args = append(rt.Args, kv)
			args = append(args, kv[0]+"="+kv[1])
		}
	}
	a := delegate.Attachment{ContainerID: rt.ContainerID, NetNS: rt.NetNS, IfName: rt.IfName, Args: strings.Join(args, ";")}
	for _, name := range []string{"portMappings", "mac", "io.kubernetes.cri.pod-annotations", "undeclared"} {
		if !g.coin() {
			continue
		}
		if a.CapabilityArgs == nil {
			a.CapabilityArgs, rt.CapabilityArgs = map[string]json.RawMessage{}, map[string]any{}
		}
		v := g.value(2)
		rt.CapabilityArgs[name] = v
		a.CapabilityArgs[name], _ = json.Marshal(v)
	}
	return a, rt
}

func (g generator) compare(t *testing.T) {
	t.Helper()
	conf := g.network()
	a, rt := g.runtime()
	a.Network = nodetest.Parse(string(conf))
	ours := g.exec()
	theirs := &delegatetest.Exec{Plugins: ours.Plugins}
	path := []string{"/opt/cni/bin", "/usr/lib/cni"}
	iv := &delegate.Invoker{Exec: ours, Path: path, Env: os.Environ()}
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		t.Fatalf("libcni does not take %s: %v", conf, err)
	}
	valid := []types.GCAttachment{}
	for i := range g.IntN(3) {
		valid = append(valid, types.GCAttachment{ContainerID: fmt.Sprint("c", i), IfName: "eth0"})
	}
	cni := libcni.NewCNIConfigWithCacheDir(path, t.TempDir(), theirs)

	done, ourErr := iv.Add(t.Context(), a)
	r, theirErr := cni.AddNetworkList(t.Context(), list, rt)
	sameOutcome(t, "ADD", ourErr, theirErr)
	if ourErr == nil {
		var our, their any
		text, err := json.Marshal(r)
		if err = errors.Join(err, json.Unmarshal(done.Result, &our), json.Unmarshal(text, &their)); err != nil {
			t.Fatal(err)
		}
		nodetest.Equal(t, "result", our, their)
	}
	ourErr, theirErr = iv.Check(t.Context(), done), cni.CheckNetworkList(t.Context(), list, rt)
	if !errors.Is(theirErr, libcni.ErrorCheckNotSupp) {
		sameOutcome(t, "CHECK", ourErr, theirErr)
	}
	sameOutcome(t, "STATUS", iv.Status(t.Context(), a.Network), cni.GetStatusNetworkList(t.Context(), list))
	sameOutcome(t, "DEL", iv.Del(t.Context(), done), cni.DelNetworkList(t.Context(), list, rt))
	// After DEL, so that libcni finds no attachment of its own to remove.
	sameOutcome(t, "GC", iv.GC(t.Context(), a.Network, valid), cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: valid}))

	nodetest.Equal(t, string(conf), normal(t, ours.Calls(), true), normal(t, theirs.Calls(), false))
}

func sameOutcome(t *testing.T, command string, ours, theirs error) {
	t.Helper()
	if (ours == nil) != (theirs == nil) {
		t.Errorf("%s: ours %v, libcni's %v", command, ours, theirs)
	}
}

// A sent is a call as it is compared.
type sent struct {
	Call  string
	Env   map[string]string
	Stdin any
}

// normal takes away the differences that are meant to be.
func normal(t *testing.T, calls []delegatetest.Invocation, ours bool) []sent {
	t.Helper()
	var list []sent
	for _, c := range calls {
		if ours && !slices.IsSorted(c.Env) {
			t.Errorf("environment of %s is not sorted", c)
		}
		s := sent{Call: c.String(), Env: environ(c)}
		if c.Command == "GC" || c.Command == "STATUS" {
			for _, key := range []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"} {
				if s.Env[key] == "" {
					delete(s.Env, key)
				}
			}
		}
		var keys map[string]any
		if err := json.Unmarshal(c.Stdin, &keys); err != nil {
			t.Fatalf("%s was given %s: %v", c, c.Stdin, err)
		}
		if !ours && keys["cniVersion"] == "" {
			keys["cniVersion"] = "0.1.0"
		}
		for key, value := range keys {
			exact := strings.ToLower(key[:1]) + key[1:]
			set, ok := keys[exact]
			if key == exact || !ok {
				continue
			}
			if ours && !cmp.Equal(value, set) {
				t.Errorf("%s was given %q and %q: %s", c, key, exact, c.Stdin)
			}
			delete(keys, key)
		}
		s.Stdin = keys
		list = append(list, s)
	}
	return list
}
