package multinet

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/nodetest"
)

// With a Root, all paths in the configuration are the node's. Symbolic links are
// followed in the Root: absolute ones, dangling ones, and ones that would lead out.
// No file outside is read or written. A path may also begin with the Root.
func TestPathsAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.root = filepath.Join(h.dir, "node")
	h.write(t, "node/data/etc/storage.conf", `{"name":"storage","type":"macvlan"}`)
	h.write(t, "node/data/other/fast.conf", `{"name":"fast","type":"bridge"}`)
	h.write(t, "node/run/primary.conf", `{"name":"primary","type":"bridge"}`)
	h.write(t, "elsewhere/out.conf", `{"name":"out","type":"full"}`)
	if err := errors.Join(
		os.MkdirAll(h.root+"/etc/cni", 0o700), os.MkdirAll(h.root+"/var/lib", 0o700),
		os.Symlink("/data/etc", h.root+"/etc/cni/net.d"),
		os.Symlink("/data/other/fast.conf", h.root+"/data/etc/fast.conf"),
		os.Symlink(h.dir+"/elsewhere/out.conf", h.root+"/data/etc/out.conf"),
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
			if path := h.exec.Calls()[h.seen].Path; path != "/opt/x:/opt/other/bin" {
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
		{`"clusterNetwork":"` + h.dir + `/elsewhere/out.conf"` + cniDir, 7, "out.conf"},
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
	if files, _ := filepath.Glob(h.dir + "/state"); len(files) > 0 {
		t.Errorf("made outside: %q", files)
	}
}
