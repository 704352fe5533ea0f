package tool

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/examples/multinet/doctor"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/internal/flock"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/scratch"
)

func TestMain(m *testing.M) {
	programtest.Main(m, "multinet", func() { // as the executable does
		if os.Getenv("CNI_COMMAND") == "" {
			os.Exit(Run(context.Background(), os.Args[1:], plugin.OfProcess()))
		}
		plugin.Main(multinet.New(multinet.Cluster{}))
	})
}

// installable is a node with networks in its net.d: name, content and so on. The
// program is the file self.
func installable(t *testing.T, networks ...string) *node {
	t.Helper()
	n := newNode(t)
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

// says wants the last command to have said all of words on stderr.
func (n *node) says(words ...string) {
	n.Helper()
	nodetest.Contains(n, "said", n.said.String(), words...)
}

// wantInstalled wants the network to be published or not, and the program to be there or not.
func (n *node) wantInstalled(network, program bool) {
	n.Helper()
	nodetest.Equal(n, "the network is published", n.read("net.d/00-multinet.conflist") != "", network)
	nodetest.Equal(n, "the program is there", n.read("bin/multinet") != "", program)
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
	return slices.DeleteFunc(n.Files(""), func(name string) bool {
		return n.stat(name).IsDir() || slices.Contains([]string{"bin/bridge", "bin/fake", "bin/macvlan"}, name)
	})
}

func (n *node) stat(name string) fs.FileInfo {
	n.Helper()
	info, err := os.Lstat(n.Path(name))
	nodetest.OK(n, err)
	return info
}

// do runs the operator's command on the node. $DIR is its directory.
func (n *node) do(words ...string) error { n.Helper(); return n.doUntil(n.Context(), words...) }

func (n *node) doUntil(ctx context.Context, words ...string) error {
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
	case "doctor":
		flags = flags[:6]
	}
	return (&tool{
		out: &n.printed, ask: &n.said, self: func() (string, error) { return n.Path("self"), nil },
		process: plugin.System{Exec: n.Exec},
	}).run(ctx, slices.Concat(words[:1], flags, words[1:]))
}

