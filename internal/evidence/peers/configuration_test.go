package peers

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// A multusConf is a configuration of Multus, in which {dir} is the directory of a node, and what
// Multus's LoadNetConf makes of it: an error, or the types of the plugins of each delegate and the
// keys that decide about networks.
type multusConf struct {
	Conf   string
	Multus struct {
		Error     string
		Delegates [][]string
		Cluster   string
		Defaults  []string
		Ready     string
		Isolation bool
		Global    []string
		System    []string
	}
}

// attached returns the types of the plugins that Multus runs for a pod of namespace team.
func (c multusConf) attached() []string {
	switch {
	case c.Multus.Cluster == "":
		return slices.Concat(c.Multus.Delegates...)
	case slices.Contains(c.Multus.System, "team"):
		return []string{c.Multus.Cluster}
	}
	return append([]string{c.Multus.Cluster}, c.Multus.Defaults...)
}

// err returns why Multus attaches nothing.
func (c multusConf) err() string {
	if c.Multus.Error == "" && strings.HasSuffix(c.Multus.Ready, "missing") {
		return "there is no " + c.Multus.Ready
	}
	return c.Multus.Error
}

// attach attaches a pod of namespace team that selects networks, and returns the types of the
// plugins that have run.
func attach(t *testing.T, conf, networks string) (types []string, err error) {
	t.Helper()
	n := nodetest.New(t, "bridge", "macvlan", "flannel", "cluster", "extra", "more", "blue")
	for _, name := range []string{"cluster", "extra", "more"} {
		n.Write("net.d/"+name+".conf", fmt.Sprintf(`{"cniVersion":"0.3.1","name":%q,"type":%[1]q}`, name))
	}
	n.Write("nad/default/blue.conf", `{"cniVersion":"0.3.1","type":"blue"}`)
	n.Write("ready", "")
	keys := map[string]any{}
	nodetest.OK(t, json.Unmarshal([]byte(strings.ReplaceAll(conf, "{dir}", n.Dir)), &keys))
	keys["confDir"], keys["nadDir"], keys["cniDir"], keys["readinessTimeout"] = n.Path("net.d"), n.Path("nad"), n.Path("state"), "0s"
	if networks != "" {
		keys["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"k8s.v1.cni.cncf.io/networks": networks}}
	}
	text, err := json.Marshal(keys)
	nodetest.OK(t, err)
	process := plugin.System{Exec: n.Exec, Stdout: io.Discard, InterfaceNames: func(string) ([]string, error) { return nil, nil }}
	err = multinet.New(multinet.Cluster{}).Do(t.Context(), process, delegate.CommandAdd, skel.CmdArgs{
		ContainerID: "c1", Netns: n.Path("netns"), IfName: "eth0", StdinData: text, Args: "K8S_POD_NAMESPACE=team;K8S_POD_NAME=p",
	})
	for _, call := range n.Exec.Calls() {
		if call.Command == string(delegate.CommandAdd) {
			types = append(types, call.Plugin)
		}
	}
	return types, err
}

// Words in our errors for configurations that Multus reads, and the rows of README.md.
var stricterConfigurations = [][2]string{
	{"given twice", "a key in two spellings, with two values"},
	{`defaultNetworks ""`, "an empty name, or `null`, in `defaultNetworks`"},
	{"is not a DNS label", "a namespace that none can be"},
	{".type", "a list with a plugin without a type"},
	{"no network name", "no name"},
}

// Words in errors of Multus for configurations that we read, and the rows.
var milderConfigurations = [][2]string{
	{"delegate config", "another type for a key of a delegate's plugin"},
	{"delegate conflist", "another type for a key of a delegate's plugin"},
	{"NetConf.delegates", "`clusterNetwork`, and a delegate that is no object"},
	{"untimeConfig", "another type in `runtimeConfig`"},
	{"NetConf", "another type for a key that metacni does not read"},
}

// The rows for configurations that both read, with other networks.
const (
	rowDefaults = "`defaultNetworks` without a `clusterNetwork`"
	rowSystem   = "several delegates, for a pod of `systemNamespaces`"
)

// multinet attaches what Multus attaches. The answers of Multus v4.3.0 are recorded.
func TestAConfigurationOfMultusMeansTheSame(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/multus-configurations.json")
	nodetest.OK(t, err)
	file, err := netconf.Decode[struct{ All []multusConf }](fmt.Appendf(nil, `{"all":%s}`, text))
	nodetest.OK(t, err)
	var met rows
	meet := func(c multusConf, why string, words [][2]string) {
		row, ok := rowOf(why, words)
		if !ok {
			t.Errorf("%s: read by one only: %s", c.Conf, why)
		}
		met.meet(row)
	}
	refused, read := 0, 0
	for _, c := range file.All {
		types, err := attach(t, c.Conf, "")
		switch why := c.err(); {
		case why != "" && err != nil:
			refused++
		case why != "":
			meet(c, why, milderConfigurations)
		case err != nil:
			meet(c, err.Error(), stricterConfigurations)
		case cmp.Equal(types, c.attached()):
			read++
			_, err := attach(t, c.Conf, "default/blue")
			if may := !c.Multus.Isolation || slices.Contains(c.Multus.Global, "default"); may != (err == nil) {
				t.Errorf("%s: a pod of another namespace selects default/blue: %v, want it to be allowed: %t", c.Conf, err, may)
			}
		case c.Multus.Cluster == "" && len(c.Multus.Defaults) > 0:
			met.meet(rowDefaults)
		case c.Multus.Cluster == "" && slices.Contains(c.Multus.System, "team"):
			met.meet(rowSystem)
		default:
			t.Errorf("%s: attaches %v, Multus %v", c.Conf, types, c.attached())
		}
	}
	want := []string{rowDefaults, rowSystem}
	for _, w := range slices.Concat(stricterConfigurations, milderConfigurations) {
		want = append(want, w[1])
	}
	met.check(t, "The configuration of a Multus node", want)
	t.Logf("of %d configurations both refuse %d and attach the same networks for %d", len(file.All), refused, read)
}
