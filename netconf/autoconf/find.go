package autoconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metacni/metacni/netconf"
)

// A candidate is the network to publish a configuration in front of.
type candidate struct {
	netconf.File

	// path is where the plugin finds the file, or empty when the network is to
	// be embedded; see [Manager.ClusterNetworkDir].
	path string
}

// A skippedFile is one that a runtime would read and that cannot be the primary
// network.
type skippedFile struct {
	name string // as it is named in the directory; any byte but a slash
	err  error  // why
}

// A finder finds the primary network. What it finds is a function of what the
// directory holds.
type finder struct {
	fixed  string // the only file to look at, if not empty
	accept func(netconf.File) bool
	own    own
}

// own is what a finder must not find.
type own struct {
	name  string   // of the published file, without extension; empty if it is elsewhere
	paths []string // those of the published file, to recognise what refers to it
	types []string // of our plugins
}

// found is what a finder found.
type found struct {
	primary candidate     // without a name if there is none
	skipped []skippedFile // the files before it that cannot be used
	err     error         // the directory cannot be listed
}

// find looks through the files at the top of fsys in the order of runtimes.
func (f finder) find(fsys fs.FS) found {
	var all found
	consider := func(entry fs.DirEntry) bool {
		return f.considers(entry.Name()) && (!entry.IsDir() || f.fixed != "")
	}
	if _, err := fs.Stat(fsys, f.fixed); f.fixed != "" && errors.Is(err, fs.ErrNotExist) {
		return found{skipped: []skippedFile{{f.fixed, fail("read", f.fixed, fs.ErrNotExist)}}}
	}
	for file, err := range netconf.Files(fsys, consider) {
		if file.Name == "" {
			return found{err: err}
		}
		err = bare(err, file.Name)
		if err == nil {
			err = f.refuse(file)
		}
		if err == nil {
			all.primary.File = file
			break
		}
		all.skipped = append(all.skipped, skippedFile{file.Name, fail("read", file.Name, err)})
	}
	return all
}

// refuse says why a network that can be run is not the primary one.
func (f finder) refuse(file netconf.File) error {
	if f.own.in(file.Network) {
		return errOwn
	}
	if f.accept != nil && !f.accept(file) {
		return errRefused
	}
	return nil
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

// isTemporary reports whether a file of that name is being written or is a backup.
func isTemporary(name string) bool {
	return strings.Contains(name, ".tmp-") || strings.HasSuffix(name, "_bak")
}

// bare returns an error of netconf without the name of the file, which the error
// around it has. It keeps the name of a file in the sub-directory.
func bare(err error, name string) error {
	var e *netconf.Error
	if err == nil || !errors.As(err, &e) || e.File != name {
		return err
	}
	c := *e
	c.File = ""
	return &c
}

// in reports whether n has a plugin of ours, at any depth, or refers to the
// published file. With such a primary network, the two would call each other
// without end.
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

// owns reports whether data, the content of a file with the published file's name,
// is ours to remove. Data that cannot be decoded is ours, because nobody can use
// it. A configuration without a plugin of ours belongs to someone else, even if it
// is invalid.
func (o own) owns(data []byte) bool {
	n, err := netconf.Parse(data)
	if err != nil {
		return errors.Is(err, netconf.ErrDecode)
	}
	return o.in(n)
}

// Find returns the file that Publish would take for the primary network now. It
// changes nothing, and does not need the readiness file to exist. It fails with
// [ErrNoPrimary] and why each file was passed over, and with [ErrInvalid] as
// [Manager.Run] does.
func (m *Manager) Find() (netconf.File, error) {
	if err := m.validate(); err != nil {
		return netconf.File{}, err
	}
	f := m.finder(m.own()).find(m.files())
	if f.primary.Name != "" {
		return f.primary.File, nil
	}
	errs := []error{ErrNoPrimary, fail("find", m.Dir, f.err)}
	for _, skipped := range f.skipped {
		errs = append(errs, skipped.err)
	}
	return netconf.File{}, fail("find", m.Dir, errors.Join(errs...))
}
