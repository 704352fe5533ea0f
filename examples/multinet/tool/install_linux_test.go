package tool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

func TestMain(m *testing.M) {
	programtest.Main(m, "multinet", func() { // as the executable does
		if os.Getenv("CNI_COMMAND") == "" {
			os.Exit(Run(context.Background(), os.Args[1:], plugin.OfProcess()))
		}
		plugin.Main(multinet.New(multinet.Cluster{}))
	})
}

// A node is where multinet is installed.
type node struct {
	*nodetest.Node
	said, printed strings.Builder // on stderr, on stdout
}

// newNode makes a node with networks in its net.d: name, content and so on. The
// program is the file self.
func newNode(t *testing.T, networks ...string) *node {
	t.Helper()
	n := &node{Node: nodetest.New(t)}
	for _, dir := range []string{"net.d", "bin", "cni"} {
		n.mkdir(dir)
	}
	for _, plugin := range []string{"bridge", "macvlan", "fake"} {
		nodetest.OK(t, os.Symlink("/bin/true", n.Path("bin/"+plugin)))
	}
	n.Write("self", "#!/bin/sh\n")
	for i := 0; i < len(networks); i += 2 {
		n.Write("net.d/"+networks[i], networks[i+1])
	}
	return n
}

func (n *node) mkdir(name string) {
	n.Helper()
	nodetest.OK(n, os.Mkdir(n.Path(name), 0o700))
}

// read returns the text of a file, or "" if it is not there.
func (n *node) read(name string) string {
	n.Helper()
	if _, err := os.Lstat(n.Path(name)); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return strings.ReplaceAll(n.Read(name), n.Dir, "$DIR")
}

// files lists the files of the node without its plugins.
func (n *node) files() []string {
	n.Helper()
	return slices.DeleteFunc(programtest.Files(n.TB, n.Dir), func(name string) bool {
		return slices.Contains([]string{"bin/bridge", "bin/fake", "bin/macvlan"}, name)
	})
}

func (n *node) stat(name string) fs.FileInfo {
	n.Helper()
	info, err := os.Lstat(n.Path(name))
	nodetest.OK(n, err)
	return info
}

// do runs the operator's command on the node. $DIR is its directory.
func (n *node) do(words ...string) error {
	n.Helper()
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "$DIR", n.Dir)
	}
	flags := []string{"--conf-dir", n.Path("net.d"), "--bin-dir", n.Path("bin"), "--cache-dir", n.Path("cni"), "--multus-dir", n.Path("multus")}
	switch words[0] {
	case "uninstall":
		flags = append(flags[:6:6], "--dir", n.Path("state"))
	case "adopt":
		flags = append(flags[:2:2], flags[4:]...)
	}
	return operate(n.Context(), slices.Concat(words[:1], flags, words[1:]), console{
		out: &n.printed, ask: &n.said, self: func() (string, error) { return n.Path("self"), nil },
		process: plugin.Process{Exec: n.Exec},
	})
}

const (
	blue     = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"capabilities":{"mac":true},"type":"bridge"}]}`
	green    = `{"cniVersion":"1.0.0","name":"green","plugins":[{"type":"macvlan"}]}`
	loopback = `{"cniVersion":"1.0.0","name":"lo","type":"loopback"}`
)

// published is the plugin of a published network, as it is written. The node's cache of
// libcni is not in the default directory.
func published(name, plugin string) string {
	if !strings.Contains(plugin, "cniCacheDir") {
		plugin = strings.Replace(plugin, `"delegates"`, `"cniCacheDir":"$DIR/cni","delegates"`, 1)
	}
	return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[` + plugin + "]}\n"
}

