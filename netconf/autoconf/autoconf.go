// Package autoconf publishes the configuration of a meta-plugin in front of the
// primary network's, and follows that.
//
// A [Manager] finds the first valid network in the directory that container
// runtimes read, makes a configuration that delegates to it, and puts that in a
// file that sorts first. [Manager.Publish] does so once; [Manager.Run] again
// whenever something changes, and restores its file when others touch it.
//
// What is published is always whole and valid: it was read back before it got
// its name, and a reader of the directory sees the file before or the file
// after. No file but the Manager's own is ever written, and nothing in the
// directory, whatever it is, makes a Manager panic, hang or give up: what cannot
// be used is passed over and named in [State].
//
// A Manager looks at what is there and not at what happened. So nothing is
// missed, and its decisions do not depend on the order of events. It publishes
// on Linux; elsewhere it answers [errors.ErrUnsupported].
package autoconf

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/netconf"
)

// A Manager publishes one file. Its fields are its configuration: they are read,
// never written, and not to be changed once a method has been called. Dir,
// Output, and Template or Render have to be set; paths are absolute.
//
// [Manager.State] and [Manager.Changed] may be called by any goroutine at any
// time. Of [Manager.Run], [Manager.Publish] and [Manager.Uninstall] one works at
// a time, and the others fail with [ErrLocked] meanwhile. A Manager must not be
// copied after first use.
type Manager struct {
	// Dir is the directory in which to find the primary network, such as
	// /etc/cni/net.d. It need not exist yet.
	Dir string

	// Output is the file to publish, such as /etc/cni/net.d/00-multinet. Its
	// extension is replaced: it is .conflist from CNI 1.0.0 on, which has
	// retired the other form, and .conf before. A file that has the name is
	// replaced, whoever wrote it. Output should sort before all other files of
	// its directory, which has to exist.
	Output string

	// Primary is the name of the only file in Dir to be the primary network.
	// Empty: the first that is valid, in the order of the names, of those that
	// end in .conf, .conflist or .json. Those with ".tmp-" in their name are
	// being written. Set Primary, or Accept, where there are networks that
	// must never take the place of another, such as one of loopback alone.
	Primary string

	// Accept, if not nil, says which valid networks can be the primary one. One
	// that is refused after it has been accepted counts as gone. Accept is
	// called by the goroutine of Run or Publish, and not with Output.
	Accept func(file string, n netconf.Network) bool

	// Template is the plugin object to publish; see [Render].
	Template netconf.Plugin

	// Render, if not nil, takes the place of the function [Render] with
	// Template. What it gives has to be a network that can be run, in a
	// version that the cni library implements, else it is not published. The
	// same Primary has to give the same network.
	Render func(p Primary) (netconf.Network, error)

	// OwnTypes are the types of our plugins, besides that of Template: a
	// network with a plugin of such a type anywhere in it is never the primary
	// one, nor is one that names Output.
	OwnTypes []string

	// ClusterNetworkDir is the path at which the plugin finds Dir. If it is
	// set, the primary network is referred to as "clusterNetwork", a path. If
	// it is empty, the network is embedded: then pods can start while its file
	// is replaced, broken or gone, with the last that was good; the plugin
	// needs no access to Dir, and no path is wrong inside a container. What a
	// reference is good for is a Manager that does not run all the time:
	// changes of the file reach the plugin without it.
	ClusterNetworkDir string

	// Ready, if not empty, is a file that the primary network's agent makes.
	// Nothing is published before it exists, though what an earlier Manager
	// has published stays, and Run ends when it is removed.
	Ready string

	// Lock, if not empty, is a file to lock, so that only one of several
	// Managers publishes. It is made, with its directory, and stays. It must
	// not be in Dir or next to Output; a directory of its own in there will
	// do, which Managers in several containers see alike.
	Lock string

	// Mode is that of the published file. Zero is 0600: configurations hold
	// credentials, and the embedded network's are those of another.
	Mode fs.FileMode

	// Grace is how long Run goes on with the primary network after its file
	// is gone, before it takes another: it is replaced when the network is
	// upgraded. Zero is 10 s.
	Grace time.Duration

	// RemoveWhenGone has Run remove the published file when, after Grace,
	// there is no other network either. Without it, the file stays.
	RemoveWhenGone bool

	// Debounce is how long Run waits for quiet after something has happened in
	// a directory, and MaxDelay how long at most. Zero is 100 ms and 1 s.
	Debounce, MaxDelay time.Duration

	// Resync is how often Run looks although nothing has happened. Zero is
	// 30 s.
	Resync time.Duration

	hook durable.Hook // for tests: called before each step of publishing

	mu      sync.Mutex // protects what follows
	busy    bool
	state   State
	changed chan struct{} // closed when state changes; nil: nobody asked
}

