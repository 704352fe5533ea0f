package delegatetest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

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
	nodetest.Says(t, err, "exit status 2")
	x.Plugins["bridge"] = delegatetest.FailOn("ADD", 107, "no free device", x.Plugins["bridge"])
	_, err = do("ADD")
	nodetest.Fails(t, err, 107, "no free device")
	nodetest.Equal(t, "live after a failure", x.Live(), []string{"inner c1 eth0"})
}
