package multinet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/nodetest"
)

// A host is where multinet runs: its directories, and plugins to delegate to.
type host struct {
	*nodetest.Node
	root    string   // of the node, where it is not this process's
	version string   // of the configuration
	taken   []string // interface names in every network namespace
	stdout  io.Writer
	printed bytes.Buffer
	seen    int // calls that trace has returned
	cluster Cluster
}

func newHost(t testing.TB, version string) *host {
	t.Helper()
	h := &host{Node: nodetest.New(t), version: version}
	h.Exec.Plugins = map[string]delegatetest.Plugin{
		"multinet": delegatetest.Result(nil),
		"bridge":   delegatetest.Result(result("10.9.0.2/24")),
		"macvlan":  delegatetest.Result(result("10.9.1.2/24")),
		"tuning":   delegatetest.Result(nil),
		"full":     delegatetest.FailOn("ADD", 107, "no free device", delegatetest.Result(nil)),
		"stuck":    delegatetest.FailOn("DEL", 108, "device is busy", delegatetest.Result(nil)),
	}
	h.stdout = &h.printed
	h.Write("net.d/storage.conflist", `{"name":"storage","cniVersion":"1.0.0","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`)
	h.Write("net.d/fast.conf", `{"name":"fast","type":"macvlan"}`)
	h.Write("net.d/bad.conf", `{"name":"bad","type":5}`)
	h.Write("net.d/other.json", `{"name":"other","type":"bridge"}`)
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

// conf is a configuration with more keys, as JSON without the braces.
func (h *host) conf(keys string) string {
	if !strings.Contains(keys, `"confDir"`) {
		keys = strings.TrimSuffix(fmt.Sprintf(`"confDir":%q,`, filepath.Join(h.Dir, "net.d"))+keys, ",")
	}
	return fmt.Sprintf(`{"cniVersion":%q,"name":"multi","type":"multinet","cniDir":%q,"deviceInfoDir":%q,%s}`, h.version, h.state(), h.devices(), keys)
}

func (h *host) state() string { return filepath.Join(h.Dir, "state") }

// devices is the directory of device information files.
func (h *host) devices() string { return filepath.Join(h.Dir, "devinfo") }

// call runs a command with a whole configuration, for the attachment eth0 of
// the container c1 unless edits say otherwise.
func (h *host) call(ctx context.Context, command, conf string, edits ...func(*skel.CmdArgs)) error {
	args := &skel.CmdArgs{
		ContainerID: "c1", Netns: filepath.Join(h.Dir, "netns"), IfName: "eth0", Args: "IgnoreUnknown=1;K8S_POD_NAME=p",
		Path: "/opt/other/bin", StdinData: []byte(conf),
	}
	for _, edit := range edits {
		edit(args)
	}
	return New(h.cluster).Do(ctx, h.process(), delegate.Command(command), *args)
}

// process is what multinet has of its process.
func (h *host) process() plugin.Process {
	return plugin.Process{
		Exec: h.Exec, Stdout: h.stdout, Root: plugin.Root(h.root),
		InterfaceNames: func(string) ([]string, error) { return h.taken, nil },
	}
}

// run is call with a configuration that has more keys.
func (h *host) run(t *testing.T, command, keys string, edits ...func(*skel.CmdArgs)) error {
	t.Helper()
	return h.call(t.Context(), command, h.conf(keys), edits...)
}

// mustRun is run of a command that is to succeed.
func (h *host) mustRun(t *testing.T, command, keys string, edits ...func(*skel.CmdArgs)) {
	t.Helper()
	if err := h.run(t, command, keys, edits...); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// trace is what the plugins were called for since the last trace.
func (h *host) trace() []string {
	trace := h.Exec.Trace()[h.seen:]
	h.seen += len(trace)
	return trace
}

// stdin is the configuration that the i'th call since the last trace brought.
func (h *host) stdin(t *testing.T, i int) map[string]any {
	t.Helper()
	calls := h.Exec.Calls()[h.seen:]
	if i >= len(calls) {
		t.Fatalf("%d calls only: %q", len(calls), h.Exec.Trace())
	}
	return nodetest.Stdin(t, calls[i])
}

// clean fails unless everything was undone and no record is left.
func (h *host) clean(t *testing.T) {
	t.Helper()
	nodetest.Equal(t, "left", h.Exec.Live(), nil)
	nodetest.Equal(t, "left in cniDir", h.records(t), nil)
}

// records lists the records in cniDir.
func (h *host) records(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.state(), "*.json*"))
	nodetest.OK(t, err)
	for i := range files {
		files[i] = strings.TrimPrefix(files[i], h.state()+"/")
	}
	return files
}

