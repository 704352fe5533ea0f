package adopt_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

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
	// A container that is gone is not being attached.
	w.Write("multus/c2", "["+saved(cbr, "")+","+saved(storage, "")+"]")
	w.attach("multus", cbr, libcni.RuntimeConf{ContainerID: "c2", NetNS: away, IfName: "eth0"})
	nodetest.Equal(t, "gone", w.take(w.node.Attachments()), []string{"adopted multi/c2/eth0 cbr:eth0 storage:net1 gone"})
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
