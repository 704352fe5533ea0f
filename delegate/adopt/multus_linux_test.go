package adopt_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

const (
	storage = `{"cniVersion":"1.0.0","name":"storage","type":"macvlan"}`
	fast    = `{"cniVersion":"1.0.0","name":"fast","plugins":[{"type":"ipvlan"}]}`
	ofMulti = `{"cniVersion":"1.0.0","name":"multus-cni-network","plugins":[{"type":"multus-shim"}]}`
)

// saved is one network as Multus saves it, with more keys.
func saved(conf, keys string) string {
	return fmt.Sprintf(`{"Conf":{"name":"x","type":"x","ipam":{},"dns":{}},"ConfList":{"plugins":null},"Name":"ns/x","IsFilterV4Gateway":false,"Bytes":%q%s}`,
		base64.StdEncoding.EncodeToString([]byte(conf)), keys)
}

// multus attaches c1 to networks as Multus does: name of the interface and
// configuration.
func (w *world) multus(networks ...string) {
	w.Helper()
	for i := 0; i < len(networks); i += 2 {
		w.attach("multus", asList(w, networks[i+1]), libcni.RuntimeConf{ContainerID: "c1", NetNS: unseen, IfName: networks[i], Args: [][2]string{{"K", networks[i]}}})
	}
}

// asList is a configuration as a list.
func asList(t testing.TB, conf string) string {
	t.Helper()
	n := nodetest.Parse(conf)
	list, err := n.MarshalJSON()
	nodetest.OK(t, err)
	return string(list)
}

// What Multus has attached to a container is one attachment of the runtime's,
// with all its networks in Multus's order, and removed in the opposite one. All
// that others have recorded of it goes with the record.
func TestWhatMultusAttached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+","+saved(fast, `,"ifnameRequest":"fast0"`)+"]")
	w.multus("eth0", cbr, "net1", storage, "fast0", fast, "late0", strings.Replace(fast, "fast", "late", 1))
	w.attach("cni", strings.Replace(ofMulti, "multus-shim", "bridge", 1), runtime(unseen))
	w.Write("cni/results/multus-cni-network-c1-eth0", strings.Replace(string(must(os.ReadFile(w.Path("cni/results/multus-cni-network-c1-eth0")))), b64(strings.Replace(ofMulti, "multus-shim", "bridge", 1)), b64(ofMulti), 1))
	w.multusOf("c2", "eth0")

	const all = " multi/c1/eth0 cbr:eth0 storage:net1 fast:fast0 late:late0"
	nodetest.Equal(t, "first", w.take(w.node.Attachments()), []string{"adopted" + all})
	nodetest.Equal(t, "again", w.take(w.node.Attachments()), []string{"recorded" + all})
	nodetest.OK(t, w.life.Check(t.Context(), eth0, ""))
	checks := len(w.Exec.Trace())
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.Removal{}))
	nodetest.Equal(t, "calls", w.Exec.Trace()[checks:], []string{"DEL ipvlan late0", "DEL ipvlan fast0", "DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0"})
	for _, c := range w.Exec.Calls() {
		if !strings.Contains(strings.Join(c.Env, " "), "CNI_ARGS=K="+c.IfName+" ") && !strings.HasSuffix(strings.Join(c.Env, " "), "CNI_ARGS=K="+c.IfName) || stdin(t, c, "prevResult") == "" {
			t.Errorf("%s: environment %q, stdin %s", c, c.Env, c.Stdin)
		}
	}
	for _, dir := range []string{"multus", "multus/results", "cni/results"} {
		for _, e := range must(os.ReadDir(w.Path(dir))) {
			if strings.Contains(e.Name(), "c1") {
				t.Errorf("%s/%s is left", dir, e.Name())
			}
		}
	}
	if !w.exists("multus/results/cbr-c2-eth0") {
		t.Error("the entry of another container is gone")
	}
}

