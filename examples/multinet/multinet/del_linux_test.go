package multinet

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// A DEL without a record removes what the runtime has attached to the primary network, as
// libcni's cache has it, whatever else is wrong with the configuration.
func TestDELRemovesWhatWasAttachedBeforeMultinet(t *testing.T) {
	t.Parallel()
	const (
		blue = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"},{"type":"tuning"}]}`
		file = `cni/results/blue-c1-eth0`
	)
	entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":"eth0","networkName":"blue","netns":"/no-such-directory/c1"}`,
		base64.StdEncoding.EncodeToString([]byte(blue)))
	for _, tt := range []struct {
		name, conf string
		found      bool
	}{
		{"delegate", `"delegates":[` + blue + `]`, true},
		{"delegate of another configuration now", `"delegates":[{"name":"blue","type":"macvlan"}]`, true},
		{"cluster network by path", `"clusterNetwork":"$DIR/net.d/blue.conflist"`, true},
		{"cluster network by name", `"clusterNetwork":"blue"`, true},
		{"broken keys", `"delegates":[{"name":"blue","plugins":5},7],"nadDir":"x","confDir":1,"capabilities":"","namespaceIsolation":"no"`, true},
		{"another network", `"delegates":[{"name":"green","type":"bridge"}],"nadDir":"x"`, false},
		{"no network", `"delegates":5,"clusterNetwork":5`, false},
		{"no file", `"clusterNetwork":"$DIR/absent"`, false},
		{"no cache", `"delegates":[` + blue + `],"cniCacheDir":""`, false},
		{"unusable cache", `"delegates":[` + blue + `],"cniCacheDir":["x"]`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "1.1.0")
			h.Write("net.d/blue.conflist", blue)
			h.Write(file, entry)
			conf := keys(`"cniCacheDir":"`+filepath.Join(h.Dir, "cni")+`"`, os.Expand(tt.conf, func(string) string { return h.Dir }))
			other := func(a *skel.CmdArgs) { a.ContainerID = "c2" }
			h.mustRun(t, "DEL", conf, other)
			wantTrace(t, h)
			h.mustRun(t, "DEL", conf)
			if tt.found {
				wantTrace(t, h, "DEL tuning eth0", "DEL bridge eth0")
			} else {
				wantTrace(t, h)
			}
			h.mustRun(t, "DEL", conf)
			wantTrace(t, h)
			if _, err := os.Lstat(filepath.Join(h.Dir, file)); (err == nil) == tt.found {
				t.Errorf("libcni's entry: %v", err)
			}
			h.clean(t)
		})
	}
}

// No executable is run for the type of a resident plugin of the daemon, not even for
// DEL, until the daemon's note is removed. Other types are run.
func TestNoExecutableRunsInPlaceOfAResidentPlugin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	const two = `"delegates":[{"type":"bridge"},{"name":"fast","type":"macvlan"}]`
	h.mustRun(t, "ADD", two)
	h.trace()
	h.Write("state.relay/macvlan", `{"index":"10","name":"vlans","source":"external"}`)
	note := filepath.Join(ResidentState(h.state()), "macvlan")
	for _, command := range []string{"CHECK", "DEL", "ADD"} {
		err := h.run(t, command, two)
		if status.Code(err) != 11 || !strings.Contains(err.Error(), "remove "+note) {
			t.Errorf("%s: code %d: %v", command, status.Code(err), err)
		}
	}
	for _, call := range h.trace() {
		if strings.Contains(call, "macvlan") {
			t.Errorf("run: %s", call)
		}
	}
	nodetest.OK(t, os.Remove(note))
	h.mustRun(t, "DEL", two)
	if got := h.trace(); len(got) != 1 || got[0] != "DEL macvlan net1" {
		t.Errorf("%q", got)
	}
}

// With a Root, all paths in the configuration are the node's. Symbolic links are
// followed in the Root: absolute ones, dangling ones, and ones that would lead out.
// No file outside is read or written. A path may also begin with the Root.
func TestPathsAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.root = filepath.Join(h.Dir, "node")
	h.Write("node/data/etc/storage.conf", `{"name":"storage","type":"macvlan"}`)
	h.Write("node/data/other/fast.conf", `{"name":"fast","type":"bridge"}`)
	h.Write("node/run/primary.conf", `{"name":"primary","type":"bridge"}`)
	h.Write("elsewhere/out.conf", `{"name":"out","type":"full"}`)
	if err := errors.Join(
		os.MkdirAll(h.root+"/etc/cni", 0o700), os.MkdirAll(h.root+"/var/lib", 0o700),
		os.Symlink("/data/etc", h.root+"/etc/cni/net.d"),
		os.Symlink("/data/other/fast.conf", h.root+"/data/etc/fast.conf"),
		os.Symlink(h.Dir+"/elsewhere/out.conf", h.root+"/data/etc/out.conf"),
		os.Symlink("../../../../../../../../../../../state", h.root+"/var/lib/cni"), // dangles
		os.Symlink("loop", h.root+"/loop"),
	); err != nil {
		t.Fatal(err)
	}
	for name, conf := range map[string]string{
		"as the node has them":     `"binDir":"/opt/x","cniDir":"/var/lib/cni/multinet","confDir":"/etc/cni/net.d","clusterNetwork":"/run/primary.conf","readinessindicatorfile":"/etc/cni/net.d/fast.conf"`,
		"as this process has them": `"binDir":"` + h.root + `/opt/x","cniDir":"` + h.root + `/var/lib/cni/multinet","confDir":"` + h.root + `/etc/cni/net.d","clusterNetwork":"` + h.root + `/run","readinessindicatorfile":"` + h.root + `/etc/cni/net.d/fast.conf"`,
	} {
		t.Run(name, func(t *testing.T) {
			conf = `{"cniVersion":"1.1.0","name":"multi","type":"multinet",` + conf + `,` + annotated("storage,fast") + `}`
			nodetest.OK(t, h.call(t.Context(), "ADD", conf))
			if path := h.Exec.Calls()[h.seen].Path; path != "/opt/x:/opt/other/bin" {
				t.Errorf("plugins are looked for in %s", path)
			}
			wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD bridge net2")
			if records, err := filepath.Glob(h.root + "/state/multinet/c1@*.json"); len(records) != 1 {
				t.Errorf("records %q, %v", records, err)
			}
			if dir, err := StateDir(plugin.Root(h.root), []byte(conf)); err != nil || dir != h.root+"/state/multinet" {
				t.Errorf("%q, %v", dir, err)
			}
			nodetest.OK(t, h.call(t.Context(), "DEL", conf))
			wantTrace(t, h, "DEL bridge net2", "DEL macvlan net1", "DEL bridge eth0")
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
		{bridge + `,"cniDir":"` + h.root + `/var/lib/x/../cni"`, 7, "runtime keeps its own state"},
		{bridge + `,"cniDir":"/loop/x"`, 7, "too many symbolic links"},
	} {
		err := h.call(t.Context(), "ADD", `{"cniVersion":"1.1.0","name":"multi","type":"multinet",`+tt.keys+`}`)
		if err == nil {
			t.Errorf("%s: no error", tt.keys)
		}
		wantError(t, err, tt.code, tt.says)
	}
	wantTrace(t, h)
	if files, _ := filepath.Glob(h.Dir + "/state"); len(files) > 0 {
		t.Errorf("made outside: %q", files)
	}
}
