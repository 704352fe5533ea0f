package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A userReport is the file case.json of a directory below reports; reports/README.md explains the
// keys.
type userReport struct {
	Report    string   `json:"report"`
	Right     string   `json:"right"`
	Programs  []string `json:"programs"`
	Daemon    object   `json:"daemon"`
	Dirs      []string `json:"dirs"`
	Namespace string   `json:"namespace"`
	Plugins   object   `json:"plugins"`

	Code   uint                `json:"code"`
	Says   []string            `json:"says"`
	Unsaid []string            `json:"unsaid"`
	Calls  []string            `json:"calls"`
	Stdin  map[string]object   `json:"stdin"`
	Args   map[string][]string `json:"args"`
	Result object              `json:"result"`
	Status []any               `json:"status"`
	Tries  int                 `json:"tries"`
	Left   []string            `json:"left"`
}

// readReport reads a case, in which $DIR, $HOST and $N stand for what n has, see userFile.
func readReport(tb testing.TB, n *node, from string) (c userReport) {
	tb.Helper()
	d := json.NewDecoder(bytes.NewReader(n.userFile(filepath.Join(from, "case.json"))))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		tb.Fatalf("%s: %v", from, err)
	}
	if c.Programs == nil {
		c.Programs = []string{"multinet", "multinet-shim"}
	}
	return c
}

// userReports returns the directories of all cases.
func userReports(tb testing.TB) (dirs []string) {
	tb.Helper()
	files, err := filepath.Glob("reports/*/case.json")
	nodetest.OK(tb, err)
	for _, file := range files {
		dirs = append(dirs, filepath.Dir(file))
	}
	return dirs
}

// TestUsersInputsAreHandledRight gives each input of a user to the programs, as a runtime does.
func TestUsersInputsAreHandledRight(t *testing.T) {
	for _, dir := range userReports(t) {
		for _, program := range readReport(t, &node{Node: new(process.Node)}, dir).Programs {
			t.Run(filepath.Base(dir)+"/"+program, func(t *testing.T) { newNode(t).tryReport(dir, program) })
		}
	}
}

// tryReport attaches a pod with the input in a directory, looks whether what happens is right,
// checks the pod and detaches it. Nothing is left then.
func (n *node) tryReport(from, program string) {
	n.Helper()
	c := readReport(n, n, from)
	n.standIns(from, c.Plugins)
	p := n.pod(nil)
	stdin := n.userConf(from, program)
	if program == "multinet-shim" {
		if c.Daemon["chrootDir"] == n.host() {
			n.mountHost(c.Dirs)
		}
		n.daemon(daemonConf{keys: c.Daemon})
	}
	if c.Namespace == "" {
		c.Namespace = "default"
	}
	ask := func(command string, stdin []byte) answer {
		return n.Wait(n.Exec(built(program), map[string]string{
			"CNI_COMMAND": command, "CNI_PATH": n.File("bin") + ":" + n.Bin, "PATH": process.Path,
			"CNI_CONTAINERID": p.ID, "CNI_NETNS": p.NetNS, "CNI_IFNAME": p.IfName,
			"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + c.Namespace + ";K8S_POD_NAME=" + p.ID + ";K8S_POD_UID=4f8c",
		}, stdin))
	}
	ok := func(command string, a answer) {
		if a.Code != 0 {
			n.Errorf("%s: %s (stderr %q)", command, a.Stdout, a.Stderr)
		}
	}

	added, said := ask("ADD", stdin), ""
	calls := n.Calls()
	if c.Code != 0 {
		n.failed(added, c.Code, c.Says...)
		said = added.Err.Msg + added.Err.Details
		if c.Calls == nil { // before anything runs
			n.Trace()
		}
	} else {
		ok("ADD", added)
	}
	if c.Calls != nil {
		n.Trace(c.Calls...)
	}
	for _, which := range slices.Sorted(maps.Keys(c.Stdin)) {
		n.has("stdin of "+which, c.Stdin[which], decoded(n, find(n, calls, which).Stdin))
	}
	for _, which := range slices.Sorted(maps.Keys(c.Args)) {
		for _, word := range c.Args[which] {
			if args := find(n, calls, which).Args; !strings.Contains(args, word) {
				n.Errorf("CNI_ARGS of %s: %q, want %q", which, args, word)
			}
		}
	}
	if added.Code == 0 {
		n.has("result", c.Result, decoded(n, added.Stdout))
		if c.Status != nil || c.Unsaid != nil {
			said = n.operate(0, "status", p.ID).Stdout
		}
		if c.Status != nil {
			n.has("network-status", c.Status, decoded(n, []byte(said)))
		}
		var conf struct{ CNIVersion string }
		nodetest.OK(n, json.Unmarshal(stdin, &conf))
		if conf.CNIVersion >= "0.4.0" { // which has CHECK
			stdin = fmt.Appendf(bytes.TrimSuffix(stdin, []byte("}")), `,"prevResult":%s}`, added.Stdout)
			ok("CHECK", ask("CHECK", stdin))
		}
	}
	for _, word := range c.Unsaid {
		if strings.Contains(said, word) {
			n.Errorf("says %q: %s", word, said)
		}
	}
	for range c.Tries {
		if a := ask("DEL", stdin); a.Err == nil {
			n.Errorf("DEL: %s, want an error", a.Stdout)
		}
	}
	ok("DEL", ask("DEL", stdin))
	if c.Left == nil {
		n.nothingLeft()
		return
	}
	list := n.operate(0, "list", "-o", "wide").Stdout
	for _, word := range c.Left {
		if !strings.Contains(list, word) {
			n.Errorf("list does not say %q:\n%s", word, list)
		}
	}
}