const (
	blue     = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"capabilities":{"mac":true},"type":"bridge"}]}`
	green    = `{"cniVersion":"1.0.0","name":"green","plugins":[{"type":"macvlan"}]}`
	loopback = `{"cniVersion":"1.0.0","name":"lo","type":"loopback"}`
)

// published is the plugin of a published network, as it is written. The node's cache of
// libcni and its networks are not in the default directories.
func published(name, plugin string) string {
	if !strings.Contains(plugin, "cniCacheDir") {
		plugin = strings.Replace(plugin, `"delegates"`, `"cniCacheDir":"$DIR/cni","delegates"`, 1)
	}
	if at := strings.LastIndex(plugin, `"type"`); !strings.Contains(plugin, "runtimeConfDir") {
		plugin = plugin[:at] + `"runtimeConfDir":"$DIR/net.d",` + plugin[at:]
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
			want: published("multinet", `{"capabilities":{`+annotations+`},"clusterNetwork":"/host/net.d/10-x.conflist","cniCacheDir":"$DIR/cni","runtimeConfDir":"/host/net.d","type":"multinet"}`),
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
		{name: "not ready", networks: []string{"10-x.conflist", blue}, flags: []string{"--readiness-file", "$DIR/absent"}, errs: "readiness file"},
		{name: "shadowed", networks: []string{"00-a.conf", loopback, "10-x.conflist", blue}, want: ofBlue, errs: "00-a.conf"},
		{name: "a broken file", config: "{", errs: "config.json"},
		{name: "a file that no pod can do with", networks: []string{"10-x.conflist", blue}, config: `{"defaultNetworks":"x"}`, errs: "defaultNetworks"},
		{name: "a file with a cluster network", networks: []string{"10-x.conflist", blue}, config: `{"clusterNetwork":"x"}`, errs: `/net.d/00-multinet": invalid configuration: key "clusterNetwork": must not be set by the user`},
		{name: "a file with an unknown key", networks: []string{"10-x.conflist", blue}, config: `{"defaultNetwork":["x"]}`, errs: `config.json: there is no key "defaultNetwork"`},
		{name: "a file with keys of the shim", networks: []string{"10-x.conflist", blue}, flags: []string{"--type", "multinet-shim"}, config: `{"delPolicy":"fail"}`, want: published("multinet", `{"capabilities":{`+annotations+`,"mac":true},"cniCacheDir":"$DIR/cni","delPolicy":"fail","delegates":[`+blue+`],"type":"multinet-shim"}`)},
		{name: "a plugin that is not there", networks: []string{"10-x.conflist", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"},{"type":"absent"}]}`}, errs: `/net.d/10-x.conflist: plugin "absent": not found in`},
		{name: "a plugin in another directory", networks: []string{"10-x.conf", `{"cniVersion":"1.0.0","name":"a","type":"true"}`}, config: `{"binDir":"/bin"}`, want: published("multinet", `{"binDir":"/bin","capabilities":{`+annotations+`},"cniCacheDir":"$DIR/cni","delegates":[{"cniVersion":"1.0.0","name":"a","plugins":[{"cniVersion":"1.0.0","name":"a","type":"true"}]}],"type":"multinet"}`)},
		{name: "no cache", networks: []string{"10-x.conflist", blue}, flags: []string{"--cache-dir", "/absent"}, errs: "--cache-dir: stat /absent: no such file"},
		{name: "a cluster network that is not there", networks: []string{"10-x.conflist", blue}, flags: []string{"--cluster-network", "11-x.conflist"}, errs: `file "11-x.conflist": no such file or directory`},
		{name: "no name", networks: []string{"10-x.conflist", blue}, flags: []string{"--name", ""}, errs: "name"},
		{name: "a path for a type", flags: []string{"--type", "../x"}, errs: "type"},
		{name: "no file", flags: []string{"--config", "$DIR/absent"}, errs: "absent"},
		{name: "a path for the output", flags: []string{"--output", "../x"}, errs: "output"},
		{name: "a path for the cluster network", flags: []string{"--cluster-network", "/x"}, errs: "--cluster-network /x: not the name of a file in --conf-dir"},
		{name: "the published file for a cluster network", flags: []string{"--cluster-network", "00-multinet.conflist"}, errs: "--cluster-network 00-multinet.conflist: this is the file to publish"},
		{name: "a relative directory of the host", flags: []string{"--host-conf-dir", "x"}, errs: "--host-conf-dir x: not an absolute path"},
		{name: "bad mode", flags: []string{"--mode", "rw"}, errs: "mode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := installable(t, tt.networks...)
			if tt.config != "" {
				n.Write("config.json", tt.config)
				tt.flags = append(tt.flags, "--config", n.Path("config.json"))
			}
			err := n.do(append([]string{"install"}, tt.flags...)...)
			wantError(t, err, tt.errs)
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
			if strings.Contains(n.said.String(), "published=") != (tt.errs == "") {
				t.Errorf("said %q", n.said.String())
			}
		})
	}
}

// uninstall removes the published network, and the program with --binary.
func TestUninstall(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	nodetest.OK(t, n.do("install"))
	n.Write("bin/.multinet.tmp-1", "left by a crash")
	nodetest.OK(t, n.do("uninstall"))
	nodetest.Equal(t, "left", n.files(), []string{"bin/.multinet.tmp-1", "bin/multinet", "net.d/10-x.conflist", "self"})
	n.said.Reset()
	nodetest.OK(t, n.do("uninstall"))
	nodetest.Equal(t, "said", n.said.String(), "")
	// A file of that name that is another's stays, and that is told.
	n.Write("net.d/00-multinet.conflist", green)
	for range 2 {
		nodetest.OK(t, n.do("uninstall", "--binary"))
		n.says("net.d/00-multinet.conflist")
	}
	nodetest.Equal(t, "left", n.files(), []string{"net.d/00-multinet.conflist", "net.d/10-x.conflist", "self"})
	nodetest.OK(t, n.do("uninstall", "--conf-dir", "$DIR/none")) // where nothing is
	for words, why := range map[string]string{"--watch": "not defined", "--type ..": "type", "--detach --leave": "--leave", "--detach --bin-dir=": "--bin-dir"} {
		nodetest.Says(t, n.do(append([]string{"uninstall"}, strings.Fields(words)...)...), why)
	}
}