// validate fails with [ErrInvalid] unless the fields can be used.
func (m *Manager) validate() error {
	wrong := func(field, why string) error {
		return fail("use", "", because{ErrInvalid, errors.New(field + ": " + why)})
	}
	for _, path := range []struct {
		field, value string
		needed       bool
	}{
		{"Dir", m.Dir, true},
		{"Output", m.Output, true},
		{"ClusterNetworkDir", m.ClusterNetworkDir, false},
		{"Ready", m.Ready, false},
		{"Lock", m.Lock, false},
	} {
		if (path.needed || path.value != "") && !filepath.IsAbs(path.value) {
			return wrong(path.field, "not an absolute path")
		}
	}
	_, name := m.outputName()
	switch {
	case strings.Trim(name, ".") == "" || strings.ContainsRune(name, filepath.Separator):
		return wrong("Output", "not the name of a file")
	case m.Primary != "" && (filepath.Base(m.Primary) != m.Primary || !fs.ValidPath(m.Primary)):
		return wrong("Primary", "not the name of a file")
	case m.Primary != "" && !m.finder(m.own()).considers(m.Primary):
		return wrong("Primary", "is Output")
	case m.Render == nil && m.Template.Type() == "":
		return wrong("Template", "no type, and no Render")
	case m.Template.Type() == "" && len(m.OwnTypes) == 0:
		return wrong("OwnTypes", "none, and no Template")
	case m.Lock != "" && (sameDir(filepath.Dir(m.Lock), m.Dir) || sameDir(filepath.Dir(m.Lock), filepath.Dir(m.Output))):
		return wrong("Lock", "in a directory of configurations")
	case m.Mode&^fs.ModePerm != 0:
		return wrong("Mode", "more than permissions")
	case min(m.Grace, m.Debounce, m.MaxDelay, m.Resync) < 0:
		return wrong("Grace, Debounce, MaxDelay, Resync", "negative")
	}
	if m.Render == nil {
		// What is wrong with Template is wrong with any network.
		n, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"any","type":"any"}`))
		if err == nil {
			_, err = m.document(Primary{File: "any", Network: n})
		}
		if err != nil {
			return fail("use", "", because{ErrInvalid, because{errors.New("Template"), err}})
		}
	}
	return nil
}

// outputName returns the directory of Output, and its name without extension.
func (m *Manager) outputName() (dir, name string) {
	dir, name = filepath.Split(m.Output)
	if isConfig(name) {
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	return filepath.Clean(dir), name
}

// output returns where to publish, and what is ours, as far as the disk tells
// now.
func (m *Manager) output() output {
	dir, name := m.outputName()
	return output{dir: dir, name: name, mode: cmp.Or(m.Mode, defaultMode), own: m.own(), hook: m.hook}
}

func (m *Manager) own() own {
	dir, name := m.outputName()
	o := own{types: slices.Clone(m.OwnTypes)}
	if t := m.Template.Type(); t != "" {
		o.types = append(o.types, t)
	}
	dirs := []string{dir}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dirs = append(dirs, real)
	}
	if sameDir(dir, m.Dir) {
		o.name = name
		if m.ClusterNetworkDir != "" {
			dirs = append(dirs, m.ClusterNetworkDir)
		}
	}
	var files []string
	for _, ext := range forms {
		files = append(files, filepath.Join(dir, name+ext))
		for _, d := range dirs {
			o.paths = append(o.paths, filepath.Join(d, name+ext))
		}
	}
	o.same = sameFile(files...)
	return o
}

// sameDir reports whether two paths are of one directory.
func sameDir(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	ai, aerr := os.Stat(a)
	bi, berr := os.Stat(b)
	return aerr == nil && berr == nil && os.SameFile(ai, bi)
}

func (m *Manager) finder(o own) finder {
	return finder{fixed: m.Primary, accept: m.Accept, own: o}
}

func (m *Manager) policy(out output) policy {
	return policy{
		grace:          cmp.Or(m.Grace, defaultGrace),
		removeWhenGone: m.RemoveWhenGone,
		name:           out.name,
		mode:           out.mode,
		own:            out.own,
	}
}
