// Package autoconf writes the node's CNI configuration for a meta-plugin and
// keeps it in step with the cluster network.
//
// A [Manager] finds the primary network: the first valid one in the directory
// that container runtimes read. It makes a configuration that delegates to the
// primary network, and writes that to a file which sorts first, so that runtimes
// take it. [Manager.Publish] does so once. [Manager.Run] does so again whenever
// something changes, and restores the file when others touch it.
//
// The file is replaced atomically: a reader of the directory sees the old file or
// the new one, whole and valid. A Manager writes no other file. Nothing in the
// directory, whatever it is, makes a Manager panic, hang or give up: files that
// cannot be used are passed over and reported in [State].
//
// A Manager is level-triggered: it looks at the directory, not at the events that
// led to it. So it misses nothing, and its decisions do not depend on the order
// of events. It works on Linux; elsewhere it fails with
// [errors.ErrUnsupported].
package autoconf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/netconf"
)

// The durations and the mode of a [Manager] that says nothing else.
const (
	defaultGrace    = 10 * time.Second
	defaultDebounce = 100 * time.Millisecond
	defaultMode     = 0o600
)

// A Manager publishes one file. Its fields are its configuration. It never writes
// them, and they must not change while one of its methods works. Dir, Output and
// Template are required; paths are absolute.
//
// Any goroutine may call [Manager.State] at any time. Of [Manager.Run],
// [Manager.Publish] and [Manager.Uninstall] only one can work at a time: the
// others fail with [ErrLocked] meanwhile. A Manager must not be copied after
// first use.
type Manager struct {
	// Root, if not empty, is the root directory of the node as this process
	// sees it. Dir, Output, Ready and Lock are paths of the node then, and the
	// node's symbolic links are followed inside Root.
	Root string

	// Dir is the directory in which to find the primary network, such as
	// /etc/cni/net.d. It need not exist yet.
	Dir string

	// Output is the file to publish, such as /etc/cni/net.d/00-multinet. The
	// Manager adds the extension .conflist, whatever the version of the network:
	// podman reads no other files. A file that has the name is
	// replaced, whoever wrote it. Output should sort before all other files of
	// its directory, which must exist.
	Output string

	// Primary, if not empty, is the name of the only file in Dir that can be the
	// primary network. Otherwise the primary network is the first that
	// [netconf.Files] finds. Set Primary, or Accept, where the directory has
	// networks that no pod can do with, such as one of loopback alone.
	Primary string

	// Accept, if not nil, reports whether a valid network can be the primary
	// one. A primary network that Accept refuses later counts as removed. The
	// goroutine of Run, Publish or Find calls Accept.
	Accept func(netconf.File) bool

	// Template is the meta-plugin's own plugin object. The published network
	// consists of this plugin, with every key as it is written, and these:
	//
	//   - "delegates", a list of just the primary network; or "clusterNetwork",
	//     see ClusterNetworkDir. Template must have neither.
	//   - "capabilities": Template's, and those of the primary network that
	//     Template does not mention. A meta-plugin asks for its own in
	//     Template:
	//     netconf.In("capabilities", netconf.Set("io.kubernetes.cri.pod-annotations", true))
	//   - "name": Template's, or else that of the primary network. A meta-plugin
	//     that keeps records under the network's name should have a name in
	//     Template, because the primary network can change.
	//   - "cniVersion": that of the primary network, of Template, or the highest
	//     that the cni library implements, whichever is lowest.
	Template netconf.Plugin

	// OwnTypes are the types of our plugins, besides that of Template. A
	// network that has a plugin of such a type at any depth, or that refers to a
	// file with the name of the published one, is never the primary network.
	OwnTypes []string

	// ClusterNetworkDir, if not empty, is the path at which the plugin finds
	// Dir. The published network then refers to the primary network's file with
	// "clusterNetwork": changes of the file reach the plugin without a Manager.
	//
	// If it is empty, the primary network is embedded. Pods can then start
	// while its file is replaced, broken or gone, and the plugin needs no
	// access to Dir.
	ClusterNetworkDir string

	// Ready, if not empty, is a file that the primary network's agent makes.
	// Nothing is published before it exists; a file that was published earlier
	// stays. Run ends when Ready is removed.
	Ready string

	// Lock, if not empty, is a file to lock, so that only one of several
	// Managers publishes. It is made, with its directory, and stays. It must
	// not be in Dir or next to Output, but may be in a directory of its own
	// there, which Managers in several containers have in common.
	Lock string

	// Mode is the mode of the published file. Zero is 0600: configurations hold
	// credentials, and the embedded network's credentials are another
	// program's.
	Mode fs.FileMode

	// Observer, if not nil, is called with each new state, by the goroutine of
	// Run, Publish or Uninstall, which waits until Observer returns. The calls
	// come one after the other; each state differs from the one before. During
	// the call [Manager.State] returns the same state.
	Observer func(State)

	// Grace is how long Run keeps to the primary network after its file was
	// removed, before it takes another. Zero is 10 s.
	Grace time.Duration

	// Debounce is how long after a change in a directory Run looks at it. Zero is
	// 100 ms.
	Debounce time.Duration

	// Poll makes Run look every second, and watch no directory: for file systems that
	// do not report what other machines or containers change. A readiness file that is
	// removed and made again within that second was never lost.
	Poll bool

	resync time.Duration // for tests: how often to look
	hook   durable.Hook  // for tests: called before each step of publishing

	working sync.Mutex // held by the method that works

	mu    sync.Mutex // protects state
	state State
}

