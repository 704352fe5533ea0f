package multinet

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
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
			h.write(t, "net.d/blue.conflist", blue)
			h.write(t, file, entry)
			conf := keys(`"cniCacheDir":"`+filepath.Join(h.dir, "cni")+`"`, os.Expand(tt.conf, func(string) string { return h.dir }))
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
			if _, err := os.Lstat(filepath.Join(h.dir, file)); (err == nil) == tt.found {
				t.Errorf("libcni's entry: %v", err)
			}
			h.clean(t)
		})
	}
}
