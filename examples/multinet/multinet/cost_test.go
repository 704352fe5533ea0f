//go:build !race

package multinet

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
)

// silent is an Exec that costs nothing.
type silent struct{ version.PluginDecoder }

func (*silent) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (*silent) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.1.0.2/24"}]}`), nil
}

// The number of allocations for ADD and DEL of a container, with its record on disk,
// is limited to what it is today. The race detector makes allocations of its own.
func TestAllocations(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts those of all
	process := plugin.Process{
		Exec: &silent{}, Stdout: io.Discard, InterfaceNames: func(string) ([]string, error) { return nil, nil },
	}
	h := newHost(t, "1.1.0")
	for _, tt := range []struct {
		delegates int
		limit     float64
	}{{1, 660}, {8, 2400}} {
		conf := h.conf(`"delegates":[` + strings.TrimSuffix(strings.Repeat(`{"type":"bridge","bridge":"cni0"},`, tt.delegates), ",") + `]`)
		args := skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: []byte(conf)}
		got := testing.AllocsPerRun(20, func() {
			if err := New(Cluster{}).Do(t.Context(), process, delegate.CommandAdd, args); err != nil {
				t.Fatal(err)
			}
			if err := New(Cluster{}).Do(t.Context(), process, delegate.CommandDel, args); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("figures: ADD and DEL of %d delegates: %.0f allocations", tt.delegates, got)
		if got > tt.limit {
			t.Errorf("ADD and DEL of %d delegates: %.0f allocations, limit %.0f", tt.delegates, got, tt.limit)
		}
	}
}