// All networks of a container have the path that is confirmed, or at which nothing is: another one
// may lead to another container by now.
func TestNamespaceOfEachNetworkIsTheSame(t *testing.T) {
	t.Parallel()
	others, own := newNetNS(t, "02:00:00:00:00:01", "10.1.0.5/24"), newNetNS(t, "02:00:00:00:00:02", "10.1.0.6/24")
	for _, tt := range []struct{ name, first, second, want string }{
		{"one is gone, one is another's", unseen, others, unseen},
		{"one is another's, one is gone", others, unseen, unseen},
		{"one is another's", others, own, own},
		{"one is gone", unseen, own, own},
		{"both are another's", others, others, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.old(w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+"]"))
			for i, netns := range []string{tt.first, tt.second} {
				name, conf, ifName := "cbr", cbr, "eth0"
				if i == 1 {
					name, conf, ifName = "storage", asList(t, storage), "net1"
				}
				w.Write("multus/results/"+name+"-c1-"+ifName, fmt.Sprintf(
					`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":%q,"networkName":%q,"netns":%q,"result":{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.6/24"}]}}`,
					b64(conf), ifName, name, netns))
			}
			for a, err := range w.node.Attachments() {
				nodetest.OK(t, err)
				for _, d := range a.Attached {
					nodetest.Equal(t, d.IfName, d.NetNS, tt.want)
				}
				nodetest.Equal(t, "attached", len(a.Attached), 2)
			}
		})
	}
}

func (w *world) multusOf(id, ifname string) {
	w.attach("multus", cbr, libcni.RuntimeConf{ContainerID: id, NetNS: unseen, IfName: ifname})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Which interface the runtime asked for is what it has recorded. Runtimes ask for eth0.
func TestInterfaceOfTheRuntime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, state string
		attached    []string
		runtime     string // the name of the runtime's interface; empty: nothing is recorded
		want        string
	}{
		{"the runtime's", saved(cbr, ""), []string{"eth7", cbr}, "eth7", "multi/c1/eth7 cbr:eth7"},
		{"none", saved(cbr, ""), nil, "", "multi/c1/eth0 cbr:eth0"},
		{"one network twice", saved(cbr, "") + "," + saved(cbr, ""), []string{"eth7", cbr, "net1", cbr}, "eth7", "multi/c1/eth7 cbr:eth7 cbr:net1"},
		{"renamed by the pod", saved(cbr, `,"ifnameRequest":"x0"`), []string{"x0", cbr}, "eth0", "multi/c1/eth0 cbr:x0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.old(w.Write("multus/c1", "["+tt.state+"]"))
			w.multus(tt.attached...)
			w.attach("cni", strings.Replace(cbr, "cbr", "other", 1), runtime(unseen)) // not of Multus
			if tt.runtime != "" {
				entry := text("cniCacheV1", "c1", strings.ReplaceAll(ofMulti, "multus-cni-network", "m"), "null")
				w.Write("cni/results/m-c1-"+tt.runtime, strings.NewReplacer(`"eth0"`, `"`+tt.runtime+`"`, `"networkName":"cbr"`, `"networkName":"m"`).Replace(entry))
			}
			nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted " + tt.want})
		})
	}
}

// A container that Multus may be attaching is left to it, until that must have
// ended.
func TestMultusMayBeAtWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	state := w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+"]")
	want := []string{"skipped: $DIR/multus/c1: not all networks are recorded yet: the container may just be attached"}
	nodetest.Equal(t, "before", w.take(w.node.Attachments()), want)
	w.multus("eth0", cbr)
	nodetest.Equal(t, "between", w.take(w.node.Attachments()), want)
	w.old(state)
	nodetest.Equal(t, "after", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0 storage:net1"})
	for r := range w.life.Records(t.Context()) {
		if a := r.Attached[1]; a.NetNS != unseen || a.Args != "K=eth0" || a.Result != nil {
			t.Errorf("%+v", a)
		}
	}
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.Removal{}))
	nodetest.Equal(t, "calls", w.Exec.Trace(), []string{"DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0"})
}