// A State is what a [Manager] has found and done.
type State struct {
	// Primary is the name of the primary network's file, and Network the name
	// of the published network. Both are empty while the Manager has published
	// nothing.
	Primary, Network string

	// Published is the path of the published file, in Root. It is empty while
	// the Manager has published nothing, and while the file on disk is not what
	// the Manager has published.
	Published string

	// Skipped has an error for each file that cannot be used, of those in
	// front of the primary network's file, or of all if there is no primary
	// network.
	Skipped []error

	// Degraded is what is wrong, nil if nothing is; see the errors of this
	// package. Where the file that was published before can stay, it does.
	Degraded error

	// Written counts how often the file was written, and Restored how often
	// because others had changed or removed it.
	Written, Restored int
}

// State returns the last state. It is the zero State before the first look.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	s.Skipped = slices.Clone(s.Skipped)
	return s
}

// setState stores s, and reports it if it is new.
func (m *Manager) setState(s State) {
	m.mu.Lock()
	same := fmt.Sprintf("%q", m.state) == fmt.Sprintf("%q", s)
	m.state = s
	m.mu.Unlock()
	if !same && m.Observer != nil {
		m.Observer(m.State())
	}
}

// validate fails with [ErrInvalid] unless the fields can be used.
func (m *Manager) validate() error {
	wrong := func(field, why string) error {
		return fail("use", "", because{ErrInvalid, errors.New(field + ": " + why)})
	}
	for _, path := range []struct{ field, value string }{
		{"Root", m.root()},
		{"Dir", m.Dir},
		{"Output", m.Output},
		{"ClusterNetworkDir", cmp.Or(m.ClusterNetworkDir, "/")},
		{"Ready", cmp.Or(m.Ready, "/")},
		{"Lock", cmp.Or(m.Lock, "/")},
	} {
		if !filepath.IsAbs(path.value) {
			return wrong(path.field, "not an absolute path")
		}
	}
	out := m.output()
	switch {
	case strings.Trim(strings.TrimSuffix(out.name, extension), ".") == "":
		return wrong("Output", "not the name of a file")
	case m.Primary != "" && (filepath.Base(m.Primary) != m.Primary || !fs.ValidPath(m.Primary)):
		return wrong("Primary", "not the name of a file")
	case m.Primary == out.name && m.sameDir(out.dir, m.Dir):
		return wrong("Primary", "is Output")
	case m.Lock != "" && (m.sameDir(filepath.Dir(m.Lock), m.Dir) || m.sameDir(filepath.Dir(m.Lock), out.dir)):
		return wrong("Lock", "in a directory of configurations")
	case m.Mode&^fs.ModePerm != 0:
		return wrong("Mode", "more than permissions")
	case min(m.Grace, m.Debounce) < 0:
		return wrong("Grace, Debounce", "negative")
	}
	// What is wrong with Template is wrong with any network.
	n, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"any","type":"any"}`))
	if err == nil {
		_, err = newDocument(m.Template, netconf.File{Network: n}, "")
	}
	return fail("publish", m.Output, err)
}

// output returns where to publish.
func (m *Manager) output() output {
	dir, name := filepath.Split(filepath.Clean(m.Output))
	if isConfig(name) {
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	name += extension
	return output{m, filepath.Clean(dir), name}
}

// root returns the root directory of the node.
func (m *Manager) root() string { return cmp.Or(m.Root, "/") }

// stat says what is at path in Root.
func (m *Manager) stat(path string) (info fs.FileInfo, err error) {
	err = inroot.With(m.Root, path, func(path string) error {
		info, err = os.Stat(path)
		return err
	})
	return info, err
}

// files is the directory Dir.
func (m *Manager) files() fs.FS { return inroot.Dir{Root: m.Root, Path: m.Dir} }

// sameDir reports whether two paths are of one directory.
func (m *Manager) sameDir(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	first, _ := m.stat(a) // nothing is not the same
	second, _ := m.stat(b)
	return os.SameFile(first, second)
}
