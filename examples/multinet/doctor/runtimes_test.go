package doctor

import (
	"cmp"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// What each runtime reads, in the forms that they and their installers write.
func TestRuntimesAreRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"containerd 1.2": {map[string]string{"etc/containerd/config.toml": "[plugins.cri.cni]\nconf_dir = '/a'\nbin_dir = '/b'"}, "containerd reads networks in /a, plugins in /b"},
		"containerd 2, all keys": {
			map[string]string{"etc/containerd/config.toml": "imports = []\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n  bin_dir = ''\n  bin_dirs = [\n    '/b', # '/no'\n    '/c/',\n  ]\n  conf_dir = '/a/'\n  conf_template = '/no'\n[stream]\npath = '/no'\n"},
			"containerd reads networks in /a, plugins in /b:/c/",
		},
		"a value of another type": {map[string]string{"etc/containerd/config.toml": "[plugins.cri.cni]\nconf_dir = 7"}, "line 2: toml: "},
		"a table twice":           {map[string]string{"etc/containerd/config.toml": "[plugins.cri.cni]\n[plugins.cri.cni]"}, "line 2: toml: "},
		"comments": {
			map[string]string{"etc/containerd/config.toml": "[plugins.cri.cni]\n#conf_dir = '/no'\nconf_dir = \"/a\" # \"/no\"\n # bin_dir = \"/no\"\n"},
			"containerd reads networks in /a, plugins in /opt/cni/bin",
		},
		"keys of others": {
			map[string]string{"etc/containerd/config.toml": "plugin_dir = '/no'\n[plugins]\n  [plugins.'io.containerd.cri.v1.runtime']\n    [plugins.'io.containerd.cri.v1.runtime'.cni] # \"x\"\n      conf_dir = '/a'\n      BinDir = '/no'\n    [plugins.'io.containerd.image-verifier.v1.bindir']\n    bin_dir = '/no'\n"},
			"containerd reads networks in /a, plugins in /opt/cni/bin",
		},
		"inline tables, dotted keys, and lines of DOS": {
			map[string]string{"etc/containerd/config.toml": "plugins.cri.cni.bin_dir = '/b'\r\n[plugins.'io.containerd.cri.v1.runtime']\r\ncni = {conf_dir = \"/a\"}\r\n"},
			"containerd reads networks in /a, plugins in /b",
		},
		"imports": {
			map[string]string{
				"etc/containerd/config.toml":   "imports = ['conf.d/*.toml', '/etc/containerd/config.toml', '/absent/*']\n[plugins.cri.cni]\nconf_dir = '/no'\nbin_dir = '/b'",
				"etc/containerd/conf.d/1.toml": "[plugins.cri.cni]\nconf_dir = '/no'\n", "etc/containerd/conf.d/2.toml": "[plugins.cri.cni]\nconf_dir = '/a'\n",
			},
			"containerd reads networks in /a, plugins in /b",
		},
		"MicroK8s": {
			map[string]string{"var/snap/microk8s/current/args/containerd.toml": "[plugins.\"io.containerd.grpc.v1.cri\".cni]\n    bin_dir = \"${SNAP_DATA}/opt/cni/bin\"\n    conf_dir = \"${SNAP_DATA}/args/cni-network\"\n"},
			"MicroK8s reads networks in /var/snap/microk8s/current/args/cni-network, plugins in /var/snap/microk8s/current/opt/cni/bin",
		},
		"Talos": {
			map[string]string{"etc/cri/containerd.toml": "version = 3\nimports = [\n    \"/etc/cri/conf.d/cri.toml\",\n]\n", "etc/cri/conf.d/cri.toml": "[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = '/a'\n"},
			"Talos reads networks in /a, plugins in /opt/cni/bin",
		},
		"OpenShift": {
			map[string]string{
				"etc/crio/crio.conf":               "[crio.network]\nnetwork_dir = \"/no\"\n",
				"etc/crio/crio.conf.d/00-default":  "[crio.network]\nnetwork_dir = \"/etc/kubernetes/cni/net.d/\"\nplugin_dirs = [\n    \"/var/lib/cni/bin\",\n    \"/usr/libexec/cni\",\n]\n",
				"etc/crio/crio.conf.d/01-runtimes": "[crio.runtime]\n",
			},
			"CRI-O reads networks in /etc/kubernetes/cni/net.d, plugins in /var/lib/cni/bin:/usr/libexec/cni",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.remove("etc/containerd", "opt/cni/bin") // nobody knows which plugins are there
			for file, text := range tt.files {
				n.Write(file, text)
			}
			got := n.doctor.Check(t.Context())[0].Found
			if !strings.HasPrefix(got, tt.want) || strings.Contains(got, "/no") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Whatever the files hold, and whatever they are, the doctor returns and says so.
func TestDoctorSurvivesBrokenNodes(t *testing.T) {
	t.Parallel()
	files := []string{
		"etc/containerd/config.toml", "etc/cni/net.d/00-multinet.conflist", "etc/cni/net.d/10-blue.conflist", "opt/cni/bin/bridge", "opt/cni/bin/multinet",
		"var/lib/cni/multinet/c1@multinet@eth0.json", "var/lib/cni/results/multinet-c1-eth0",
	}
	for name, damage := range map[string]func(path string) error{
		"empty":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"nonsense":  func(path string) error { return os.WriteFile(path, []byte("\x00\xff\n[{\"'"), 0o600) },
		"deep":      func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("[", 1<<20)), 0o600) },
		"deeper":    func(path string) error { return os.WriteFile(path, []byte("a = "+strings.Repeat("{a=", 1<<18)), 0o600) },
		"null":      func(path string) error { return os.WriteFile(path, []byte(`{"plugins":[null],"name":7}`), 0o600) },
		"huge":      func(path string) error { return os.Truncate(path, 1<<40) },
		"directory": func(path string) error { return os.Remove(path) },
		"FIFO":      func(path string) error { return cmp.Or(os.Remove(path), unix.Mkfifo(path, 0o700)) },
		"loop":      func(path string) error { return cmp.Or(os.Remove(path), os.Symlink(path, path)) },
		"no rights": func(path string) error { return os.Chmod(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			for _, file := range files {
				nodetest.OK(t, damage(n.Path(file)))
				if name == "directory" {
					nodetest.OK(t, os.Mkdir(n.Path(file), 0o700))
				}
			}
			if got := n.findings(); got == nil && name != "no rights" { // root may read all
				t.Error("nothing is found")
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.remove("etc", "opt", "var", "run")
		nodetest.Equal(t, "findings", n.findings(), []string{"runtimes unknown /etc: no configuration of a runtime in a usual place", "first problem /etc/cni/net.d: no such file or directory"})
	})
}

// The text of findings fits into 80 columns. Print fails if there is something to do.
func TestPrint(t *testing.T) {
	t.Parallel()
	ok := Finding{"first", OK, "/etc/cni/net.d", "10-x.conflist is first", ""}
	long := Finding{"annotations", Problem, "/etc", strings.Repeat("many words ", 20) + strings.Repeat("x", 100), "chmod +x " + strings.Repeat("y", 40) + " now"}
	var text, list strings.Builder
	nodetest.OK(t, Print(&text, false, []Finding{ok}))
	nodetest.Equal(t, "text", text.String(), "ok       first       /etc/cni/net.d\n                     10-x.conflist is first\n")
	text.Reset()
	err := Print(&text, false, []Finding{ok, long})
	nodetest.Says(t, err, "1 of 2")
	for line := range strings.Lines(text.String()) {
		if len(line) > 80 && !strings.Contains(line, "xxx") {
			t.Errorf("too wide: %q", line)
		}
	}
	nodetest.Equal(t, "words of "+text.String(), len(strings.Fields(text.String())), 6+3+40+1+5)
	// Whoever names files and containers does not rule the terminal of the operator.
	text.Reset()
	id := strings.Repeat("0123456789abcdef", 4)
	hostile := Finding{"first", Problem, "/etc/a\nok  x", "\x1b[31mred\x07 \u202e" + id, "remove\r \x9b"}
	nodetest.Says(t, Print(&text, false, []Finding{hostile}), "1 of 1")
	const bad = "\ufffd"
	indent := "\n" + strings.Repeat(" ", 21)
	nodetest.Equal(t, "text", text.String(), "problem  first       /etc/a"+bad+"ok  x"+indent+bad+"[31mred"+bad+" "+bad+"0123456789ab"+indent+"-> remove"+bad+" "+bad+"\n")
	nodetest.Says(t, Print(&list, true, []Finding{ok, long}), "1 of 2")
	var got []Finding
	nodetest.OK(t, json.Unmarshal([]byte(list.String()), &got))
	nodetest.Equal(t, "list", got, []Finding{ok, long})
}

// Imports end, also if a file imports itself by ever longer names.
func TestImportsEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("etc/containerd/config.toml", "imports = ['*.toml', 'a/*.toml', 'b/*.toml']\n")
	for _, link := range []string{"a", "b"} {
		nodetest.OK(t, os.Symlink(".", n.Path("etc/containerd/"+link)))
	}
	nodetest.Equal(t, "findings", n.findings(), nil)
}