// An entry of Multus's that cannot be understood keeps its container from being
// taken over without it.
func TestUnusableEntryOfMultus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Write("multus/c1", "["+saved(cbr, "")+"]")
	for _, file := range []string{"multus/results/cbr-c1-eth0", "multus/results/late-c1-late0"} {
		network := strings.Split(file[len("multus/results/"):], "-")
		body := text("cniCacheV1", "c1", "{", "null")
		body = strings.Replace(strings.Replace(body, `"networkName":"cbr"`, `"networkName":"`+network[0]+`"`, 1), `"eth0"`, `"`+network[2]+`"`, 1)
		path := w.Write(file, body)
		got := w.take(w.node.Attachments())
		if len(got) != 1 || !strings.HasPrefix(got[0], "skipped: $DIR/"+file+": ") {
			t.Errorf("%q", got)
		}
		nodetest.OK(t, os.Remove(path))
		w.multusOf("c1", "eth0")
	}
}

// A meta-plugin that has taken Multus's place may keep its records in the same
// directory. They are none of Multus's.
func TestRecordsBesideTheStateOfMultus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.life.Dir = w.node.MultusDir
	w.Write("multus/c1", "["+saved(cbr, "")+"]")
	w.multus("eth0", cbr)
	w.Write("multus/.tmp-1", "x")
	for _, want := range []string{"adopted", "recorded"} {
		nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{want + " multi/c1/eth0 cbr:eth0"})
	}
	if err := w.life.Del(t.Context(), eth0, lifecycle.Removal{}); err != nil || w.exists("multus/c1") {
		t.Errorf("the state is left: %v", err)
	}
	if got := w.take(w.node.Attachments()); got != nil {
		t.Errorf("after DEL: %q", got)
	}
}

// attachOurs attaches c1 to networks as our plugin does.
func (w *world) attachOurs(networks ...string) {
	w.Helper()
	var plan []delegate.Attachment
	for i, ifname := range []string{"eth0", "net1"}[:len(networks)] {
		n := nodetest.Parse(networks[i])
		plan = append(plan, delegate.Attachment{
			Network: n, ContainerID: "c1", NetNS: unseen, IfName: ifname, Args: "IgnoreUnknown=1;K8S_POD_NAME=p=q;flag",
			CapabilityArgs: map[string]json.RawMessage{"portMappings": []byte(`[{"hostPort":80}]`)},
		})
	}
	if _, err := w.life.Add(w.Context(), eth0, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)}); err != nil {
		w.Fatal(err)
	}
}

// What is given back is removed by the runtime as if it had attached it: libcni
// finds the configuration, the arguments and the result.
func TestWhatIsGivenBackIsTheRuntimes(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{cbr, `{"cniVersion":"0.4.0","name":"cbr","type":"bridge"}`} {
		w := newWorld(t)
		w.attachOurs(conf, storage)
		dirs := []string{w.Path("cni"), w.Path("cni2")}
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack("", dirs...)))
		if got := w.Exec.Trace()[len(w.Exec.Trace())-1]; got != "DEL macvlan net1" || len(w.states()) > 0 {
			t.Errorf("last was %s; records %q", got, w.states())
		}
		list, err := libcni.NetworkConfFromBytes([]byte(asList(t, conf)))
		nodetest.OK(t, err)
		for _, dir := range dirs {
			exec := &delegatetest.Exec{Plugins: w.Exec.Plugins}
			cni := libcni.NewCNIConfigWithCacheDir([]string{"/bin"}, dir, exec)
			attachments, err := cni.GetCachedAttachments("c1")
			if err != nil || len(attachments) != 1 {
				t.Fatalf("%v, %v", attachments, err)
			}
			want := &libcni.NetworkAttachment{
				ContainerID: "c1", Network: "cbr", IfName: "eth0", NetNS: unseen, Config: attachments[0].Config,
				CniArgs:        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "p=q"}, {"flag", ""}},
				CapabilityArgs: map[string]any{"portMappings": []any{map[string]any{"hostPort": 80.0}}},
			}
			nodetest.Equal(t, "cached", attachments[0], want)
			cached, err := libcni.NetworkConfFromBytes(attachments[0].Config)
			if err != nil || cached.Name != "cbr" || len(cached.Plugins) != len(list.Plugins) || cached.CNIVersion != list.CNIVersion {
				t.Errorf("configuration %s, %v", attachments[0].Config, err)
			}
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: unseen, IfName: "eth0"}
			result, err := cni.GetNetworkListCachedResult(list, rt)
			if err != nil || result == nil {
				t.Errorf("result %v, %v", result, err)
			}
			info, err := os.Stat(dir + "/results/cbr-c1-eth0")
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			nodetest.OK(t, cni.DelNetworkList(t.Context(), list, rt))
			if c := exec.Calls()[0]; c.Command != "DEL" || !strings.Contains(stdin(t, c, "prevResult"), "02:00:00:00:00:01") {
				t.Errorf("%s: %s", c, c.Stdin)
			}
		}
	}
}