// With -o json install and uninstall print what they have changed.
func TestChangesAsJSON(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	changed := func(words ...string) string {
		t.Helper()
		n.printed.Reset()
		nodetest.OK(t, n.do(append(words, "-o", "json")...))
		var all []string
		for _, change := range entries(n.printed.String()) {
			all = append(all, strings.ReplaceAll(canonical(change), n.Dir, "$DIR"))
		}
		return strings.Join(all, " ")
	}
	const published, program = "$DIR/net.d/00-multinet.conflist", "$DIR/bin/multinet"
	nodetest.Equal(t, "install", changed("install"), `{"outcome":"copied","path":"`+program+`"} {"network":"multinet","outcome":"published","path":"`+published+`","primary":"10-x.conflist"}`)
	nodetest.Equal(t, "uninstall", changed("uninstall", "--binary"), `{"outcome":"removed","path":"`+published+`"} {"outcome":"removed","path":"`+program+`"}`)
	nodetest.Equal(t, "uninstall again", changed("uninstall", "--binary"), "")
	nodetest.Says(t, n.do("install", "--watch", "-o", "json"), "--watch")
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
	w := &watcher{node: installable(t, "10-x.conflist", blue), cmd: programtest.NewHost(t).Command("", "")}
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
	w.says(`primary=10-x.conflist`)
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

// install --watch follows the cluster network until a signal comes, or the readiness file is removed.
// What it has published stays. Meanwhile no other installation or uninstallation runs in the same
// directory, not even under another name.
func TestInstallWatch(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]os.Signal{"terminated": syscall.SIGTERM, "interrupted": os.Interrupt, "not ready any more": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWatch(t)
			w.Write("net.d/05-y.conflist", green)
			w.says("primary=05-y.conflist")
			if sig == os.Interrupt {
				synctest.Test(t, func(t *testing.T) { // in which the wait for the other is over at once
					for _, words := range [][]string{{"install"}, {"install", "--output", "01-multinet"}, {"uninstall"}} {
						nodetest.Is(t, w.doUntil(t.Context(), words...), autoconf.ErrLocked)
					}
				})
			}
			status := 0
			if sig == nil {
				nodetest.OK(t, os.Remove(w.Path("ready")))
				w.says(autoconf.ErrReadinessLost.Error())
				status = 1
			} else {
				nodetest.OK(t, w.cmd.Process.Signal(sig))
			}
			_ = w.cmd.Wait() // its status is what counts
			nodetest.Equal(t, "status", w.cmd.ProcessState.ExitCode(), status)
			nodetest.Equal(t, "green is left", strings.Contains(w.read("net.d/00-multinet.conflist"), "green"), true)
			nodetest.OK(t, w.do("uninstall"))
			nodetest.Equal(t, "left", w.Files("net.d"), []string{"05-y.conflist", "10-x.conflist"}) // nor the directory of the lock
		})
	}
}

// The program is replaced by another file, so that it may run meanwhile.
func TestInstallProgram(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	install := func() fs.FileInfo {
		t.Helper()
		nodetest.OK(t, n.do("install"))
		nodetest.Equal(t, "copy", n.read("bin/multinet"), n.read("self"))
		info := n.stat("bin/multinet")
		nodetest.Equal(t, "mode", info.Mode(), 0o755)
		return info
	}
	first := install()
	n.Write("self", strings.Repeat("x", 100<<10)+"a")
	nodetest.Equal(t, "written in place", os.SameFile(first, install()), false)
	nodetest.OK(t, os.Chmod(n.Path("bin/multinet"), 0o700))
	install()
	nodetest.OK(t, errors.Join(os.Remove(n.Path("bin/multinet")), os.Symlink("../self", n.Path("bin/multinet"))))
	install()
	n.Write("bin/.multinet.tmp-1", "left by a crash")
	n.Write("self", "")
	install()
	nodetest.Equal(t, "left", n.files(), []string{"bin/multinet", "net.d/.multinet/lock", "net.d/00-multinet.conflist", "net.d/10-x.conflist", "self"})

	// It can be installed by itself.
	c := &tool{self: func() (string, error) { return n.Path("bin/multinet"), nil }}
	nodetest.OK(t, c.copyProgram(n.Path("bin/multinet")))
	// What fails leaves what there was.
	before := n.files()
	c.self = func() (string, error) { return n.Path("absent"), nil }
	nodetest.Is(t, c.copyProgram(n.Path("bin/multinet")), fs.ErrNotExist)
	c.self = func() (string, error) { return n.Path("self"), nil }
	nodetest.OK(t, errors.Join(os.Mkdir(n.Path("bin/dir"), 0o700), os.Mkdir(n.Path("bin/dir/x"), 0o700)))
	nodetest.Refused(t, "to replace a directory", c.copyProgram(n.Path("bin/dir")))
	nodetest.Equal(t, "left", n.files(), before)
}

