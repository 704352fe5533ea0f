package delegatetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// goPlugin is a plugin as their authors write them, for package skel. Its ADD does what
// CNI_ARGS say.
var goPlugin = delegatetest.Funcs("go", skel.CNIFuncs{
	Add: func(args *skel.CmdArgs) error {
		switch args.Args {
		case "fail":
			return types.NewError(107, "no free device", "")
		case "panic":
			panic("at the disco")
		case "exit":
			os.Exit(5)
		}
		return types.PrintResult(&types100.Result{Interfaces: []*types100.Interface{
			{Name: args.IfName, Sandbox: args.Netns, Mac: os.Getenv("MAC"), SocketPath: args.ContainerID},
		}}, "1.1.0")
	},
	Del: func(*skel.CmdArgs) error { return nil },
}, version.PluginSupports("1.1.0"))

func TestFuncsRunsAGoPlugin(t *testing.T) {
	t.Parallel()
	conf := func(v string) string { return fmt.Sprintf(`{"cniVersion":%q,"name":"n","type":"go"}`, v) }
	for _, tt := range []struct {
		name, command, version, args string
		fake                         delegatetest.Plugin
		out, err                     string
		code                         uint
		live                         []string
	}{
		{
			name: "ADD", command: "ADD", version: "1.1.0",
			out:  `{"cniVersion":"1.1.0","interfaces":[{"mac":"m","name":"eth0","sandbox":"/absent","socketPath":"c1"}]}`,
			live: []string{"go c1 eth0"},
		},
		{name: "DEL", command: "DEL", version: "1.1.0"},
		{name: "VERSION", command: "VERSION", version: "1.1.0", out: `{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}`},
		{name: "another version", command: "DEL", version: "1.0.0", err: "incompatible", code: types.ErrIncompatibleCNIVersion},
		{name: "error", command: "ADD", version: "1.1.0", args: "fail", err: "no free device", code: 107, live: []string{"go c1 eth0"}},
		{name: "panic", command: "ADD", version: "1.1.0", args: "panic", err: "panic: at the disco", code: types.ErrInternal, live: []string{"go c1 eth0"}},
		{name: "exit", command: "ADD", version: "1.1.0", args: "exit", err: "exit status 5", code: types.ErrInternal, live: []string{"go c1 eth0"}},
		{name: "fault", command: "ADD", version: "1.1.0", fake: delegatetest.KillOn("ADD", goPlugin), err: "signal: killed", code: types.ErrInternal, live: []string{"go c1 eth0"}},
		{
			name: "too late", command: "DEL", version: "1.1.0", fake: delegatetest.Funcs("late", skel.CNIFuncs{}, version.All),
			err: "delegatetest.Funcs_was_not_called_before_the_tests", code: types.ErrInternal,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"go": goPlugin}}
			if tt.fake != nil {
				x.Plugins["go"] = tt.fake
			}
			out, err := x.ExecPlugin(t.Context(), "/bin/go", []byte(conf(tt.version)), []string{
				"CNI_COMMAND=" + tt.command, "CNI_CONTAINERID=c1", "CNI_NETNS=/absent", "CNI_IFNAME=eth0", "CNI_PATH=/bin", "CNI_ARGS=" + tt.args, "MAC=m",
			})
			if tt.err == "" {
				nodetest.OK(t, err)
			} else {
				nodetest.Fails(t, err, tt.code, tt.err)
			}
			var compact bytes.Buffer
			_ = json.Compact(&compact, out)
			nodetest.Equal(t, "stdout", compact.String(), tt.out)
			nodetest.Equal(t, "live", x.Live(), tt.live)
		})
	}
}

// A meta-plugin delegates to another one, which delegates to a fake, in one Exec.
func TestProgramIsAFakeOfAnother(t *testing.T) {
	t.Parallel()
	inner := plugin.Plugin{
		StateDir: t.TempDir(),
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			return conf.Delegates, err
		},
		Status: func(context.Context, *plugin.Call) error { panic("at the disco") },
	}
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": delegatetest.Result(nil)}}
	x.Plugins["inner"] = delegatetest.Program(inner.Execute).Plugin(x)
	do := func(command string) (string, error) {
		out, err := x.ExecPlugin(t.Context(), "/bin/inner", []byte(`{"cniVersion":"1.1.0","name":"n","type":"inner","delegates":[{"type":"bridge"}]}`), []string{
			"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=/absent", "CNI_IFNAME=eth0", "CNI_PATH=/bin",
		})
		return strings.TrimSpace(string(out)), err
	}
	out, err := do("ADD")
	nodetest.OK(t, err)
	nodetest.Equal(t, "result", out, `{"cniVersion":"1.1.0"}`)
	nodetest.Equal(t, "live after ADD", x.Live(), []string{"bridge c1 eth0", "inner c1 eth0"})
	_, err = do("DEL")
	nodetest.OK(t, err)
	nodetest.Equal(t, "live after DEL", x.Live(), nil)
	nodetest.Equal(t, "trace", x.Trace(), []string{"ADD inner eth0", "ADD bridge eth0", "DEL inner eth0", "DEL bridge eth0"})

	_, err = do("STATUS")
	nodetest.Says(t, err, "exit status 2", "panic: at the disco")
	x.Plugins["bridge"] = delegatetest.FailOn("ADD", 107, "no free device", x.Plugins["bridge"])
	_, err = do("ADD")
	nodetest.Fails(t, err, 107, "no free device")
	nodetest.Equal(t, "live after a failure", x.Live(), []string{"inner c1 eth0"})
}
