package autoconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/netconf"
)

// A Primary is the network that a configuration is published in front of.
type Primary struct {
	// File is the name of its file in the directory that is watched.
	File string

	// Path is where the plugin finds that file, or empty when the network is
	// to be embedded; see [Manager.ClusterNetworkDir].
	Path string

	// Network is what the file holds, together with the plugins of its
	// sub-directory.
	Network netconf.Network
}

// A Skipped file is one that a runtime would look at, and that cannot be the
// primary network.
type Skipped struct {
	File string // as it is named in the directory; any byte but a slash
	Err  error  // why
}

// A finder finds the primary network. It is a function of what the directory
// holds and of nothing else.
type finder struct {
	fixed  string // the only file to look at, if not empty
	accept func(file string, n netconf.Network) bool
	own    own
}

// own is what a finder must not find.
type own struct {
	name  string                 // of the published file, without extension; empty if it is elsewhere
	same  func(fs.FileInfo) bool // reports whether it is the published file by another name; may be nil
	paths []string               // those of the published file, to recognise what refers to it
	types []string               // of our plugins
}

// found is what a finder found.
type found struct {
	primary Primary   // with no File if there is none
	skipped []Skipped // those that were looked at before it
	err     error     // the directory cannot be listed
}

// find looks through the files at the top of fsys in the order of runtimes,
// that of the names.
func (f finder) find(fsys fs.FS) found {
	fsys = guarded{fsys}
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return found{err: err}
	}
	var names []string
	for _, entry := range entries {
		if name := entry.Name(); f.considers(name) && (!entry.IsDir() || name == f.fixed) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var all found
	for _, name := range names {
		n, err := f.read(fsys, name)
		if err != nil {
			all.skipped = append(all.skipped, Skipped{File: name, Err: fail("read", name, err)})
			continue
		}
		if f.accept != nil && !f.accept(name, n) {
			all.skipped = append(all.skipped, Skipped{File: name, Err: fail("read", name, ErrRefused)})
			continue
		}
		all.primary = Primary{File: name, Network: n}
		break
	}
	return all
}

// considers reports whether a file of that name can be the primary network.
func (f finder) considers(name string) bool {
	if f.own.name != "" && strings.TrimSuffix(name, path.Ext(name)) == f.own.name && isConfig(name) {
		return false
	}
	if f.fixed != "" {
		return name == f.fixed
	}
	return isConfig(name) && !isTemporary(name)
}

// isConfig reports whether runtimes read a file of that name.
func isConfig(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
}

// isTemporary reports whether a file of that name is half-written or put aside.
func isTemporary(name string) bool {
	return strings.Contains(name, ".tmp-") || strings.HasSuffix(name, "_bak")
}

// read reads a network that can be the primary one.
func (f finder) read(fsys fs.FS, name string) (netconf.Network, error) {
	if f.own.same != nil {
		if info, err := fs.Stat(fsys, name); err == nil && f.own.same(info) {
			return netconf.Network{}, ErrOwn
		}
	}
	n, err := netconf.LoadFileFS(fsys, name)
	if err != nil {
		return netconf.Network{}, bare(err, name)
	}
	if n.Name() == "" {
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrInvalid, Key: "name", Err: errors.New("missing")}
	}
	if _, err := supported(n.CNIVersion()); err != nil {
		return netconf.Network{}, err
	}
	if err := decodable(n); err != nil {
		return netconf.Network{}, err
	}
	for _, p := range n.Plugins() {
		if t := p.Type(); t == "." || t == ".." || strings.ContainsAny(t, `/\`) {
			return netconf.Network{}, &netconf.Error{Kind: netconf.ErrInvalid, Network: n.Name(), Key: "type", Err: errors.New("a path, want the name of an executable")}
		}
	}
	if f.own.in(n) {
		return netconf.Network{}, ErrOwn
	}
	return n, nil
}

// decodable fails where a number is larger than any that Go has: libcni cannot
// read a list with it.
func decodable(n netconf.Network) error {
	var value any
	return n.Decode(&value)
}

// bare returns an error of netconf without the name of the file, which whoever
// reports it says as well. Another file is one of the sub-directory.
func bare(err error, name string) error {
	var e *netconf.Error
	if !errors.As(err, &e) || e.File != name {
		return err
	}
	c := *e
	c.File = ""
	return &c
}

// in reports whether n runs a plugin of ours, at whatever depth, or refers to
// the published file: to publish a configuration in front of it would make the
// two call each other without end.
func (o own) in(n netconf.Network) bool {
	data, _ := n.MarshalJSON() // cannot fail
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // no number is too large
	var value any
	return d.Decode(&value) != nil || o.inValue(value)
}

func (o own) inValue(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			// A plugin written in Go takes "Type" for it as well.
			typ, ok := inner.(string)
			if ok && strings.EqualFold(key, "type") && slices.Contains(o.types, typ) || o.inValue(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, o.inValue)
	case string:
		return slices.Contains(o.paths, filepath.Clean(v))
	}
	return false
}

// owns reports whether data, found under a name of the published file, is ours
// to remove. What is no configuration at all is: it has our name, and nobody can
// use it. What is a configuration, if not one to be used by itself, is someone's.
func (o own) owns(data []byte) bool {
	n, err := netconf.Parse(data)
	if err != nil {
		return errors.Is(err, netconf.ErrDecode)
	}
	return o.in(n)
}

// supported returns the highest version of the protocol that is implemented
// and not above v.
func supported(v string) (string, error) {
	best := ""
	for _, known := range version.All.SupportedVersions() {
		ok, err := version.GreaterThanOrEqualTo(v, known)
		if err != nil {
			return "", &netconf.Error{Kind: netconf.ErrInvalid, Key: "cniVersion", Err: errors.New("not a version")}
		}
		if ok {
			best = known
		}
	}
	if best == "" {
		return "", &netconf.Error{Kind: netconf.ErrInvalid, Key: "cniVersion", Err: errors.New("below all that are implemented")}
	}
	return best, nil
}

// sameFile reports whether an fs.FileInfo is of one of files, those that exist.
// What a link in place of one of them leads to is another file.
func sameFile(files ...string) func(fs.FileInfo) bool {
	var infos []fs.FileInfo
	for _, file := range files {
		if info, err := os.Lstat(file); err == nil {
			infos = append(infos, info)
		}
	}
	return func(info fs.FileInfo) bool {
		return slices.ContainsFunc(infos, func(ours fs.FileInfo) bool { return os.SameFile(ours, info) })
	}
}

// Find looks once, and returns the network that Publish would publish in front
// of. It changes nothing, and does not look whether the readiness file exists.
// It fails with [ErrNoPrimary] together with why files were passed over, and with
// [ErrInvalid] as [Manager.Run] does. The Primary's Path is empty.
func (m *Manager) Find() (Primary, error) {
	if err := m.validate(); err != nil {
		return Primary{}, err
	}
	f := m.finder(m.own()).find(dirFS(m.Dir))
	if f.primary.File != "" {
		return f.primary, nil
	}
	errs := []error{ErrNoPrimary, fail("find", m.Dir, f.err)}
	for _, skipped := range f.skipped {
		errs = append(errs, skipped.Err)
	}
	return Primary{}, join("find", m.Dir, errs...)
}