// annotated is the runtimeConfig with which a runtime passes on the annotation
// that selects networks, with more capability arguments.
func annotated(selection string, more ...string) string {
	quoted, err := json.Marshal(selection)
	if err != nil {
		panic(err)
	}
	more = append(more, fmt.Sprintf(`"io.kubernetes.cri.pod-annotations":{"k8s.v1.cni.cncf.io/networks":%s,"other":"[{"}`, quoted))
	return `"runtimeConfig":{` + strings.Join(more, ",") + `}`
}

const bridge = `"delegates":[{"type":"bridge"}]`

// keys joins groups of keys.
func keys(groups ...string) string { return strings.Join(groups, ",") }

// refuses wants an ADD to fail with a code and these words. No plugin has run then, unless the
// code is that of a plugin, and nothing is left or printed.
func (h *host) refuses(t *testing.T, keys string, code uint, says []string, edits ...func(*skel.CmdArgs)) {
	t.Helper()
	nodetest.Fails(t, h.run(t, "ADD", keys, edits...), code, says...)
	if code < 100 || code == types.ErrInternal {
		wantTrace(t, h)
	}
	h.clean(t)
	nodetest.Equal(t, "printed", h.printed.String(), "")
}

func wantTrace(t *testing.T, h *host, want ...string) {
	t.Helper()
	nodetest.Equal(t, "calls", h.trace(), want)
}

// ADD, CHECK and DEL of a container with four networks: their order, the names of the
// interfaces, the record, and nothing left at the end.
func TestLife(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	conf := keys(`"delegates":[{"type":"bridge"},{"name":"second","cniVersion":"0.4.0","plugins":[{"type":"macvlan"},{"type":"tuning"}]}]`,
		annotated("fast, default/storage"))
	h.mustRun(t, "ADD", conf)
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD tuning net1", "ADD macvlan net2", "ADD macvlan net3", "ADD tuning net3")
	if got := h.printed.String(); !strings.Contains(got, "10.9.0.2/24") || strings.Contains(got, "10.9.1.2") || strings.Count(got, "cniVersion") != 1 {
		t.Errorf("result %s, want that of bridge alone", got)
	}
	if got := h.records(t); !cmp.Equal(got, []string{"c1@multi@eth0.json"}) {
		t.Errorf("records %q", got)
	}

	nodetest.Fails(t, h.run(t, "ADD", conf), 7, "already added")
	wantTrace(t, h)

	h.mustRun(t, "CHECK", conf)
	wantTrace(t, h, "CHECK bridge eth0", "CHECK macvlan net1", "CHECK tuning net1", "CHECK macvlan net2", "CHECK macvlan net3", "CHECK tuning net3")

	h.mustRun(t, "STATUS", conf)
	wantTrace(t, h, "STATUS bridge") // the other is of CNI 0.4.0

	h.mustRun(t, "GC", keys(conf, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
	if got := h.trace(); slices.ContainsFunc(got, func(call string) bool { return !strings.HasPrefix(call, "GC ") }) || len(got) == 0 {
		t.Errorf("GC with everything valid: %q", got)
	}

	h.mustRun(t, "DEL", conf)
	wantTrace(t, h, "DEL tuning net3", "DEL macvlan net3", "DEL macvlan net2", "DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0")
	h.mustRun(t, "DEL", conf)
	wantTrace(t, h)
	nodetest.Fails(t, h.run(t, "CHECK", conf), 7, "not added")
	h.clean(t)
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }
