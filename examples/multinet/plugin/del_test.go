package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/programtest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// A DEL without a record removes what the runtime has attached to the primary network, as
// libcni's cache has it, whatever else is wrong with the configuration.
func TestDELRemovesWhatWasAttachedBeforeMultinet(t *testing.T) {
	t.Parallel()
	const blue = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"},{"type":"tuning"}]}`
	for _, tt := range []struct {
		name, conf string
		found      bool
	}{
		{"delegate", `"delegates":[` + blue + `]`, true},
		{"delegate of another configuration now", `"delegates":[{"name":"blue","type":"macvlan"}]`, true},
		{"cluster network by name", `"clusterNetwork":"blue"`, true},
		{"broken keys", `"delegates":[{"name":"blue","plugins":5},7],"nadDir":"x","confDir":1,"capabilities":"","namespaceIsolation":"no"`, true},
		{"no network", `"delegates":5,"clusterNetwork":5`, false},
		{"unusable cache", `"delegates":[` + blue + `],"cniCacheDir":["x"]`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Write("net.d/blue.conflist", blue)
			h.Cached("cni", "c1", blue, "/no-such-directory/c1")
			conf := keys(`"cniCacheDir":"$DIR/cni"`, tt.conf)
			h.mustRun("DEL", conf, programtest.As("c2"))
			h.WantTrace()
			h.mustRun("DEL", conf)
			var want []string
			if tt.found {
				want = []string{"DEL tuning eth0", "DEL bridge eth0"}
			}
			h.WantTrace(want...)
			h.mustRun("DEL", conf)
			h.WantTrace()
			nodetest.Equal(t, "libcni's entry is gone", len(h.Files("cni/results")) == 0, tt.found)
			h.clean()
		})
	}
}

// No executable is run for the type of a resident plugin of the daemon, not even for
// DEL, until the daemon's note is removed. Other types are run.
func TestNoExecutableRunsInPlaceOfAResidentPlugin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	const two = `"delegates":[{"type":"bridge"},{"name":"fast","type":"macvlan"}]`
	h.mustRun("ADD", two)
	h.Trace()
	h.Write("state.relay/macvlan", `{"index":"10","name":"vlans","source":"external"}`)
	note := filepath.Join(ResidentState(h.state()), "macvlan")
	for _, command := range []string{"CHECK", "DEL", "ADD"} {
		nodetest.Fails(t, h.run(command, two), 11, "remove "+note)
	}
	nodetest.Lacks(t, "calls", strings.Join(h.Trace(), ", "), "macvlan")
	nodetest.OK(t, os.Remove(note))
	h.mustRun("DEL", two)
	h.WantTrace("DEL macvlan net1")
}

// With a Root, all paths in the configuration are the node's. Symbolic links are
// followed in the Root: absolute ones, dangling ones, and ones that would lead out.
// No file outside is read or written. A path may also begin with the Root.
func TestPathsAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	root := h.Path("node")
	h.Process.Root = plugin.Root(root)
	h.Write("node/data/etc/storage.conf", `{"name":"storage","type":"macvlan"}`)
	h.Write("node/data/other/fast.conf", `{"name":"fast","type":"bridge"}`)
	h.Write("node/run/primary.conf", `{"name":"primary","type":"bridge"}`)
	h.Write("elsewhere/out.conf", `{"name":"out","type":"full"}`)
	nodetest.OK(t, errors.Join(
		os.MkdirAll(root+"/etc/cni", 0o700), os.MkdirAll(root+"/var/lib", 0o700),
		os.Symlink("/data/etc", root+"/etc/cni/net.d"),
		os.Symlink("/data/other/fast.conf", root+"/data/etc/fast.conf"),
		os.Symlink(h.Dir+"/elsewhere/out.conf", root+"/data/etc/out.conf"),
		os.Symlink("../../../../../../../../../../../state", root+"/var/lib/cni"), // dangles
		os.Symlink("loop", root+"/loop"), os.Mkdir(root+"/opt", 0o700),
		os.MkdirAll(h.Dir+"/mnt/etc/cni", 0o700), os.MkdirAll(h.Dir+"/mnt/var", 0o700), // links stand for mounts
		os.Symlink(root+"/opt", h.Dir+"/mnt/opt"), os.Symlink(root+"/run", h.Dir+"/mnt/run"), os.Symlink(root+"/var/lib", h.Dir+"/mnt/var/lib"),
		os.Symlink(root+"/data/etc", h.Dir+"/mnt/etc/cni/net.d"),
	))
	for name, conf := range map[string]string{
		"as the node has them":             `"binDir":"/opt/x","cniDir":"/var/lib/cni/multinet","confDir":"/etc/cni/net.d","clusterNetwork":"/run/primary.conf","readinessindicatorfile":"/etc/cni/net.d/fast.conf"`,
		"as this process has them":         `"binDir":"` + root + `/opt/x","cniDir":"` + root + `/var/lib/cni/multinet","confDir":"` + root + `/etc/cni/net.d","clusterNetwork":"` + root + `/run","readinessindicatorfile":"` + root + `/etc/cni/net.d/fast.conf"`,
		"as this process has mounted them": `"binDir":"` + h.Dir + `/mnt/opt/x","cniDir":"` + h.Dir + `/mnt/var/lib/cni/multinet","confDir":"` + h.Dir + `/mnt/etc/cni/net.d","clusterNetwork":"` + h.Dir + `/mnt/run/primary.conf","readinessindicatorfile":"` + h.Dir + `/mnt/etc/cni/net.d/fast.conf"`,
	} {
		t.Run(name, func(t *testing.T) {
			conf = `{"cniVersion":"1.1.0","name":"multi","type":"multinet",` + conf + `,` + annotated("storage,fast") + `}`
			nodetest.OK(t, h.call("ADD", conf))
			nodetest.Equal(t, "plugins are looked for in", h.Since()[0].Path, "/opt/x:/opt/other/bin")
			h.WantTrace("ADD bridge eth0", "ADD macvlan net1", "ADD bridge net2")
			if records, err := filepath.Glob(root + "/state/multinet/c1@*.json"); len(records) != 1 {
				t.Errorf("records %q, %v", records, err)
			}
			if dir, err := StateDir(h.Process.Root, []byte(conf)); err != nil || dir != root+"/state/multinet" {
				t.Errorf("%q, %v", dir, err)
			}
			nodetest.OK(t, h.call("DEL", conf))
			h.WantTrace("DEL bridge net2", "DEL macvlan net1", "DEL bridge eth0")
		})
	}
	const cniDir = `,"cniDir":"/state"`
	for _, tt := range []struct {
		keys string
		code uint
		says string
	}{
		{`"clusterNetwork":"out","confDir":"/etc/cni/net.d"` + cniDir, 7, `"out"`},
		{`"clusterNetwork":"` + h.Dir + `/elsewhere/out.conf"` + cniDir, 7, "out.conf"},
		{bridge + `,"readinessTimeout":"0s","readinessindicatorfile":"/etc/cni/net.d/out.conf"` + cniDir, 11, "readinessindicatorfile is missing"},
		{bridge + `,"cniDir":"/proc/multinet"`, 7, "as the node has it"},
		{bridge + `,"cniDir":"` + root + `/var/lib/x/../cni"`, 7, "runtime keeps its own state"},
		{bridge + `,"cniDir":"/loop/x"`, 7, "too many symbolic links"},
	} {
		nodetest.Fails(t, h.call("ADD", `{"cniVersion":"1.1.0","name":"multi","type":"multinet",`+tt.keys+`}`), tt.code, tt.says)
	}
	h.WantTrace()
	nodetest.Equal(t, "made outside", h.Files("state"), nil)
}

func gcFor(attachments ...string) string {
	var all []string
	for _, a := range attachments {
		container, ifname, _ := strings.Cut(a, " ")
		all = append(all, `{"containerID":"`+container+`","ifname":"`+ifname+`"}`)
	}
	return `"cni.dev/valid-attachments":[` + strings.Join(all, ",") + `]`
}

// GC deletes attachments that the runtime does not list, also if the configuration is broken,
// and tells each delegate of the configuration which of its own are valid.
func TestGC(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string][]string{
		`"delegates":[{"type":"bridge"},{"type":"tuning","name":"new"}]`: {"GC bridge", "GC tuning"},
		`"clusterNetwork":"absent"`:                                      {"GC bridge"},
	} {
		h := newHost(t, "1.1.0")
		h.mustRun("ADD", keys(bridge, annotated("storage")))
		h.mustRun("ADD", bridge, programtest.As("c2"))
		h.Trace()
		if err := h.run("GC", keys(conf, gcFor("c2 eth0"))); err != nil {
			nodetest.Fails(t, err, 7, `"absent"`)
		}
		calls := h.Exec.Calls()
		h.WantTrace(append([]string{"DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0"}, want...)...)
		for _, c := range calls[len(calls)-len(want):] {
			valid := map[string]string{"bridge": `{"containerID":"c2","ifname":"eth0"}`, "tuning": ""}[c.Plugin]
			nodetest.Contains(t, c.String(), string(c.Stdin), `"cni.dev/valid-attachments":[`+valid+`]`)
		}
		h.removed(programtest.As("c2"))
	}
}

// A mistake in a definition can make both ADD and DEL fail. A sweep removes what is
// recorded of such an ADD once the definition is mended: that of the pod's namespace, with
// what the pod has asked for, and with the device that the record has. A network in a claim
// cannot change: another one of its name is not tried.
func TestSweepUsesTheDefinitionAsItIsNow(t *testing.T) {
	t.Parallel()
	config := func(mode string) string { return `{"name":"net","type":"strict","mode":"` + mode + `"}` }
	removed, failed := lifecycle.SweepStats{Removed: 1}, lifecycle.SweepStats{Failed: 1}
	asked := annotated(`[{"name":"vf","cni-args":{"k":1}}]`)
	cluster := func(mode string) func(context.Context, nad.Ref, nad.Use) (nad.Definition, error) {
		return func(_ context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
			if use != nad.UseSelected && use != nad.UseClaimed {
				return nad.Definition{}, &netconf.Error{Kind: netconf.ErrNotFound}
			}
			return nad.Definition{Ref: r, Resource: vf, Config: config(mode + "-of-" + r.Namespace)}, nil
		}
	}
	silent := func(ctx context.Context, _ nad.Ref, _ nad.Use) (nad.Definition, error) {
		<-ctx.Done()
		return nad.Definition{}, ctx.Err()
	}
	type find = func(context.Context, nad.Ref, nad.Use) (nad.Definition, error)
	for name, tt := range map[string]struct {
		keys     string
		selects  string // the annotation
		claim    Claimed
		file     string // the definition is mended in it
		was, now find   // of a cluster, at the ADD and at the sweep
		want     string // modes of the DELs
		swept    lifecycle.SweepStats
	}{
		"in a file":                         {selects: asked, file: "net.d/a/vf.conf", want: "typo right", swept: removed},
		"in the file of another namespace":  {selects: asked, file: "net.d/b/vf.conf", want: "typo", swept: failed},
		"with plugins that it may not have": {selects: asked, keys: `"allowedTypes":{"nad":["other"]},`, file: "net.d/a/vf.conf", want: "typo", swept: failed},
		"in a cluster, with a device":       {selects: asked, was: cluster("typo"), now: cluster("right"), want: "typo-of-a dev0 right-of-a dev0", swept: removed},
		"in a cluster that does not answer": {selects: asked, now: silent, want: "typo", swept: failed},
		"of a claim":                        {claim: claimed("c", "r", "a/vf", ""), was: cluster("typo"), now: cluster("right"), want: "typo-of-a dev0 right-of-a dev0", swept: removed},
		"a network in a claim":              {claim: claimed("c", "r", config("typo"), ""), file: "net.d/net.conf", want: "typo", swept: failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			var tried []string
			h.Exec.Plugins["strict"] = func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
				var conf struct {
					Mode, DeviceID string
					Args           struct{ CNI map[string]int }
				}
				nodetest.OK(t, json.Unmarshal(c.Stdin, &conf))
				if c.Command == "DEL" {
					tried = append(tried, strings.TrimSpace(conf.Mode+" "+conf.DeviceID))
				}
				if strings.HasPrefix(conf.Mode, "typo") || tt.selects != "" && conf.Args.CNI["k"] != 1 {
					return nil, errors.New("no such mode")
				}
				return nil, nil
			}
			h.Write("net.d/a/vf.conf", config("typo"))
			h.withDevices("dev0")
			h.cluster.Definition = tt.was
			selects := tt.selects
			if selects == "" {
				h.cluster, selects = h.cluster.with(tt.claim), passedNothing
			}
			nodetest.Fails(t, h.run("ADD", keys(bridge, selects), podOf("a")), 999)
			if tt.file != "" {
				h.Write(tt.file, config("right"))
			}
			h.cluster.Definition, tried = tt.now, nil
			s := &lifecycle.Sweeper{}
			nodetest.OK(t, PrepareSweep(t.Context(), s, h.Process, h.cluster, []byte(h.conf(tt.keys+bridge)), ""))
			swept, err := s.Sweep(t.Context())
			nodetest.OK(t, err)
			nodetest.Equal(t, "swept", swept, tt.swept)
			nodetest.Equal(t, "DELs", strings.Join(tried, " "), tt.want)
		})
	}
}

const blueNet = `{"cniVersion":"1.0.0","name":"blue","type":"bridge"}`

// A network is shared if anything on the node says that others may have attachments to it, or if
// something that would say so cannot be read.
func TestSharedNetworks(t *testing.T) {
	t.Parallel()
	record := func(n *nodetest.Node, dir, container string) {
		n.Helper()
		life := &lifecycle.Manager{Dir: n.Path(dir), Invoker: &delegate.Invoker{Exec: n.Exec}}
		a := delegate.Attachment{Network: nodetest.Parse(blueNet), ContainerID: container, IfName: "eth0"}
		_, err := life.Add(n.Context(), scratch.Key{Network: "multi", ContainerID: container, IfName: "eth0"}, lifecycle.Transaction{Plan: lifecycle.Plan(a)})
		nodetest.OK(n, err)
	}
	cached := func(n *nodetest.Node, container, conf string) {
		n.Helper()
		n.Cached("var/lib/cni", container, conf, "/absent")
	}
	for name, tt := range map[string]struct {
		keys string
		make func(n *nodetest.Node)
		why  string
	}{
		"nobody else":             {},
		"the key":                 {keys: `,"sharedNetworks":["red","blue"]`, why: "sharedNetworks names it"},
		"a key of another type":   {keys: `,"sharedNetworks":"blue"`, why: `key "sharedNetworks"`},
		"the records of nri":      {make: func(n *nodetest.Node) { record(n, "var/lib/cni/nri", "c2") }, why: "it has attachments in /var/lib/cni/nri"},
		"records of nri, damaged": {make: func(n *nodetest.Node) { n.Write("var/lib/cni/nri/c2@nri@eth0.json", "{") }, why: "/var/lib/cni/nri: "},
		"the records of another network of multinet": {make: func(n *nodetest.Node) {
			record(n, "other", "c2")
			n.Write("etc/cni/net.d/2.conf", `{"cniVersion":"1.0.0","name":"second","type":"multinet-shim","cniDir":"/other"}`)
		}, why: "/other"},
		"the runtime":                          {make: func(n *nodetest.Node) { cached(n, "c2", blueNet) }, why: "the runtime has attached eth0 of c2"},
		"the runtime, and it was taken over":   {make: func(n *nodetest.Node) { cached(n, "c1", blueNet) }},
		"the runtime, to another network":      {make: func(n *nodetest.Node) { cached(n, "c2", strings.Replace(blueNet, "blue", "blue-2", 1)) }},
		"the runtime, with a plugin of ours":   {make: func(n *nodetest.Node) { cached(n, "c2", strings.Replace(blueNet, "bridge", "multinet", 1)) }},
		"an entry of the runtime, damaged":     {make: func(n *nodetest.Node) { n.Write("var/lib/cni/results/blue-c2-eth0", "{") }, why: "blue-c2-eth0"},
		"podman":                               {make: func(n *nodetest.Node) { n.Write("etc/containers/networks/blue.json", "{}") }, why: "podman has a network of this name"},
		"a record of ours that cannot be read": {make: func(n *nodetest.Node) { cached(n, "c1", blueNet); n.Write("state/c3@multi@eth0.json", "{") }, why: "c3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodetest.New(t, "bridge")
			record(n, "state", "c1")
			if tt.make != nil {
				tt.make(n)
			}
			why := Sharing(t.Context(), plugin.Root(n.Dir), []byte(`{"name":"multi","type":"multinet","cniDir":"/state"`+tt.keys+`}`), "")("blue")
			if (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("%q, want %q", why, tt.why)
			}
		})
	}
}

// A GC does not tell the plugins of a shared network what is valid. It removes what is stale all the
// same.
func TestGCLeavesSharedNetworksAlone(t *testing.T) {
	t.Parallel()
	for keysOf, want := range map[string][]string{
		`"delegates":[{"type":"bridge"}]`:                              {"DEL bridge eth0", "GC bridge"},
		`"delegates":[{"type":"bridge"}],"sharedNetworks":["multi"]`:   {"DEL bridge eth0"},
		`"delegates":[{"type":"bridge"}],"sharedNetworks":["another"]`: {"DEL bridge eth0", "GC bridge"},
		`"delegates":[{"type":"bridge"}],"sharedNetworks":5`:           {"DEL bridge eth0"},
	} {
		h := newHost(t, "1.1.0")
		h.mustRun("ADD", bridge)
		h.Trace()
		h.mustRun("GC", keys(keysOf, gcFor()))
		h.WantTrace(want...)
	}
}