func TestInstall(t *testing.T) {
	t.Parallel()
	const annotations = `"io.kubernetes.cri.pod-annotations":true`
	ofBlue := published("multinet", `{"capabilities":{`+annotations+`,"mac":true},"delegates":[`+blue+`],"type":"multinet"}`)
	ofGreen := published("multinet", `{"capabilities":{`+annotations+`},"delegates":[`+green+`],"type":"multinet"}`)
	for _, tt := range []struct {
		name     string
		networks []string
		config   string
		flags    []string
		want     string
		errs     string
	}{
		{name: "in front of the first", networks: []string{"10-x.conflist", blue, "20-y.conflist", green}, want: ofBlue},
		{name: "passing over what cannot be used", networks: []string{"05-x.conf", "", "06-x.conf", loopback, "10-x.conflist", blue}, want: ofBlue},
		{name: "in front of the one that is named", networks: []string{"10-x.conflist", blue, "20-y.conflist", green}, flags: []string{"--cluster-network", "20-y.conflist"}, want: ofGreen},
		{name: "of another type", networks: []string{"10-x.conf", `{"name":"multus","type":"multus"}`, "20-y.conflist", green}, want: ofGreen},
		{
			name: "by reference", networks: []string{"10-x.conflist", green}, flags: []string{"--host-conf-dir", "/host/net.d"},
			want: published("multinet", `{"capabilities":{`+annotations+`},"clusterNetwork":"/host/net.d/10-x.conflist","cniCacheDir":"$DIR/cni","type":"multinet"}`),
		},
		{
			name: "with all flags", networks: []string{"10-x.conflist", green},
			flags: []string{"--name", "n", "--type", "t", "--cni-dir", "/state", "--mode", "644", "--pod-annotations=false", "--readiness-file", "$DIR/self"},
			want:  published("n", `{"cniCacheDir":"$DIR/cni","cniDir":"/state","delegates":[`+green+`],"type":"t"}`),
		},
		{
			name: "with a file", networks: []string{"10-x.conflist", green}, flags: []string{"--name", "n"},
			config: `{"name":"other","type":"t","capabilities":{"io.kubernetes.cri.pod-annotations":false},"cniDir":"/state","args":{"x":9007199254740993}}`,
			want:   published("n", `{"args":{"x":9007199254740993},"capabilities":{"io.kubernetes.cri.pod-annotations":false},"cniCacheDir":"$DIR/cni","cniDir":"/state","delegates":[`+green+`],"type":"t"}`),
		},
		{name: "nothing", errs: "no primary network"},
		{name: "loopback alone", networks: []string{"10-x.conf", loopback}, errs: `"10-x.conf": refused`},
		{name: "broken", networks: []string{"10-x.conf", "{"}, errs: `"10-x.conf"`},
		{name: "not ready", networks: []string{"10-x.conflist", blue}, flags: []string{"--readiness-file", "$DIR/absent"}, errs: "readiness file"},
		{name: "shadowed", networks: []string{"00-a.conf", loopback, "10-x.conflist", blue}, want: ofBlue, errs: "00-a.conf"},
		{name: "a broken file", config: "{", errs: "config.json"},
		{name: "a file that no pod can do with", networks: []string{"10-x.conflist", blue}, config: `{"defaultNetworks":"x"}`, errs: "defaultNetworks"},
		{name: "a file with a cluster network", networks: []string{"10-x.conflist", blue}, config: `{"clusterNetwork":"x"}`, errs: `/net.d/00-multinet": invalid configuration: key "clusterNetwork": must not be set by the user`},
		{name: "a file with an unknown key", networks: []string{"10-x.conflist", blue}, config: `{"defaultNetwork":["x"]}`, errs: `config.json: there is no key "defaultNetwork"`},
		{name: "a file with keys of the shim", networks: []string{"10-x.conflist", blue}, flags: []string{"--type", "multinet-shim"}, config: `{"delPolicy":"fail"}`, want: published("multinet", `{"capabilities":{`+annotations+`,"mac":true},"cniCacheDir":"$DIR/cni","delPolicy":"fail","delegates":[`+blue+`],"type":"multinet-shim"}`)},
		{name: "a plugin that is not there", networks: []string{"10-x.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"},{"type":"absent"}]}`}, errs: `/net.d/10-x.conflist: plugin "absent": not found in`},
		{name: "a plugin in another directory", networks: []string{"10-x.conflist", `{"cniVersion":"1.0.0","name":"a","type":"true"}`}, config: `{"binDir":"/bin"}`, want: published("multinet", `{"binDir":"/bin","capabilities":{`+annotations+`},"cniCacheDir":"$DIR/cni","delegates":[{"cniVersion":"1.0.0","name":"a","plugins":[{"cniVersion":"1.0.0","name":"a","type":"true"}]}],"type":"multinet"}`)},
		{name: "no cache", networks: []string{"10-x.conflist", blue}, flags: []string{"--cache-dir", "/absent"}, errs: "--cache-dir: stat /absent: no such file"},
		{name: "a cluster network that is not there", networks: []string{"10-x.conflist", blue}, flags: []string{"--cluster-network", "11-x.conflist"}, errs: `"11-x.conflist": file does not exist`},
		{name: "no file", flags: []string{"--config", "$DIR/absent"}, errs: "absent"},
		{name: "relative cache", flags: []string{"--cache-dir", "x"}, errs: "cniCacheDir"},
		{name: "relative state", flags: []string{"--cni-dir", "state"}, errs: "cniDir"},
		{name: "no name", networks: []string{"10-x.conflist", blue}, flags: []string{"--name", ""}, errs: "name"},
		{name: "a path for a type", flags: []string{"--type", "../x"}, errs: "type"},
		{name: "a path for the output", flags: []string{"--output", "../x"}, errs: "output"},
		{name: "a path for the cluster network", flags: []string{"--cluster-network", "/x"}, errs: "--cluster-network /x: not the name of a file in --conf-dir"},
		{name: "the published file for a cluster network", flags: []string{"--cluster-network", "00-multinet.conflist"}, errs: "--cluster-network 00-multinet.conflist: this is the file to publish"},
		{name: "a relative directory of the host", flags: []string{"--host-conf-dir", "x"}, errs: "--host-conf-dir x: not an absolute path"},
		{name: "bad mode", flags: []string{"--mode", "rw"}, errs: "mode"},
		{name: "more than permissions", flags: []string{"--mode", "4755"}, errs: "mode"},
		{name: "no directory of networks", flags: []string{"--conf-dir", "$DIR/absent"}, errs: "absent"},
		{name: "no directory of plugins", flags: []string{"--bin-dir", "$DIR/absent"}, errs: "absent"},
		{name: "a flag of uninstall", flags: []string{"--binary"}, errs: "binary"},
		{name: "an argument", flags: []string{"x"}, errs: `"x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, tt.networks...)
			if tt.config != "" {
				n.Write("config.json", tt.config)
				tt.flags = append(tt.flags, "--config", n.Path("config.json"))
			}
			err := n.do(append([]string{"install"}, tt.flags...)...)
			if (err != nil) != (tt.errs != "") || err != nil && !strings.Contains(err.Error(), tt.errs) {
				t.Errorf("err = %v, want %q", err, tt.errs)
			}
			nodetest.Equal(t, "published", n.read("net.d/00-multinet.conflist"), tt.want)
			mode := fs.FileMode(0o600)
			for i, flag := range tt.flags {
				if flag == "--mode" && tt.flags[i+1] == "644" {
					mode = 0o644
				}
			}
			if tt.want != "" && n.stat("net.d/00-multinet.conflist").Mode() != mode {
				t.Errorf("mode %v", n.stat("net.d/00-multinet.conflist").Mode())
			}
			if strings.Contains(n.said.String(), "is published") != (tt.errs == "") {
				t.Errorf("said %q", n.said.String())
			}
		})
	}
}