// Concurrent installations do not remove each other's temporary files.
func TestInstallProgramAtOnce(t *testing.T) {
	t.Parallel()
	n := installable(t)
	n.Write("self", strings.Repeat("x", 1<<20))
	for range 10 {
		n.Write("bin/.multinet.tmp-1", "left by a crash")
		errs := make(chan error)
		for range 4 {
			go func() {
				errs <- (&tool{self: func() (string, error) { return n.Path("self"), nil }}).copyProgram(n.Path("bin/multinet"))
			}()
		}
		for range 4 {
			nodetest.OK(t, <-errs)
		}
		nodetest.Equal(t, "left", n.files(), []string{"bin/multinet", "self"})
		nodetest.OK(t, os.Remove(n.Path("bin/multinet")))
	}
}

// cached writes the cache entry of libcni for a container that the runtime has attached.
func (n *node) cached(container, network, netns string) {
	n.Helper()
	n.Cached("cni", container, network, netns)
}

// records returns the records in the state directory.
func (n *node) records() []string {
	n.Helper()
	var all []string
	for r, err := range n.life().Records(n.Context()) {
		if err != nil {
			all = append(all, "damaged "+r.Key.ContainerID)
			continue
		}
		s := r.Key.String() + " " + string(r.State)
		for _, a := range r.Attached {
			s += " " + a.Network.Name()
		}
		all = append(all, s)
	}
	return all
}

const unseen = "/no-such-directory/netns/c" // a namespace whose state cannot be known

// install takes over containers of the cluster network, and of no other. Nothing is removed because
// a namespace is not seen.
func TestInstallTakesOver(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue, "20-y.conflist", green)
	n.cached("c1", blue, unseen)
	n.cached("c2", blue, "/absent")
	n.cached("c3", green, unseen)
	n.Write("cni/results/blue-c4-eth0", "{")
	for range 2 {
		nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
		nodetest.Equal(t, "records", n.records(), []string{"multinet/c1/eth0 added blue", "multinet/c2/eth0 added blue"})
	}
	n.WantTrace()
	const ofBlue = " network=multinet ifname=eth0 networks=[blue]\n"
	n.says(`msg="attachment taken over" container=c1`+ofBlue, `msg="attachment taken over" container=c2`+ofBlue,
		`msg="attachment not taken over" error="`+n.Path("cni/results/blue-c4-eth0"))
	if strings.Contains(n.said.String(), "c3") || strings.Count(n.said.String(), "container=c1") != 1 {
		t.Errorf("said: %s", n.said.String())
	}
}

