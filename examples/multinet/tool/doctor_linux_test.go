package tool

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/metacni/metacni/examples/multinet/doctor"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// doctor finds nothing to do where multinet is installed, and says what is wrong elsewhere. It
// changes nothing.
func TestDoctor(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	look := func(fails bool, flags ...string) (all []doctor.Finding) {
		t.Helper()
		before := n.Files("")
		n.printed.Reset()
		err := n.do(append([]string{"doctor", "-o", "json"}, flags...)...)
		if (err != nil) != fails {
			t.Errorf("%q: %v: %s", flags, err, n.printed.String())
		}
		nodetest.OK(t, json.Unmarshal([]byte(n.printed.String()), &all))
		nodetest.Equal(t, "files", n.Files(""), before)
		return all
	}
	look(true)
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
	checks := make(map[string]string)
	for _, f := range look(false) {
		checks[f.Check] = f.Looked
	}
	nodetest.Equal(t, "records are looked for in", checks["records"], n.Path("state"))
	if _, asked := checks["daemon"]; asked {
		t.Error("a daemon is asked for")
	}
	look(false, "--dir", n.Path("state"), "--cache-dir", "")
	n.Write("net.d/00-a.conf", green)
	look(true)
	n.printed.Reset()
	nodetest.Says(t, n.do("doctor"), "1 of")
	if !strings.Contains(n.printed.String(), "problem  first       "+n.Path("net.d")+"\n") {
		t.Errorf("printed %s", n.printed.String())
	}
}

// install refuses before it changes anything, and says why. --force installs all the same.
func TestInstallRefusesWhatDoctorCallsFatal(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flaw func(n *node)
		says string
	}{
		"a missing plugin": {
			flaw: func(n *node) { nodetest.OK(n, os.Remove(n.Path("bin/bridge"))) },
			says: `/net.d/10-x.conflist: plugin "bridge": not found in `,
		},
		"a file that Cilium has renamed": {
			flaw: func(n *node) { n.Write("net.d/00-multinet.conflist.cilium_bak", "") },
			says: "Cilium has renamed 00-multinet.conflist: set cni.exclusive=false",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := installable(t, "10-x.conflist", blue)
			tt.flaw(n)
			before := n.Files("")
			nodetest.Says(t, n.do("install", "--root", n.Dir, "--cni-dir", n.Path("state")), tt.says, "nothing has been changed; --force")
			nodetest.Equal(t, "files", n.Files(""), before)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := n.doUntil(ended, "install", "--watch", "--root", n.Dir, "--cni-dir", n.Path("state")); (err == nil) != strings.Contains(name, "plugin") {
				t.Errorf("--watch: %v", err) // plugins may come later
			}
			nodetest.OK(t, n.do("install", "--force", "--root", n.Dir, "--cni-dir", n.Path("state")))
			n.wantInstalled(true, true)
			n.says("level=WARN")
		})
	}
}

// With --root the directories of the runtime are those of the node.
func TestInstallLooksForPluginsOnTheNode(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	n.Write("etc/crio/crio.conf", "[crio.network]\nnetwork_dir = \"/net.d\"\nplugin_dirs = [\"/bin\", \"/usr/libexec/cni\"]\n")
	n.Write("usr/libexec/cni/.keep", "")
	nodetest.OK(t, os.Rename(n.Path("bin/bridge"), n.Path("usr/libexec/cni/bridge")))
	nodetest.OK(t, n.do("install", "--root", n.Dir, "--cni-dir", n.Path("state")))
}

// Problems are warnings: the user may know better which directory the runtime reads.
func TestInstallWarnsOfProblems(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	n.Write("root/etc/containerd/config.toml", "version = 2\n")
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("root/state"), "--root", n.Path("root")))
	n.says("containerd reads networks in /etc/cni/net.d", "--conf-dir /etc/cni/net.d")
}