// uninstall removes the published network, and the program with --binary.
func TestUninstall(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10-x.conflist", blue)
	nodetest.OK(t, n.do("install"))
	n.Write("bin/.multinet.tmp-1", "left by a crash")
	nodetest.OK(t, n.do("uninstall"))
	nodetest.Equal(t, "left", n.files(), []string{"bin/.multinet.tmp-1", "bin/multinet", "net.d/10-x.conflist", "self"})
	if n.said.Reset(); n.do("uninstall") != nil || n.said.Len() > 0 {
		t.Errorf("said %q", n.said.String())
	}
	// A file of that name that is another's stays, and that is told.
	n.Write("net.d/00-multinet.conflist", green)
	for range 2 {
		nodetest.OK(t, n.do("uninstall", "--binary"))
		if !strings.Contains(n.said.String(), "net.d/00-multinet.conflist") {
			t.Errorf("said %q", n.said.String())
		}
	}
	nodetest.Equal(t, "left", n.files(), []string{"net.d/00-multinet.conflist", "net.d/10-x.conflist", "self"})
	if err := n.do("uninstall", "--conf-dir", "$DIR/none"); err != nil {
		t.Errorf("from where nothing is: %v", err)
	}
	for _, words := range [][]string{
		{"uninstall", "--watch"},
		{"uninstall", "--type", ".."},
		{"uninstall", "x"},
		{"uninstall", "--detach", "--leave"},
		{"uninstall", "--detach", "--bin-dir", ""},
		{"uninstall", "--cache-dir", "x"},
	} {
		if err := n.do(words...); err == nil {
			t.Errorf("%q: no error", words)
		}
	}
	for _, word := range []string{"install", "uninstall", "adopt"} {
		var out strings.Builder
		if err := operate(t.Context(), []string{word, "--help"}, console{out: &out}); err != nil || !strings.Contains(out.String(), "-conf-dir") {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}

// A watcher is the process of install --watch.
type watcher struct {
	*node
	cmd    *exec.Cmd
	stderr *bufio.Reader
}

// startWatch starts the process. It returns once its first network is
// published.
func startWatch(t *testing.T, flags ...string) *watcher {
	t.Helper()
	w := &watcher{node: newNode(t, "10-x.conflist", blue), cmd: programtest.NewHost(t, "multinet").Command("", "")}
	w.Write("ready", "")
	w.cmd.Args = append(w.cmd.Args, "install", "--watch", "--conf-dir", w.Path("net.d"), "--bin-dir", w.Path("bin"), "--readiness-file", w.Path("ready"),
		"--cni-dir", w.Path("state"), "--cache-dir", w.Path("cni"), "--multus-dir", w.Path("multus"))
	w.cmd.Args = append(w.cmd.Args, flags...)
	pipe, err := w.cmd.StderrPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	nodetest.OK(t, err)
	w.stderr = bufio.NewReader(pipe)
	w.says(`is published in front of "10-x.conflist"`)
	return w
}

// says waits for a line that has words, and returns it.
func (w *watcher) says(words string) string {
	w.Helper()
	for {
		line, err := w.stderr.ReadString('\n')
		if err != nil {
			w.Fatalf("never said %q: %v", words, err)
		}
		if strings.Contains(line, words) {
			return line
		}
	}
}

func TestInstallWatch(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			w := startWatch(t)
			w.Write("net.d/05-y.conflist", green)
			w.says(`is published in front of "05-y.conflist"`)
			nodetest.OK(t, w.cmd.Process.Signal(sig))
			if err := w.cmd.Wait(); err != nil {
				t.Errorf("ended with %v", err)
			}
			if got := w.read("net.d/00-multinet.conflist"); !strings.Contains(got, "green") {
				t.Errorf("left: %s", got)
			}
		})
	}
}