// adopt prints the outcome for each container. With --dry-run it changes nothing.
func TestAdopt(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	n.cached("c1", blue, unseen)
	n.cached("c2", blue, "/absent")
	table := func(outcome string) []string {
		return []string{"CONTAINER INTERFACE NETWORKS OUTCOME WHY", "c1 eth0 blue " + outcome + " -", "c2 eth0 blue " + outcome + " -"}
	}
	do := func(words ...string) []string {
		t.Helper()
		n.printed.Reset()
		nodetest.OK(t, n.do(append([]string{"adopt", "--dir", n.Path("state")}, words...)...))
		var lines []string
		for line := range strings.Lines(n.printed.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return lines
	}
	for _, step := range []struct {
		words []string
		want  []string
	}{
		{[]string{"--dry-run"}, table("adoptable")},
		{[]string{"--network", "green", "--dry-run"}, table("")[:1]},
		{[]string{"--dry-run=false"}, table("adopted")},
		{nil, table("recorded")},
		{[]string{"--dry-run"}, table("recorded")},
		{[]string{"--cache-dir", ""}, table("")[:1]},
	} {
		nodetest.Equal(t, strings.Join(step.words, " "), do(step.words...), step.want)
	}
	nodetest.Equal(t, "records", n.records(), []string{"multinet/c1/eth0 added blue", "multinet/c2/eth0 added blue"})
	// JSON, with what cannot be taken over; that is exit status 1.
	n.printed.Reset()
	n.Write("cni/results/blue-c3-eth0", "")
	nodetest.Says(t, n.do("adopt", "--dir", n.Path("state"), "-o", "json", "--name", "other"), "1 could not be taken over")
	var got []string
	for _, entry := range entries(n.printed.String()) {
		got = append(got, strings.ReplaceAll(canonical(entry), n.Dir, "$DIR"))
	}
	nodetest.Equal(t, "JSON", got, []string{
		`{"container":"c1","interface":"eth0","network":"other","networks":["blue"],"outcome":"recorded"}`,
		`{"container":"c2","interface":"eth0","network":"other","networks":["blue"],"outcome":"recorded"}`,
		`{"container":"","error":"$DIR/cni/results/blue-c3-eth0: empty","interface":"","network":"","networks":[],"outcome":"skipped"}`,
	})
}

// The published network gives adopt its state directory and name.
func TestAdoptGoesByWhatIsPublished(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state"), "--name", "mine"))
	n.Write("net.d/10-x.conflist", green)
	n.cached("c1", blue, unseen)
	n.cached("c2", green, unseen)
	nodetest.OK(t, n.do("adopt"))
	nodetest.Equal(t, "records", n.records(), []string{"mine/c1/eth0 added blue", "mine/c2/eth0 added green"})
}

// attached is a node with multinet installed and two containers on blue and
// green, and one that the runtime has attached to blue before.
func attached(t *testing.T, flags ...string) *node {
	t.Helper()
	n := installable(t, "10-x.conflist", blue)
	n.cached("c0", blue, unseen)
	nodetest.OK(t, n.do(append([]string{"install", "--cni-dir", n.Path("state")}, flags...)...))
	for _, id := range []string{"c1", "c2"} {
		n.attachBoth(id)
	}
	n.said.Reset()
	return n
}

// attachBoth attaches a container to blue and green, as an ADD of multinet does.
func (n *node) attachBoth(id string) {
	n.Helper()
	k := scratch.Key{Network: "multinet", ContainerID: id, IfName: "eth0"}
	n.add(k, delegate.Attachment{Network: nodetest.Parse(blue), ContainerID: id, IfName: "eth0", NetNS: unseen},
		delegate.Attachment{Network: nodetest.Parse(green), ContainerID: id, IfName: "net1", NetNS: unseen})
}

// Two who install at once wait for each other for a moment. A program that keeps the lock is named.
func TestInstallWaitsAMomentForAnother(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"install", "uninstall"} {
		for name, ends := range map[string]bool{"another install": true, "a daemon": false} {
			t.Run(command+" beside "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					n := installable(t, "10-x.conflist", blue)
					nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
					n.Write("net.d/.multinet/lock", "another, process 7 on host h, which publishes x\n")
					lock, err := os.Open(n.Path("net.d/.multinet/lock"))
					nodetest.OK(t, err)
					defer lock.Close()
					if held, err := flock.TryFile(lock); err != nil || !held {
						t.Fatal(held, err)
					}
					if ends {
						time.AfterFunc(time.Second, func() { flock.Release(lock) })
					}
					err = n.do(map[string][]string{"install": {"install", "--cni-dir", n.Path("state")}, "uninstall": {"uninstall"}}[command]...)
					if ends {
						nodetest.OK(t, err)
					} else {
						nodetest.Says(t, err, "another manager is at work", "another, process 7 on host h, which publishes x")
					}
				})
			})
		}
	}
}

