package tool

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
)

// A host is where the operator's commands find what multinet has recorded. The
// plugin itself is tested in its package.
type host struct{ *nodetest.Node }

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{nodetest.New(t)}
	h.Exec.Plugins["tuning"] = delegatetest.Result(nil)
	h.Exec.Plugins["bridge"] = delegatetest.Result(result("10.9.0.2/24"))
	h.Exec.Plugins["macvlan"] = delegatetest.Result(result("10.9.1.2/24"))
	return h
}

func result(cidr string) *types100.Result {
	ip, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	network.IP = ip
	return &types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{{Address: *network}}}
}

func (h *host) state() string { return filepath.Join(h.Dir, "state") }

const (
	bridge = `{"type":"bridge","password":"` + secret + `"}`
	secret = "hunter2hunter2"
)

// run runs a command of multinet's with the delegates given, for the attachment
// eth0 of the container c1 unless edits say otherwise.
func (h *host) run(t *testing.T, command, delegates string, edits ...func(*skel.CmdArgs)) error {
	t.Helper()
	args := &skel.CmdArgs{
		ContainerID: "c1", Netns: filepath.Join(h.Dir, "netns"), IfName: "eth0",
		StdinData: fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"multi","type":"multinet","cniDir":%q,"delegates":[%s]}`, h.state(), delegates),
	}
	for _, edit := range edits {
		edit(args)
	}
	return multinet.New(multinet.Cluster{}).Do(t.Context(), plugin.Process{
		Exec: h.Exec, Stdout: io.Discard,
		InterfaceNames: func(string) ([]string, error) { return nil, nil },
	}, delegate.Command(command), *args)
}

// mustRun is run for a command that must succeed.
func (h *host) mustRun(t *testing.T, command, delegates string, edits ...func(*skel.CmdArgs)) {
	t.Helper()
	if err := h.run(t, command, delegates, edits...); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// wantError fails unless err has the code and says all of words.
func wantError(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	nodetest.Code(t, err, code)
	nodetest.Says(t, err, words...)
}