// find returns the ADD of a plugin and an interface, such as "bridge eth0".
func find(tb testing.TB, calls []process.Call, which string) process.Call {
	tb.Helper()
	for _, k := range calls {
		if k.Command == "ADD" && k.ID+" "+k.IfName == which {
			return k
		}
	}
	tb.Fatalf("no ADD of %s", which)
	return process.Call{}
}

// standIns copies the files of a case into the node's directory, and makes its plugins and "primary".
func (n *node) standIns(from string, plugins object) {
	n.Helper()
	n.Mkdir("bin", "nad", "state")
	nodetest.OK(n, filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		to := n.File(strings.TrimPrefix(path, from))
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return os.MkdirAll(to, 0o700)
		case entry.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			nodetest.OK(n, err)
			return os.Symlink(target, to)
		}
		return os.WriteFile(to, n.userFile(path), 0o600)
	}))
	all := object{"primary": object{}}
	maps.Copy(all, plugins)
	for name, does := range all {
		n.Write(does, "fake", name+".json")
		nodetest.OK(n, os.Symlink(built("fake"), n.File("bin", name)))
	}
}

// host is a directory for the root of the node, as a daemon in a pod has it.
func (n *node) host() string { return n.Dir + "-host" }

// mountHost mounts in n.host() what plugins need, and makes more directories there.
func (n *node) mountHost(dirs []string) {
	n.Helper()
	n.Cleanup(func() { nodetest.OK(n, os.RemoveAll(n.host())) })
	for _, dir := range dirs {
		nodetest.OK(n, os.MkdirAll(n.host()+dir, 0o700))
	}
	for _, dir := range []string{n.Dir, n.Bin, "/run/netns", "/proc"} {
		at := n.host() + dir
		nodetest.OK(n, os.MkdirAll(at, 0o700))
		nodetest.OK(n, unix.Mount(dir, at, "", unix.MS_BIND|unix.MS_REC, ""))
		n.Cleanup(func() { nodetest.OK(n, unix.Unmount(at, unix.MNT_DETACH)) })
	}
}

// userFile reads a file of a case, in which $DIR stands for the node's directory, $HOST for n.host()
// and $N for the node's number.
func (n *node) userFile(path string) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return []byte(strings.NewReplacer("$DIR", n.Dir, "$HOST", n.host(), "$N", fmt.Sprint(n.ID)).Replace(string(text)))
}

