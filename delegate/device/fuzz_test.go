package device

import (
	"path"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// FuzzNames shows that no name leads out of its directory.
func FuzzNames(f *testing.F) {
	f.Add("owner", "c1", "net1", "vendor.example/vf", "0000:3b:02.1")
	for _, id := range []string{"/../x", "../../../../etc/shadow", "/etc/shadow", "..", ".", "a/../b", "x\x00y", strings.Repeat("x", 300)} {
		f.Add("", "..", "/", "../..", id)
	}
	f.Fuzz(func(t *testing.T, owner, container, ifname, resource, id string) {
		d := Dir{Owner: owner}
		a := d.Assign(delegate.Attachment{ContainerID: container, IfName: ifname, CapabilityArgs: netconf.Selection{DeviceID: "x" + id}.CapabilityArgs()})
		if len(a.Files) != 1 || path.Dir(a.Files[0]) != defaultPath+"/cni" || assigned(a) != a.Files[0] || !d.owns(path.Base(a.Files[0])) {
			t.Errorf("files %q", a.Files)
		}
		name := devicePluginFile(resource, id)
		if strings.Contains(name, "/") || path.Join("/dp", name) != "/dp/"+name {
			t.Errorf("%q is not the name of one file", name)
		}
	})
}
