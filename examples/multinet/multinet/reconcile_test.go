package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// team is a namespace with definitions of all kinds.
var team = map[string]string{
	"a/blue": `{"type":"macvlan"}`, "a/red": `{"type":"tuning"}`, "b/blue": `{"type":"tuning"}`, "a/bad": `{`,
	"a/rich": `{"type":"macvlan","capabilities":{"ips":true,"mac":true,"bandwidth":true,"portMappings":true,"x":true,"io.kubernetes.cri.pod-annotations":true}}`,
	"a/full": `{"type":"full"}`,
}

// A runningPod is the pod a/web in the container c1, whose annotation is edited.
type runningPod struct {
	*host
	networks string // the annotation
	err      error  // of reading it
	keys     string // of the configuration
	replace  bool
}

// start attaches the pod with what it selects in the beginning.
func start(t *testing.T, networks string, groups ...string) *runningPod {
	t.Helper()
	var asked []string
	return startIn(t, clusterOf(&asked, team), networks, groups...)
}

// startIn is start in another cluster.
func startIn(t *testing.T, c Cluster, networks string, groups ...string) *runningPod {
	t.Helper()
	p := &runningPod{host: newHost(t, "1.0.0"), networks: networks, keys: keys(append(groups, bridge)...)}
	p.cluster = c
	p.cluster.Annotations = func(_ context.Context, pod nad.Pod) (map[string]string, error) {
		if pod.Name != "web" || pod.UID != "u1" {
			t.Errorf("asked for %s %s", pod, pod.UID)
		}
		return map[string]string{nad.NetworksAnnotation: p.networks, nad.SourceAnnotation: "api"}, p.err
	}
	p.mustRun(t, "ADD", p.keys, podOf("a"))
	p.attached(t)
	return p
}

func (p *runningPod) reconcile(t *testing.T) ([]lifecycle.Reconciled, error) {
	t.Helper()
	k := scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}
	return Reconcile(t.Context(), p.process(), skel.CmdArgs{StdinData: []byte(p.conf(p.keys))}, p.cluster, k, p.replace)
}

func (p *runningPod) mustReconcile(t *testing.T, want ...string) {
	t.Helper()
	if _, err := p.reconcile(t); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, p.attached(t)); diff != "" {
		t.Errorf("calls for %q (-want +got):\n%s", p.networks, diff)
	}
}

func TestEditsOfTheAnnotationAreFollowed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys, before, after string
		replace             bool
		want                []string
	}{
		"nothing":                           {before: "blue,red@x", after: "red@x, a/blue"},
		"one more":                          {before: "blue", after: "blue,red", want: []string{"ADD tuning net2 red"}},
		"one less":                          {before: "blue,red", after: "red", want: []string{"DEL macvlan net1 blue"}},
		"none":                              {before: "blue,red", want: []string{"DEL tuning net2 red", "DEL macvlan net1 blue"}},
		"the first":                         {after: "blue", want: []string{"ADD macvlan net1 blue"}},
		"the same of another namespace":     {before: "blue", after: "b/blue", want: []string{"DEL macvlan net1 blue", "ADD tuning net1 blue"}},
		"interfaces swapped":                {before: "blue@x,red@y", after: "red@x,blue@y", want: []string{"DEL tuning y red", "DEL macvlan x blue", "ADD tuning x red", "ADD macvlan y blue"}},
		"other options":                     {before: "rich@x", after: `[{"name":"rich","interface":"x","mac":"02:00:00:00:00:01"}]`},
		"other options, which replace":      {before: "rich@x", after: `[{"name":"rich","interface":"x","mac":"02:00:00:00:00:01"}]`, replace: true, want: []string{"DEL macvlan x rich", "ADD macvlan x rich"}},
		"other options, in another order":   {before: `[{"name":"rich","interface":"x","bandwidth":{"ingressRate":1,"ingressBurst":2}}]`, after: `[{"bandwidth": {"ingressBurst":2,"ingressRate":1},"default-route":[],"interface":"x","name":"rich"}]`, replace: true},
		"a name taken by a default network": {keys: `"defaultNetworks":["other"]`, after: "blue", want: []string{"ADD macvlan net2 blue"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, tt.before, strings.Fields(tt.keys)...)
			p.networks, p.replace = tt.after, tt.replace
			p.mustReconcile(t, tt.want...)
			p.mustReconcile(t)
			p.mustRun(t, "CHECK", p.keys)
			p.mustRun(t, "DEL", p.keys)
			p.clean(t)
		})
	}
}

