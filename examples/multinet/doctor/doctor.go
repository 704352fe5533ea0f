// Package doctor looks at a node and says why multinet does not work there, or will not.
package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/metacni/metacni/delegate/plugin"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

// A Node says where things are on a node.
type Node struct {
	Publisher   *autoconf.Manager // of our network, in the root directory of the node
	RuntimeRoot plugin.Root       // has the configurations of runtimes, if that is another directory

	// Paths of the node. StateDir has the records, BinDir the plugins, QueueDir the DELs that
	// wait for the daemon. Empty means that there is none, or for StateDir that of our network.
	StateDir, BinDir, CacheDir, SocketDir, QueueDir string

	Version   string // of this program
	Daemon    bool   // a daemon should run; also if the network of one is published
	Residents bool   // plugins may be resident ones, without a program

	// Installing restricts the checks to those that an installation depends on: our network
	// and program need not be there yet.
	Installing bool

	// What Check knows.
	root       plugin.Root     // of the node
	dir, own   string          // where our network is published, and its file there
	ours       netconf.Network // zero if it is not published
	plugin     netconf.Plugin  // ours, as it is published or would be
	cluster    netconf.File    // the cluster network
	first      string          // the file that would be the cluster network if we published now
	noCluster  error           // why there is none
	pluginDirs []string        // of the runtimes that read dir
	confDir    string          // of multinet's networks
	recorded   map[string]bool // interfaces of containers that have a record
	judged     []judged        // the records that can be read
	check      string
	findings   []Finding
}

// A Verdict says whether a finding is a problem.
type Verdict string

// The verdicts. The last two have something to do.
const (
	OK      Verdict = "ok"
	Unknown Verdict = "unknown" // it could not be looked at
	Problem Verdict = "problem"
	Fatal   Verdict = "fatal" // pods cannot be attached at all
)

// A Finding is the outcome of one check. Programs rely on its JSON.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Looked  string  `json:"looked"` // the file or directory that was looked at
	Found   string  `json:"found"`
	Todo    string  `json:"todo,omitempty"`
}

// String returns a finding with something to do in one line.
func (f Finding) String() string { return f.Looked + ": " + f.Found + ": " + f.Todo }

// Check returns the findings about the node. It changes nothing, takes no lock and does not fail:
// a file that cannot be read is a finding.
func (n Node) Check(ctx context.Context) []Finding {
	n.root = plugin.Root(n.Publisher.Root)
	if info, err := os.Stat(cmp.Or(n.Publisher.Root, "/")); err != nil || !info.IsDir() {
		return []Finding{{"root", Fatal, n.Publisher.Root, cause(cmp.Or(err, error(syscall.ENOTDIR))), "--root is where the node's root directory is mounted"}}
	}
	n.RuntimeRoot = cmp.Or(n.RuntimeRoot, n.root)
	n.dir, n.own, n.plugin = filepath.Dir(n.Publisher.Output), filepath.Base(n.Publisher.Output)+".conflist", n.Publisher.Template
	dir, file, plugins := n.dir, "", "" // what is not there is not looked at
	if _, err := fs.ReadDir(n.root.Dir(dir), "."); err != nil {
		dir = "" // lookAtFirst says so
	}
	if n.ours, _ = publish.Published(n.Publisher); !n.ours.IsZero() && !n.Installing {
		n.plugin, file = n.ours.Plugins()[0], filepath.Join(n.dir, n.own)
	}
	if n.StateDir == "" {
		n.StateDir = publish.StateDir(n.plugin)
	}
	state, err := n.root.Resolve(n.StateDir)
	if err != nil { // it is not there
		state = filepath.Join(string(n.root), n.root.OnNode(n.StateDir))
	}
	n.StateDir = state
	if !n.Daemon && n.plugin.Type() != "multinet-shim" {
		n.SocketDir = ""
	}
	n.cluster, n.noCluster = n.Publisher.Find()
	n.first = n.cluster.Name
	if names := publish.Primaries(n.Publisher); len(names) > 1 && !n.Daemon && !n.Installing {
		n.choose(names[0])
	}
	if n.noCluster == nil {
		plugins = "each plugin of " + n.cluster.Name + " and of other networks can be run"
	}
	for _, c := range []struct {
		name, looked, ok string // what was looked at and found if there is no finding
		installing       bool
		look             func()
	}{
		{"runtimes", "/etc", "", true, n.lookAtRuntimes},
		{"first", n.dir, n.own + " is first, in front of " + n.cluster.Name, true, n.lookAtFirst},
		{"plugins", n.BinDir, plugins, true, n.lookAtPlugins},
		{"annotations", file, "the network asks for the annotations of pods", false, n.lookAtAnnotations},
		{"cilium", dir, "no file that Cilium has renamed", true, n.lookForCilium},
		{"chain", dir, "no other meta-plugin, and no " + istio + " in a wrong place", true, n.lookAtChain},
		{"disk", n.StateDir, "its file system can be written to, and has space", true, n.lookAtDisk},
		{"files", n.dir, "each file that a network needs is there", true, n.lookAtFiles},
		{"records", n.StateDir, "no record is damaged, or of a container that is dead", false, func() { n.lookAtRecords(ctx) }},
		{"unknown", n.StateDir, "it is known of each container whether it lives", false, n.lookAtUnknown},
		{"leases", n.StateDir, "each range of host-local has an address that is free, or that a container has", false, n.lookAtLeases},
		{"shared", n.StateDir, "", false, func() { n.lookAtShared(ctx) }},
		{"cache", n.CacheDir, "no container without a record", false, n.lookAtCache},
		{"daemon", n.SocketDir, "multinetd is ready, and of this version", false, n.lookAtDaemon},
		{"version", file, "no program of another version than " + n.Version, false, n.lookAtVersion},
	} {
		if n.Installing && !c.installing || c.looked == "" {
			continue
		}
		n.check = c.name
		before := len(n.findings)
		if c.look(); len(n.findings) == before && c.ok != "" {
			n.say(OK, c.looked, c.ok, "")
		}
	}
	return n.findings
}