// An attachment may have the name of the meta-plugin's own network: its entry is not
// taken for the one that nobody deletes any more.
func TestGivingBackANetworkWithOurName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attachOurs(`{"cniVersion":"1.0.0","name":"` + eth0.Network + `","type":"bridge"}`)
	nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack("", w.Path("cni"))))
	if !w.exists("cni/results/" + eth0.Network + "-c1-eth0") {
		t.Error("nothing is in the cache")
	}
	for _, caches := range [][]string{{w.Path("cni")}, {w.node.MultusDir}, {w.node.MultusDir + "/."}} { // of the runtime, or Multus has the same
		w = newWorld(t)
		w.attachOurs(`{"cniVersion":"1.0.0","name":"` + eth0.Network + `","type":"bridge"}`)
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(w.node.MultusDir, caches...)))
		if !w.exists("multus/results/" + eth0.Network + "-c1-eth0") {
			t.Error("nothing is in Multus's cache")
		}
	}
}

// What cannot be written stays recorded, and in the runtime's cache.
func TestGivingBackThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attachOurs(cbr)
	w.Write("cni", "")
	if err := w.life.Release(t.Context(), eth0, adopt.GiveBack("", w.Path("cni"))); err == nil {
		t.Error("no error")
	}
	nodetest.OK(t, os.Remove(w.Path("cni")))
	nodetest.OK(t, os.MkdirAll(w.Path("cni/results/cbr-c1-eth0/x"), 0o700))
	ours := "cni/results/" + eth0.Network + "-c1-eth0"
	w.Write(ours, "{}")
	if err := w.life.Release(t.Context(), eth0, adopt.GiveBack("", w.Path("cni"))); err == nil {
		t.Error("no error with a directory in the way")
	}
	if !w.exists(ours) {
		t.Error("the runtime has no entry any more")
	}
	nodetest.Equal(t, "records", w.states(), []string{"c1/eth0 added"})
	if err := adopt.GiveBack("", w.Path("cni"))(t.Context(), lifecycle.Record{Key: eth0}); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}

// Multus gets its state of the container as well, with what is left: what it
// would do with it is what we do.
func TestGivingBackToMultus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attachOurs(cbr, storage)
	ours := "cni/results/" + eth0.Network + "-c1-eth0"
	w.Write(ours, "{}") // the runtime's
	before := len(w.Exec.Trace())
	nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(w.node.MultusDir, w.Path("cni"), w.Path("absent"))))
	if w.exists(ours) || w.exists("cni/results/cbr-c1-eth0") {
		t.Error("an entry is left in the runtime's cache")
	}
	nodetest.Equal(t, "calls", w.Exec.Trace()[before:], []string{"DEL macvlan net1"})
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0"})
	var state []struct {
		Name     string
		ConfList struct {
			Name    string                  `json:"name"`
			Plugins []struct{ Type string } `json:"plugins"`
		}
		Bytes []byte
	}
	nodetest.OK(t, json.Unmarshal(must(os.ReadFile(w.Path("multus/c1"))), &state))
	if len(state) != 1 || state[0].Name != "cbr" || len(state[0].ConfList.Plugins) != 2 || !strings.Contains(string(state[0].Bytes), "9007199254740993") {
		t.Errorf("%+v", state)
	}
}