// While install --watch runs, no other installation or uninstallation runs in the
// same directory, not even under another name.
func TestOneInstallsAtATime(t *testing.T) {
	t.Parallel()
	w := startWatch(t)
	w.Write("self", "another")
	for _, words := range [][]string{{"install"}, {"install", "--output", "01-multinet"}, {"uninstall"}} {
		if err := w.do(words...); !errors.Is(err, autoconf.ErrLocked) {
			t.Errorf("%q: %v", words, err)
		}
	}
	nodetest.OK(t, w.cmd.Process.Signal(syscall.SIGTERM))
	_ = w.cmd.Wait()
	nodetest.OK(t, w.do("uninstall"))
	nodetest.Equal(t, "left", programtest.Files(t, w.Path("net.d")), []string{"10-x.conflist"})
	if _, err := os.Lstat(w.Path("net.d/.multinet")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock's directory: %v", err)
	}
}

// The messages of install --watch begin with the time.
func TestWatchSaysWhen(t *testing.T) {
	t.Parallel()
	w := startWatch(t)
	w.Write("net.d/05-y.conflist", green)
	line, _, _ := strings.Cut(w.says("05-y.conflist"), " multinet: ")
	if _, err := time.Parse(time.RFC3339, line); err != nil {
		t.Error(err)
	}
}

// install --watch ends when the readiness file is removed. What it has published
// stays.
func TestInstallEndsWhenReadinessFileIsRemoved(t *testing.T) {
	t.Parallel()
	w := startWatch(t)
	nodetest.OK(t, os.Remove(w.Path("ready")))
	w.says(autoconf.ErrReadinessLost.Error())
	if err := w.cmd.Wait(); w.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	if got := w.read("net.d/00-multinet.conflist"); !strings.Contains(got, "blue") {
		t.Errorf("left: %s", got)
	}
}

// multinet can use every network that install publishes.
func TestPublishedNetworkCanBeUsed(t *testing.T) {
	t.Parallel()
	h := programtest.NewHost(t, "multinet")
	n := newNode(t, "10-x.conflist", fmt.Sprintf(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"fake","dir":%q}]}`, h.Dir))
	nodetest.OK(t, n.do("install", "--cni-dir", h.State))
	network, err := netconf.LoadFile(n.Path("net.d/00-multinet.conflist"))
	nodetest.OK(t, err)
	request, err := network.Request(0, netconf.Request{})
	nodetest.OK(t, err)
	for _, command := range []string{"STATUS", "ADD", "CHECK", "DEL"} {
		if stdout, stderr, code := h.Run(command, string(request)); code != 0 {
			t.Errorf("%s: %s%s", command, stdout, stderr)
		}
	}
	nodetest.Equal(t, "calls", h.Log(), []string{"STATUS", "ADD eth0", "CHECK eth0", "DEL eth0"})
}