// userConf returns what the runtime sends: the user's configuration, with the node's directories
// and the pod's annotations before its own keys.
func (n *node) userConf(from, program string) []byte {
	n.Helper()
	own := object{"dataDir": n.File("flannel"), "subnetFile": n.File("subnet.env")}
	if program != "flannel" {
		own = n.multinet("1.0.0")
		own["nadDir"] = n.File("nad")
		if program == "multinet-shim" {
			maps.Copy(own, n.thick("1.0.0"))
		}
		runtimeConfig := object{}
		if text := n.userFile(filepath.Join(from, "runtime.json")); text != nil {
			nodetest.OK(n, json.Unmarshal(text, &runtimeConfig))
		}
		annotations := object{}
		for file, key := range map[string]string{"networks": "k8s.v1.cni.cncf.io/networks", "default-network": "v1.multus-cni.io/default-network"} {
			if text := n.userFile(filepath.Join(from, file)); text != nil {
				annotations[key] = strings.TrimSuffix(string(text), "\n")
			}
		}
		runtimeConfig["io.kubernetes.cri.pod-annotations"] = annotations
		own["runtimeConfig"], own["binDir"] = runtimeConfig, n.File("bin")
	}
	conf := bytes.TrimSpace(n.userFile(filepath.Join(from, "conf.json")))
	if len(conf) == 0 {
		conf = []byte(`{"cniVersion": "1.0.0", "name": "cluster", "delegates": [{"type": "primary"}]}`)
	}
	for _, key := range []string{"cniVersion", "name", "delegates", "capabilities"} {
		delete(own, key)
	}
	own["type"] = program
	text, err := json.Marshal(own)
	nodetest.OK(n, err)
	return slices.Concat(bytes.TrimSuffix(text, []byte("}")), []byte(","), conf[1:])
}

func decoded(tb testing.TB, text []byte) (v any) {
	tb.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		tb.Errorf("%v: %q", err, text)
	}
	return v
}

// has wants everything in want in got: of an object these keys, and none where null is wanted; of an
// array each element.
func (n *node) has(what string, want, got any) {
	n.Helper()
	switch want := want.(type) {
	case object:
		object, ok := got.(object)
		if !ok && want != nil {
			n.Errorf("%s: %v, want an object", what, got)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(want)) {
			n.has(what+"."+key, want[key], object[key])
		}
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			n.Errorf("%s: %v, want %v", what, got, want)
			return
		}
		for i := range want {
			n.has(fmt.Sprintf("%s[%d]", what, i), want[i], list[i])
		}
	default:
		nodetest.Equal(n, what, got, want)
	}
}

// The table of reports/README.md is as the cases are. With -update it is written.
func TestPageOfUsersInputsHasEachCase(t *testing.T) {
	t.Parallel()
	const page = "reports/README.md"
	table := strings.Builder{}
	table.WriteString("| input | what is right | after |\n|---|---|---|\n")
	issue := regexp.MustCompile(`^([\w.-]+/[\w.-]+)#(\d+)$`)
	for _, dir := range userReports(t) {
		c, name := readReport(t, &node{Node: new(process.Node)}, dir), filepath.Base(dir)
		after := fmt.Sprintf("<%s>", c.Report)
		if m := issue.FindStringSubmatch(c.Report); m != nil {
			after = fmt.Sprintf("[%s](https://github.com/%s/issues/%s)", m[0], m[1], m[2])
		} else if !strings.HasPrefix(c.Report, "https://") {
			t.Errorf("%s: the report %q is neither OWNER/REPOSITORY#NUMBER nor an address", dir, c.Report)
		}
		fmt.Fprintf(&table, "| [%s](%s) | %s | %s |\n", strings.ReplaceAll(name, "-", " "), name, c.Right, after)
	}
	if *update {
		nodetest.Section(t, page, "cases", table.String())
	}
	text, err := os.ReadFile(page)
	nodetest.OK(t, err)
	_, rest, _ := strings.Cut(string(text), "<!-- cases -->\n")
	old, _, _ := strings.Cut(rest, "<!-- end -->")
	nodetest.Equal(t, "table of "+page+" (-update writes it)", strings.Split(old, "\n"), strings.Split(table.String(), "\n"))
}
