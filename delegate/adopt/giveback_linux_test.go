package adopt_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
)

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
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(dirs...)))
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

// Given back, a container can be taken over again: an uninstallation that is
// followed by an installation loses nothing.
func TestThereAndBackAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attach("cni", cbr, runtime(unseen))
	for range 3 {
		nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0"})
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(w.node.CacheDir)))
	}
	nodetest.Equal(t, "calls", w.Exec.Trace(), nil)
}

// An attachment may have the name of the meta-plugin's own network: its entry is not
// taken for the one that nobody deletes any more.
func TestGivingBackANetworkWithOurName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attachOurs(`{"cniVersion":"1.0.0","name":"` + eth0.Network + `","type":"bridge"}`)
	nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(w.Path("cni"))))
	if !w.exists("cni/results/" + eth0.Network + "-c1-eth0") {
		t.Error("nothing is in the cache")
	}
	for _, caches := range [][]string{{w.Path("cni")}, {w.node.MultusDir}} { // of the runtime, or Multus has the same
		w = newWorld(t)
		w.attachOurs(`{"cniVersion":"1.0.0","name":"` + eth0.Network + `","type":"bridge"}`)
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBackToMultus(w.node.MultusDir, caches...)))
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
	if err := w.life.Release(t.Context(), eth0, adopt.GiveBack(w.Path("cni"))); err == nil {
		t.Error("no error")
	}
	nodetest.OK(t, os.Remove(w.Path("cni")))
	nodetest.OK(t, os.MkdirAll(w.Path("cni/results/cbr-c1-eth0/x"), 0o700))
	ours := "cni/results/" + eth0.Network + "-c1-eth0"
	w.Write(ours, "{}")
	if err := w.life.Release(t.Context(), eth0, adopt.GiveBack(w.Path("cni"))); err == nil {
		t.Error("no error with a directory in the way")
	}
	if !w.exists(ours) {
		t.Error("the runtime has no entry any more")
	}
	nodetest.Equal(t, "records", w.states(), []string{"c1/eth0 added"})
	if err := adopt.GiveBack(w.Path("cni"))(t.Context(), lifecycle.Record{Key: eth0}); err != nil && !errors.Is(err, os.ErrNotExist) {
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
	nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBackToMultus(w.node.MultusDir, w.Path("cni"), w.Path("absent"))))
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
