package adopt_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
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
	nodetest.OK(t, w.life.Check(t.Context(), eth0))
	checks := len(w.Exec.Trace())
	nodetest.OK(t, w.life.Del(t.Context(), lifecycle.Removal{Key: eth0}))
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

func (w *world) multusOf(id, ifname string) {
	w.attach("multus", cbr, libcni.RuntimeConf{ContainerID: id, NetNS: unseen, IfName: ifname})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Which interface the runtime asked for is what it has recorded, or what Multus
// has of the first network. Runtimes ask for eth0.
func TestInterfaceOfTheRuntime(t *testing.T) {
	t.Parallel()
	entry := func(network, ifname string) string {
		return strings.Replace(strings.Replace(text("cniCacheV1", "c1", strings.ReplaceAll(ofMulti, "multus-cni-network", network), "null"), `"eth0"`, `"`+ifname+`"`, 1), `"networkName":"cbr"`, `"networkName":"`+network+`"`, 1)
	}
	for _, tt := range []struct {
		name, state string
		attached    []string
		runtime     string // the name of the runtime's interface; empty: nothing is recorded
		want        string
	}{
		{"the runtime's", saved(cbr, ""), []string{"eth7", cbr}, "eth7", "multi/c1/eth7 cbr:eth7"},
		{"the entry's", saved(cbr, ""), []string{"eth7", cbr}, "", "multi/c1/eth7 cbr:eth7"},
		{"none", saved(cbr, ""), nil, "", "multi/c1/eth0 cbr:eth0"},
		{"one network twice", saved(cbr, "") + "," + saved(cbr, ""), []string{"eth7", cbr, "net1", cbr}, "", "multi/c1/eth7 cbr:eth7 cbr:net1"},
		{"renamed by the pod", saved(cbr, `,"ifnameRequest":"x0"`), []string{"x0", cbr}, "eth0", "multi/c1/eth0 cbr:x0"},
		{"a runtime's entry of another network", saved(cbr, ""), []string{"eth7", cbr}, "other", "multi/c1/eth7 cbr:eth7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.old(w.Write("multus/c1", "["+tt.state+"]"))
			w.multus(tt.attached...)
			switch tt.runtime {
			case "":
			case "other":
				w.attach("cni", strings.Replace(cbr, "cbr", "other", 1), runtime(unseen))
			default:
				w.Write("cni/results/m-c1-"+tt.runtime, entry("m", tt.runtime))
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
	nodetest.OK(t, w.life.Del(t.Context(), lifecycle.Removal{Key: eth0}))
	nodetest.Equal(t, "calls", w.Exec.Trace(), []string{"DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0"})
	// A container that is gone is not being attached.
	w.Write("multus/c2", "["+saved(cbr, "")+","+saved(storage, "")+"]")
	w.attach("multus", cbr, libcni.RuntimeConf{ContainerID: "c2", NetNS: away, IfName: "eth0"})
	nodetest.Equal(t, "gone", w.take(w.node.Attachments()), []string{"adopted multi/c2/eth0 cbr:eth0 storage:net1 gone"})
}

// Multus before 3.7 had the results of its networks in the runtime's cache. They
// are not taken over a second time, by themselves.
func TestMultusWithTheCacheOfTheRuntime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+"]")
	w.attach("cni", cbr, runtime(unseen))
	w.attach("cni", asList(t, storage), libcni.RuntimeConf{ContainerID: "c1", NetNS: unseen, IfName: "net1"})
	want := []string{"adopted multi/c1/eth0 cbr:eth0 storage:net1", "recorded multi/c1/eth0 cbr:eth0"}
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), want)
	nodetest.Equal(t, "records", w.states(), []string{"c1/eth0 added"})
}

// Where Multus has not kept the configuration as it got it, what it read of it
// will do.
func TestStateOfMultusWithoutBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.old(w.Write("multus/c1", `[{"Conf":`+storage+`,"ConfList":{"plugins":null}},{"Conf":{"name":"","type":""},"ConfList":`+fast+`,"Bytes":""}]`))
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 storage:eth0 fast:net1"})
}

// A file in Multus's directory that is not its state of a container is reported
// with the reason, and hides no other.
func TestBadStateOfMultusIsSkippedAndReported(t *testing.T) {
	t.Parallel()
	good := "[" + saved(cbr, "") + "]"
	for _, tt := range []struct {
		name, file, text string
		want             string // in the reason; empty: it is nobody's concern
	}{
		{"empty", "multus/c1", "", "empty"},
		{"torn", "multus/c1", good[:len(good)-4], "incomplete"},
		{"of flannel", "multus/c1", cbr, "incomplete"},
		{"no networks", "multus/c1", "[]", "no networks"},
		{"null", "multus/c1", "null", "no networks"},
		{"null for a network", "multus/c1", "[null]", "network 1"},
		{"no network", "multus/c1", "[" + saved(cbr, "") + "," + saved(`{"name":"x"}`, "") + "]", "network 2"},
		{"too large", "multus/c1", good + strings.Repeat(" ", 1<<20), "too large"},
		{"not a container", "multus/.c1.swp", good, "invalid characters"},
		{"an entry that is torn", "multus/results/cbr-c1-eth0", `{"kind":`, "incomplete"},
		{"an entry of another container", "multus/results/cbr-c1-eth0", text("cniCacheV1", "c3", cbr, "null"), "the file name does not match"},
		{"an entry of the runtime", "cni/results/x-c1-eth0", "", ""},
		{"a directory", "multus/dir/c1", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			path := w.Write(tt.file, tt.text)
			w.old(w.Write("multus/z9", good))
			w.multusOf("z9", "eth0")
			got := w.take(w.node.Attachments())
			var reasons []string
			for _, g := range got {
				if g != "adopted multi/z9/eth0 cbr:eth0" {
					reasons = append(reasons, g)
				}
			}
			if len(got) != len(reasons)+1 {
				t.Errorf("the other is hidden: %q", got)
			}
			switch {
			case tt.want == "" && reasons != nil:
				t.Errorf("%q", reasons)
			case tt.want != "" && (len(reasons) != 1 || !strings.Contains(reasons[0], tt.want) || !strings.Contains(reasons[0], tt.file)):
				t.Errorf("%q, want %q", reasons, tt.want)
			}
			if left := string(must(os.ReadFile(path))); left != tt.text {
				t.Error("the file is changed")
			}
		})
	}
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

// Of containers that Multus attached and that are gone GC removes all networks.
func TestGCOfWhatMultusAttached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+"]")
	w.multus("eth0", cbr, "net1", storage)
	w.take(w.node.Attachments())
	nodetest.OK(t, w.life.GC(t.Context(), lifecycle.Collection{Network: "multi", Valid: []types.GCAttachment{}}))
	nodetest.Equal(t, "calls", w.Exec.Trace(), []string{"DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0"})
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
	if err := w.life.Del(t.Context(), lifecycle.Removal{Key: eth0}); err != nil || w.exists("multus/c1") {
		t.Errorf("the state is left: %v", err)
	}
	if got := w.take(w.node.Attachments()); got != nil {
		t.Errorf("after DEL: %q", got)
	}
}