// Without --detach and --leave, uninstall changes nothing while containers are
// attached.
func TestUninstallRefusesWhileContainersAreAttached(t *testing.T) {
	t.Parallel()
	n := attached(t)
	before := n.records()
	nodetest.Says(t, n.do("uninstall", "--binary"), "3 containers are still attached", "--detach")
	n.wantInstalled(true, true)
	nodetest.Equal(t, "records", n.records(), before)
	nodetest.OK(t, n.do("uninstall", "--leave"))
	n.wantInstalled(false, true)
	nodetest.Equal(t, "records after --leave", n.records(), before)
	n.Write("state/c9@multinet@eth0.json", "x")
	nodetest.Says(t, n.do("uninstall"), "corrupt")
}

// After --detach, containers have the cluster network only, and the runtime has what
// it needs to remove it.
func TestUninstallDetaches(t *testing.T) {
	t.Parallel()
	n := attached(t)
	n.mkdir("cni2")
	nodetest.OK(t, n.do("uninstall", "--detach", "--binary", "--cache-dir", n.Path("cni"), "--cache-dir", n.Path("cni2")))
	n.wantInstalled(false, false)
	nodetest.Equal(t, "records", n.records(), nil)
	nodetest.Equal(t, "alive", n.Exec.Live(), []string{"bridge c1 eth0", "bridge c2 eth0"})
	for _, dir := range []string{"cni", "cni2"} {
		nodetest.Equal(t, "what the runtime has in "+dir, n.Files(dir+"/results"), []string{"blue-c0-eth0", "blue-c1-eth0", "blue-c2-eth0"})
	}
	// And back again.
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
	nodetest.Equal(t, "records", n.records(), []string{"multinet/c0/eth0 added blue", "multinet/c1/eth0 added blue", "multinet/c2/eth0 added blue"})
}

// A container whose ADD was running is detached as well.
func TestUninstallDetachesWhatIsAddedMeanwhile(t *testing.T) {
	t.Parallel()
	n := attached(t)
	n.On("DEL macvlan", func(_ context.Context, c delegatetest.Invocation) error {
		if c.ContainerID == "c2" {
			n.attachBoth("a1")
		}
		return nil
	})
	nodetest.OK(t, n.do("uninstall", "--detach", "--binary", "--cache-dir", n.Path("cni")))
	nodetest.Equal(t, "records", n.records(), nil)
	nodetest.Equal(t, "the runtime has it", n.read("cni/results/blue-a1-eth0") != "", true)
	n.says("4 attachments")
}

// An ADD that has begun has recorded nothing yet. It ends when the network is not published any more.
func TestUninstallWaitsForWhatHasBegun(t *testing.T) {
	t.Parallel()
	n := attached(t)
	sleep, err := exec.LookPath("sleep")
	nodetest.OK(t, err)
	program, err := os.ReadFile(sleep)
	nodetest.OK(t, err)
	nodetest.OK(t, os.Remove(n.Path("bin/multinet")))
	n.Write("bin/multinet", string(program))
	nodetest.OK(t, os.Chmod(n.Path("bin/multinet"), 0o700)) //nolint:gosec // a program
	add := &exec.Cmd{Path: n.Path("bin/multinet"), Args: []string{"sleep", "1000"}, Env: []string{"CNI_COMMAND=ADD"}}
	nodetest.OK(t, add.Start())
	defer func() { _, _ = add.Process.Wait() }()
	defer func() { _ = add.Process.Kill() }()
	ended := make(chan error, 1)
	go func() { ended <- n.do("uninstall", "--detach", "--cache-dir", n.Path("cni")) }()
	nodetest.Until(t, "the first are detached", func() bool { return n.records() == nil })
	n.attachBoth("a1")
	nodetest.OK(t, add.Process.Kill())
	_, _ = add.Process.Wait()
	nodetest.OK(t, nodetest.Come(t, ended, "uninstall ends"))
	nodetest.Equal(t, "records", n.records(), nil)
	n.says("1 attachments came while uninstall worked")
}

// uninstall does not remove the network of the daemon.
func TestUninstallLeavesNetworksOfOtherTypes(t *testing.T) {
	t.Parallel()
	n := attached(t)
	theirs := published("other", `{"type":"multinet-shim","delegates":[`+blue+`]}`)
	n.Write("net.d/00-multinet.conflist", theirs)
	nodetest.OK(t, n.do("uninstall", "--leave"))
	n.wantInstalled(true, true)
	nodetest.OK(t, n.do("uninstall", "--leave", "--type", "multinet-shim"))
	n.wantInstalled(false, true)
}

