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
	"github.com/metacni/metacni/netconf"
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
		w.attach("multus", asList(w, nodetest.Parse(networks[i+1])), libcni.RuntimeConf{ContainerID: "c1", NetNS: unseen, IfName: networks[i], Args: [][2]string{{"K", networks[i]}}})
	}
}

// asList is a network as a list of plugins.
func asList(t testing.TB, n netconf.Network) string {
	t.Helper()
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
	w.ofMulti("multus-cni-network", "eth0")
	w.multusOf("c2", "eth0")

	const all = " multi/c1/eth0 cbr:eth0 storage:net1 fast:fast0 late:late0"
	nodetest.Equal(t, "first", w.take(w.node.Attachments()), []string{"adopted" + all})
	nodetest.Equal(t, "again", w.take(w.node.Attachments()), []string{"recorded" + all})
	nodetest.OK(t, w.life.Check(t.Context(), eth0, ""))
	w.Trace()
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.Removal{}))
	w.WantTrace("DEL ipvlan late0", "DEL ipvlan fast0", "DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0")
	for _, c := range w.Exec.Calls() {
		nodetest.Equal(t, c.String(), c.Args, "K="+c.IfName)
		nodetest.Equal(t, c.String()+" has the result", stdin(t, c, "prevResult") != "", true)
	}
	nodetest.Equal(t, "files", w.Files("multus"), []string{"results", "results/cbr-c2-eth0"})
	nodetest.Equal(t, "entries of the runtime", w.Files("cni/results"), nil)
}

func (w *world) multusOf(id, ifname string) {
	w.attach("multus", cbr, libcni.RuntimeConf{ContainerID: id, NetNS: unseen, IfName: ifname})
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
				w.ofMulti("m", tt.runtime)
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
	w.WantTrace("DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0")
}

// An entry of Multus's that cannot be understood keeps its container from being
// taken over without it.
func TestUnusableEntryOfMultus(t *testing.T) {
	t.Parallel()
	for network, ifname := range map[string]string{"cbr": "eth0", "late": "late0"} {
		w := newWorld(t)
		w.Write("multus/c1", "["+saved(cbr, "")+"]")
		w.multusOf("c1", "eth0")
		file := "multus/results/" + network + "-c1-" + ifname
		w.Write(file, strings.NewReplacer(`"networkName":"cbr"`, `"networkName":"`+network+`"`, `"eth0"`, `"`+ifname+`"`).Replace(text("cniCacheV1", "c1", "{", "null")))
		got := w.take(w.node.Attachments())
		if len(got) != 1 || !strings.HasPrefix(got[0], "skipped: $DIR/"+file+": ") {
			t.Errorf("%q", got)
		}
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
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.Removal{}))
	nodetest.Equal(t, "the state is left", w.exists("multus/c1"), false)
	nodetest.Equal(t, "after DEL", w.take(w.node.Attachments()), nil)
}

// attachOurs attaches c1 to networks as our plugin does.
func (w *world) attachOurs(networks ...string) {
	w.Helper()
	var plan []delegate.Attachment
	for i, ifname := range []string{"eth0", "net1"}[:len(networks)] {
		plan = append(plan, delegate.Attachment{
			Network: nodetest.Parse(networks[i]), ContainerID: "c1", NetNS: unseen, IfName: ifname, Args: "IgnoreUnknown=1;K8S_POD_NAME=p=q;flag",
			CapabilityArgs: map[string]json.RawMessage{"portMappings": []byte(`[{"hostPort":80}]`)},
		})
	}
	_, err := w.life.Add(w.Context(), eth0, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)})
	nodetest.OK(w, err)
	w.Trace()
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
		w.WantTrace("DEL macvlan net1")
		nodetest.Equal(t, "records", w.states(), nil)
		list, err := libcni.NetworkConfFromBytes([]byte(asList(t, nodetest.Parse(conf))))
		nodetest.OK(t, err)
		for _, dir := range dirs {
			exec := &delegatetest.Exec{Plugins: w.Exec.Plugins}
			cni := libcni.NewCNIConfigWithCacheDir([]string{"/bin"}, dir, exec)
			attachments, err := cni.GetCachedAttachments("c1")
			nodetest.OK(t, err)
			nodetest.Equal(t, "cached", attachments, []*libcni.NetworkAttachment{{
				ContainerID: "c1", Network: "cbr", IfName: "eth0", NetNS: unseen, Config: attachments[0].Config,
				CniArgs:        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "p=q"}, {"flag", ""}},
				CapabilityArgs: map[string]any{"portMappings": []any{map[string]any{"hostPort": 80.0}}},
			}})
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
			nodetest.OK(t, err)
			nodetest.Equal(t, "mode", info.Mode(), 0o600)
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
	for _, tt := range []struct{ multus, cache, in string }{
		{"", "cni", "cni"}, {"multus", "cni", "multus"}, {"multus", "multus", "multus"}, {"multus", "multus/.", "multus"}, // Multus and the runtime may have the same
	} {
		w := newWorld(t)
		w.attachOurs(`{"cniVersion":"1.0.0","name":"` + eth0.Network + `","type":"bridge"}`)
		multus := ""
		if tt.multus != "" {
			multus = w.node.MultusDir
		}
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(multus, w.Dir+"/"+tt.cache)))
		nodetest.Equal(t, fmt.Sprint(tt, " has the entry"), w.exists(tt.in+"/results/"+eth0.Network+"-c1-eth0"), true)
	}
}

// What cannot be written stays recorded, and in the runtime's cache.
func TestGivingBackThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attachOurs(cbr)
	nodetest.OK(t, os.MkdirAll(w.Path("cni/results/cbr-c1-eth0/x"), 0o700)) // in the way
	ours := "cni/results/" + eth0.Network + "-c1-eth0"
	w.Write(ours, "{}")
	for _, dir := range []string{w.Path(ours), w.Path("cni")} {
		if err := w.life.Release(t.Context(), eth0, adopt.GiveBack("", dir)); err == nil {
			t.Errorf("no error of %s", dir)
		}
	}
	nodetest.Equal(t, "the runtime has its entry", w.exists(ours), true)
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
	w.Write("cni/results/"+eth0.Network+"-c1-eth0", "{}") // the runtime's
	nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(w.node.MultusDir, w.Path("cni"), w.Path("absent"))))
	nodetest.Equal(t, "entries of the runtime", w.Files("cni/results"), nil)
	w.WantTrace("DEL macvlan net1")
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0"})
	var state []struct {
		Name     string
		ConfList struct {
			Name    string                  `json:"name"`
			Plugins []struct{ Type string } `json:"plugins"`
		}
		Bytes []byte
	}
	nodetest.OK(t, json.Unmarshal([]byte(w.Read("multus/c1")), &state))
	if len(state) != 1 || state[0].Name != "cbr" || len(state[0].ConfList.Plugins) != 2 || !strings.Contains(string(state[0].Bytes), "9007199254740993") {
		t.Errorf("%+v", state)
	}
}

// ofMulti writes the runtime's entry of a network of Multus for c1.
func (w *world) ofMulti(network, ifname string) {
	w.Helper()
	entry := text("cniCacheV1", "c1", strings.ReplaceAll(ofMulti, "multus-cni-network", network), "null")
	w.Write("cni/results/"+network+"-c1-"+ifname, strings.NewReplacer(`"eth0"`, `"`+ifname+`"`, `"networkName":"cbr"`, `"networkName":"`+network+`"`).Replace(entry))
}