// What the plugins receive does not depend on when a pod selects a network.
func TestNetworkSelectedLaterReceivesWhatAnADDPasses(t *testing.T) {
	t.Parallel()
	const asked = `[{"name":"rich","interface":"x","mac":"02:00:00:00:00:01","ips":["10.0.0.5/24"],"bandwidth":{"ingressRate":1},"cni-args":{"k":1.0}},{"name":"blue","namespace":"b","interface":"y"}]`
	for name, keys := range map[string]string{
		"as usual":         `"annotations":"api","capabilities":{"x":true},"runtimeConfig":{"x":{"y":1.0},"mac":"02:00:00:00:00:09","portMappings":[{"hostPort":1,"containerPort":2}]}`,
		"with legacy args": `"annotations":"api","legacyArgs":true`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			received := func(p *runningPod) (all []string) {
				for _, c := range p.Exec.Calls() {
					if c.Command == "ADD" && c.IfName != "eth0" {
						all = append(all, c.String()+" "+c.Args+" "+c.ContainerID+" "+strings.TrimPrefix(c.NetNS, p.Dir)+" "+string(c.Stdin))
					}
				}
				return append(all, p.origins(t)...)
			}
			first := start(t, asked, keys)
			later := start(t, "", keys)
			later.networks = asked
			if _, err := later.reconcile(t); err != nil {
				t.Error(err)
			}
			nodetest.Equal(t, "at the start and later", received(later), received(first))
		})
	}
}

// The primary, the networks of the configuration and those that a request has attached
// are not the pod's to detach, nor does it need to select them.
func TestOnlySelectedNetworksAreDetached(t *testing.T) {
	t.Parallel()
	p := start(t, "blue", `"defaultNetworks":["fast"]`)
	p.mustSecondary(t, "ADD", green, wire.Attributes{})
	p.attached(t)
	p.networks = ""
	p.mustReconcile(t, "DEL macvlan net2 blue")
	p.networks = "red"
	p.mustReconcile(t, "ADD tuning net2 red")
}

// A definition is needed to attach, and not to detach.
func TestNetworkIsDetachedWithoutItsDefinition(t *testing.T) {
	t.Parallel()
	p := start(t, "blue,red")
	var asked []string
	p.cluster.Definition = down(&asked).Definition
	p.networks = "red"
	p.mustReconcile(t, "DEL macvlan net1 blue")
	if asked != nil {
		t.Errorf("asked for %q", asked)
	}
	p.networks = "blue,red"
	_, err := p.reconcile(t)
	nodetest.Fails(t, err, 11, "the API is away", `"blue"`)
}