// A wrong or forgotten flag, with which the published network would stay or containers
// would be forgotten, makes uninstall fail before it changes anything.
func TestUninstallWithAWrongFlagChangesNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		install []string
		words   []string
		want    string
	}{
		{"wrong type", nil, []string{"--detach", "--type", "multinet-shim"}, `--type must be the type in it, "multinet"`},
		{"forgotten type", []string{"--type", "mine"}, []string{"--detach"}, `--type must be the type in it, "mine"`},
		{"forgotten output", []string{"--output", "01-x"}, []string{"--detach"}, "--output must be its name"},
		{"wrong name", nil, []string{"--detach", "--name", "x"}, `has the name "multinet"`},
		{"wrong state directory", nil, []string{"--detach", "--dir", "$DIR/none"}, "has its records in"},
		{"directory without networks", nil, []string{"--detach", "--conf-dir", "$DIR/cni"}, "--conf-dir must be the runtime's directory"},
		{"no directory of networks", nil, []string{"--detach", "--conf-dir", "$DIR/none"}, "--conf-dir: stat"},
		{"no cache", nil, []string{"--detach", "--cache-dir", "$DIR/cni", "--cache-dir", "$DIR/none"}, "-cache-dir: stat"},
		{"no directory of Multus", nil, []string{"--detach", "--multus-dir", "$DIR/none"}, "-multus-dir: stat"},
		{"relative directory of Multus", nil, []string{"--detach", "--multus-dir", "multus"}, "not an absolute path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := attached(t, tt.install...)
			files, before := n.files(), n.records()
			nodetest.Says(t, n.do(append([]string{"uninstall", "--binary"}, tt.words...)...), tt.want)
			nodetest.Equal(t, "files", n.files(), files)
			nodetest.Equal(t, "records", n.records(), before)
		})
	}
}

// A container that is dead is not said to be attached.
func TestUninstallTellsContainersThatAreDead(t *testing.T) {
	t.Parallel()
	n := installable(t, "10-x.conflist", blue)
	n.FailOn("DEL bridge", 107)
	n.cached("c1", blue, "/absent")
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
	n.Restarted("state")
	for _, words := range [][]string{{"uninstall"}, {"uninstall", "--detach", "--cache-dir", n.Path("cni")}} {
		nodetest.Says(t, n.do(words...), "1 container is gone but not completely detached")
	}
}

// What cannot be detached stays recorded and is reported, and uninstall can be repeated. What an
// interrupted one has not come to is not said to be given back.
func TestUninstallThatCannotDetach(t *testing.T) {
	t.Parallel()
	n := attached(t)
	ctx, cancel := context.WithCancel(t.Context())
	works := n.Exec.Plugins["macvlan"]
	n.FailOn("DEL macvlan", 107)
	n.On("DEL macvlan", func(context.Context, delegatetest.Invocation) error { cancel(); return nil })
	uninstall := []string{"uninstall", "--detach", "--binary", "--cache-dir", n.Path("cni")}
	for i, ctx := range []context.Context{ctx, t.Context()} {
		nodetest.Says(t, n.doUntil(ctx, uninstall...), "2 containers are still attached", "macvlan", "--name multinet")
		if i == 0 {
			nodetest.Equal(t, "said", strings.Count(n.said.String(), "1 attachments were given back to the runtime, or removed"), 1)
		}
		n.wantInstalled(false, true)
		nodetest.Equal(t, "records", len(n.records()), 2)
	}
	n.Exec.Plugins["macvlan"] = works
	nodetest.OK(t, n.do(uninstall...))
	n.wantInstalled(false, false)
	nodetest.Equal(t, "records", n.records(), nil)
}

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
	nodetest.Equal(t, "a daemon is asked for", checks["daemon"], "")
	look(false, "--dir", n.Path("state"), "--cache-dir", "")
	n.Write("net.d/00-a.conf", green)
	look(true)
	n.printed.Reset()
	nodetest.Says(t, n.do("doctor"), "1 of")
	nodetest.Contains(t, "printed", n.printed.String(), "problem  first       "+n.Path("net.d")+"\n")
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