// say adds a finding. Its paths are as the node has them.
func (n *Node) say(v Verdict, looked, found, todo string) {
	if n.root != "" {
		inRoot := regexp.MustCompile(`(^|[^\w./-])` + regexp.QuoteMeta(filepath.Clean(string(n.root))) + `(/)`)
		for _, text := range []*string{&looked, &found, &todo} {
			*text = inRoot.ReplaceAllString(*text, "$1$2")
		}
	}
	n.findings = append(n.findings, Finding{n.check, v, looked, strings.ToValidUTF8(found, "?"), todo})
}

// list adds a problem with a number of things, and the first few, if there are any.
func (n *Node) list(looked string, things []string, found, todo string) {
	if count := len(things); count > 0 {
		n.say(Problem, looked, fmt.Sprintf("%s, %d: %s", found, count, strings.Join(things[:min(count, 3)], ", ")), todo)
	}
}

// fail adds the finding that something cannot be read.
func (n *Node) fail(looked string, err error) {
	if errors.Is(err, fs.ErrPermission) {
		n.say(Unknown, looked, cause(err), "run it as root")
	} else {
		n.say(Problem, looked, cause(err), "correct or remove it")
	}
}

// cause returns the text of err, without the path of a file that it is about.
func cause(err error) string {
	if about := (*fs.PathError)(nil); errors.As(err, &about) {
		err = about.Err
	}
	return err.Error()
}

// tool returns a command of multinet for the records, with the flags that it needs on the node.
func (n *Node) tool(command string) string {
	command = "multinet " + command
	if dir := n.root.OnNode(n.StateDir); dir != multinet.DefaultStateDir {
		command += " --dir " + dir
	}
	if n.root != "" {
		command += " on the node"
	}
	return command
}

// stat returns the file at a path of the node.
func stat(root plugin.Root, path string) (fs.FileInfo, error) {
	return fs.Stat(root.Dir(filepath.Dir(path)), filepath.Base(path))
}

// Printable returns text without its control characters, for a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, text)
}

// Print prints findings, as JSON or as text of 80 columns, in which the IDs of containers have 12
// characters. It fails if there is something to do.
func Print(w io.Writer, asJSON bool, findings []Finding) error {
	lines := regexp.MustCompile(`(.{1,58}|\S+)(\s+|$)`) // of words, after an indent of 21 columns
	id := regexp.MustCompile(`\b([0-9a-f]{12})[0-9a-f]{20,}\b`)
	todo := 0
	var text []byte
	for _, f := range findings {
		if f.Verdict == Problem || f.Verdict == Fatal {
			todo++
		}
		if f.Todo != "" {
			f.Found += "\n-> " + f.Todo
		}
		said := lines.ReplaceAllString(id.ReplaceAllString(Printable(f.Found), "$1"), "                     $1\n")
		text = fmt.Appendf(text, "%-8s %-11s %s\n%s", f.Verdict, f.Check, strings.ReplaceAll(Printable(f.Looked), "\n", "\ufffd"), said)
	}
	if asJSON {
		text, _ = json.MarshalIndent(findings, "", "  ")
	}
	_, err := w.Write(append(bytes.TrimSpace(text), '\n'))
	if err == nil && todo > 0 {
		err = fmt.Errorf("something is to be done about %d of %d findings", todo, len(findings))
	}
	return err
}