// What a pod may not have, or not while it runs, is an error of its own: the others are
// attached, and nothing is detached because of it.
func TestSelectionThatIsRefusedStopsNoOther(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		selection, keys string
		code            uint
		words           []string
	}{
		"default-route":              {selection: `{"name":"rich","interface":"x","default-route":["10.0.0.1"]}`, code: 7, words: []string{`"rich"`, "default-route", "restart the pod"}},
		"a device of nobody":         {selection: `{"name":"device"}`, code: 7, words: []string{`"device"`, "vendor/nic", "kubelet"}},
		"no definition":              {selection: `{"name":"none"}`, code: 7, words: []string{`"none"`}},
		"a definition that is wrong": {selection: `{"name":"bad"}`, code: 6, words: []string{`"bad"`}},
		"another namespace":          {selection: `{"name":"blue","namespace":"b"}`, keys: `"namespaceIsolation":true`, code: 7, words: []string{"namespaceIsolation"}},
		"an address without a use":   {selection: `{"name":"blue","ips":["10.0.0.1"]}`, code: 7, words: []string{`"ips"`}},
		"a plugin that fails":        {selection: `{"name":"full"}`, code: 107, words: []string{"no free device"}},
		"an interface in use":        {selection: `{"name":"blue","interface":"eth0"}`, code: 7, words: []string{"eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "rich@x", strings.Fields(tt.keys)...)
			definition := p.cluster.Definition
			p.cluster.Definition = func(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
				if r.Name == "device" {
					return nad.Definition{Ref: r, Config: `{"type":"macvlan"}`, Resource: "vendor/nic"}, nil
				}
				return definition(ctx, r, use)
			}
			p.replace = true
			p.networks = `[{"name":"rich","interface":"x"},` + tt.selection + `,{"name":"red"}]`
			if strings.Contains(tt.selection, `"x"`) {
				p.networks = `[` + tt.selection + `,{"name":"red"}]`
			}
			done, err := p.reconcile(t)
			nodetest.Fails(t, err, tt.code, tt.words...)
			got := p.attached(t)
			if len(done) != 2 || done[0].Err == nil || done[1].Err != nil || len(got) == 0 || got[len(got)-1] != "ADD tuning net1 red" {
				t.Errorf("done %+v, with %q", done, got)
			}
			if live := p.Exec.Live(); len(live) != 3 {
				t.Errorf("alive: %q", live)
			}
		})
	}
}

// Where nobody knows what is wanted, or why something is attached, nothing changes.
func TestReconcileChangesNothingInDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*testing.T, *runningPod)
		code  uint
		words []string
	}{
		"an annotation that cannot be parsed": {func(_ *testing.T, p *runningPod) { p.networks = "[{" }, 6, []string{nad.NetworksAnnotation}},
		"the API is away":                     {func(_ *testing.T, p *runningPod) { p.err = types.NewError(11, "the API is away", "") }, 11, []string{"a/web", "away"}},
		"no record": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.mustRun(t, "DEL", p.keys)
			p.attached(t)
		}, 7, nil},
		"a configuration that is wrong": {func(_ *testing.T, p *runningPod) { p.keys += `,"globalNamespaces":"?"` }, 7, []string{"globalNamespaces"}},
		"a record without origins": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.rerecord(t, "eth0", func(as []delegate.Attachment) { as[1].Origin = nil })
		}, 7, []string{"does not say", "net1"}},
		"a record of a later version": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.rerecord(t, "eth0", func(as []delegate.Attachment) { as[1].Origin = json.RawMessage(`{"use":"selected","selection":[]}`) })
		}, 7, []string{"does not say", "net1"}},
		"no pod": {func(t *testing.T, p *runningPod) {
			t.Helper()
			p.rerecord(t, "eth0", func(as []delegate.Attachment) { as[0].Args = "" })
		}, 7, []string{"no pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "blue")
			p.networks = "red"
			tt.spoil(t, p)
			done, err := p.reconcile(t)
			nodetest.Fails(t, err, tt.code, tt.words...)
			if got := p.attached(t); len(done)+len(got) > 0 {
				t.Errorf("done %+v, with %q", done, got)
			}
			if strings.Contains(name, "a record") && !errors.Is(err, ErrNoOrigin) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// A plugin that hangs keeps the others from their turn for a minute only.
func TestNetworkThatHangsStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, "red@x")
		p.Exec.Plugins["macvlan"] = delegatetest.HangOn("ADD", p.Exec.Plugins["macvlan"])
		p.Exec.Plugins["tuning"] = delegatetest.HangOn("DEL", p.Exec.Plugins["tuning"])
		p.networks = "blue@y,b/blue@z"
		done, err := p.reconcile(t)
		nodetest.Fails(t, err, 11, "macvlan", "tuning")
		if len(done) != 3 || done[0].Err == nil || done[1].Err == nil || done[2].Err != nil {
			t.Errorf("done %+v", done)
		}
		nodetest.Equal(t, "calls", p.attached(t), []string{"DEL tuning x red", "ADD macvlan y blue", "DEL macvlan y blue", "ADD tuning z blue"})
	})
}

