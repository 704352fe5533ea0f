package delegate_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// The code of MIGRATION.md, which TestMigrationPage compares with this file.

func addByLibcni(ctx context.Context, cni *libcni.CNIConfig, lists []*libcni.NetworkConfigList, rt libcni.RuntimeConf) (types.Result, error) {
	var first types.Result
	for i, list := range lists {
		if i > 0 {
			rt.IfName = fmt.Sprint("net", i)
		}
		result, err := cni.AddNetworkList(ctx, list, &rt)
		if err != nil {
			return nil, err // what is attached by now stays attached
		}
		if i == 0 {
			first = result
		}
	}
	return first, nil
}

func addByInvoker(ctx context.Context, invoker *delegate.Invoker, networks []netconf.Network, eth0 delegate.Attachment) ([]delegate.Attached, error) {
	attachments := make([]delegate.Attachment, len(networks))
	for i, n := range networks {
		attachments[i] = eth0
		attachments[i].Network = n
		if i > 0 {
			attachments[i].IfName = fmt.Sprint("net", i)
		}
	}
	return invoker.AddAll(ctx, attachments) // all or none
}

func delegateByInvoke(ctx context.Context, conf []byte) error {
	result, err := invoke.DelegateAdd(ctx, "bridge", conf, nil)
	if err != nil {
		return err
	}
	return result.Print()
}

func delegateByInvoker(ctx context.Context, invoker *delegate.Invoker, conf []byte, eth0 delegate.Attachment, stdout io.Writer) error {
	network, err := netconf.Parse(conf)
	if err != nil {
		return err
	}
	eth0.Network = network
	attached, err := invoker.Add(ctx, eth0)
	if err != nil {
		return err
	}
	return attached.PrintTo(stdout, "1.0.0")
}

var byPlugin = plugin.Plugin{
	About:    "CNI meta-plugin mine",
	StateDir: "/var/lib/cni/mine",
	StateKey: "stateDir",
	Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
		conf, err := plugin.Config[struct {
			Delegates []netconf.Network `json:"delegates"`
		}](c)
		return conf.Delegates, err
	},
}

// Every line of Go in MIGRATION.md is a line of this file, so that it compiles.
func TestMigrationPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("MIGRATION.md")
	nodetest.OK(t, err)
	source, err := os.ReadFile("migration_test.go")
	nodetest.OK(t, err)
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) != 5 {
		t.Errorf("%d blocks of Go", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(string(source), "\n"+code) {
			t.Errorf("not in migration_test.go:\n%s", code)
		}
	}
}

// What libcni leaves attached when a network fails, an Invoker detaches again.
func TestMigratedADDLeavesNothing(t *testing.T) {
	t.Parallel()
	left, none := fakes("bridge"), fakes("bridge")
	left.Plugins["sriov"] = delegatetest.FailOn("ADD", 107, "no free device", delegatetest.Result(nil))
	none.Plugins["sriov"] = left.Plugins["sriov"]
	var lists []*libcni.NetworkConfigList
	var networks []netconf.Network
	for _, conf := range []string{`{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`, `{"cniVersion":"1.0.0","name":"red","plugins":[{"type":"sriov"}]}`} {
		list, err := libcni.NetworkConfFromBytes([]byte(conf))
		nodetest.OK(t, err)
		lists, networks = append(lists, list), append(networks, nodetest.Parse(conf))
	}
	_, err := addByLibcni(t.Context(), libcni.NewCNIConfigWithCacheDir(nil, t.TempDir(), left), lists, libcni.RuntimeConf{ContainerID: "c1", NetNS: "/x", IfName: "eth0"})
	nodetest.Says(t, err, "no free device")
	nodetest.Equal(t, "left by libcni", left.Live(), []string{"bridge c1 eth0", "sriov c1 net1"})
	_, err = addByInvoker(t.Context(), &delegate.Invoker{Exec: none}, networks, delegate.Attachment{ContainerID: "c1", NetNS: "/x", IfName: "eth0"})
	nodetest.Says(t, err, "no free device")
	nodetest.Equal(t, "left by an Invoker", none.Live(), nil)
}

// An Invoker takes the same configuration as invoke.DelegateAdd, which reads
// CNI_PATH and prints to the process's own stdout, and so is not called here.
func TestMigratedDelegate(t *testing.T) {
	t.Parallel()
	_ = delegateByInvoke
	var stdout bytes.Buffer
	err := delegateByInvoker(t.Context(), &delegate.Invoker{Exec: fakes("bridge")}, []byte(`{"cniVersion":"1.0.0","name":"blue","type":"bridge"}`),
		delegate.Attachment{ContainerID: "c1", NetNS: "/x", IfName: "eth0"}, &stdout)
	nodetest.OK(t, err)
	nodetest.Equal(t, "printed", strings.TrimSpace(stdout.String()), `{"cniVersion":"1.0.0"}`)
}

// The whole plugin of MIGRATION.md passes the conformance checks.
func TestMigratedPluginConforms(t *testing.T) {
	t.Parallel()
	conform.Test(t, conform.Program(byPlugin.Execute), conform.Config{
		Strict: true,
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"mine","stateDir":%q,"delegates":[{"type":"bridge"},{"type":"macvlan","name":"storage"}]}`, dir)
		},
		Delegates: []string{"bridge", "macvlan"},
	})
}