// rerecord makes the record of c1 with other attachments.
func (p *runningPod) rerecord(t *testing.T, ifname string, change func([]delegate.Attachment)) {
	t.Helper()
	m := &lifecycle.Manager{Dir: p.state(), Invoker: &delegate.Invoker{Exec: p.Exec}, InterfaceNames: p.process().InterfaceNames}
	k := scratch.Key{Network: "multi", ContainerID: "c1", IfName: ifname}
	rs, err := m.Container(t.Context(), "c1")
	if err != nil || len(rs) != 1 {
		t.Fatalf("%d records, %v", len(rs), err)
	}
	var plan []delegate.Attachment
	for _, a := range rs[0].Attached {
		plan = append(plan, a.Attachment)
	}
	change(plan)
	err = m.Del(t.Context(), k, lifecycle.Removal{})
	if err == nil {
		_, err = m.Add(t.Context(), k, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)})
	}
	nodetest.OK(t, err)
	p.attached(t)
}

// A container that the runtime has replaced gets nothing more.
func TestOldContainerOfAPodGetsNoMoreNetworks(t *testing.T) {
	t.Parallel()
	p := start(t, "blue")
	p.mustRun(t, "ADD", p.keys, podOf("a"), func(a *skel.CmdArgs) { a.ContainerID = "c2" })
	p.mustRun(t, "ADD", p.keys, podOf("b"), func(a *skel.CmdArgs) { a.ContainerID = "c3" })
	p.attached(t)
	p.networks = "blue,red"
	_, err := p.reconcile(t)
	nodetest.Fails(t, err, 11, "newer container", "c2")
	nodetest.Equal(t, "calls", p.attached(t), nil)
	p.mustRun(t, "DEL", p.keys, func(a *skel.CmdArgs) { a.ContainerID = "c2" })
	p.attached(t)
	p.mustReconcile(t, "ADD tuning net2 red")
}

// Whatever a pod selects is recognized in the record: it would be attached again and
// again.
func FuzzSelectionsAreRecognized(f *testing.F) {
	for _, networks := range []string{
		"blue", "b/blue@x", `[{"name":"blue","cni-args":{"a":12345678901234567890,"<":1.0}}]`, `[{"name":"blue","cni-args":{},"default-route":[],"ips":[]}]`,
		`[{"name":"blue","bandwidth":{"ingressRate":1, "x":"\u003c"},"portMappings":[{"hostPort":1,"containerPort":2}]}]`, `[{"name":"blue","default-route":["fe80::1"],"ipam-claim-reference":"vm"}]`,
	} {
		f.Add(networks)
	}
	f.Fuzz(func(t *testing.T, networks string) {
		selections, err := netconf.ParseSelection(networks)
		if err != nil {
			return
		}
		for _, s := range selections {
			a := delegate.Attachment{Args: "K8S_POD_NAMESPACE=a", Origin: choice{use: nad.Selected, selection: s}.origin("")}
			got, mine := selectedFor(delegate.Attached{Attachment: a})
			want := selectionToCompare("a", s)
			if !mine || got.Network != want.Network || got.IfName != want.IfName || got.Options != want.Options {
				t.Errorf("%s is recorded as %s and recognized as %+v, want %+v", networks, a.Origin, got, want)
			}
		}
	})
}
