package autoconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metacni/metacni/netconf"
)

// A skippedFile is one that a runtime would read and that cannot be the primary
// network.
type skippedFile struct {
	name string // as it is named in the directory; any byte but a slash
	err  error  // why
}

// found is what a finder found.
type found struct {
	primary netconf.File  // without a name if there is none
	skipped []skippedFile // the files before it that cannot be used
	err     error         // the directory cannot be listed
}

// find looks for the primary network through the files at the top of fsys, in the order of
// runtimes. What it finds is a function of what the directory holds.
func (m *Manager) find(fsys fs.FS) (all found) {
	out := m.output()
	beside := m.sameDir(out.dir, m.Dir)
	for file, err := range m.candidates(fsys) {
		if file.Name == "" {
			return found{err: err}
		}
		if beside && file.Name == out.name {
			continue // whatever it holds
		}
		switch {
		case err != nil:
		case out.in(file.Network):
			err = fail("read", file.Name, errOwn)
		case m.Accept != nil && !m.Accept(file):
			err = fail("read", file.Name, errRefused)
		default:
			all.primary = file
			return all
		}
		all.skipped = append(all.skipped, skippedFile{file.Name, err})
	}
	return all
}

// candidates yields the files to look through.
func (m *Manager) candidates(fsys fs.FS) iter.Seq2[netconf.File, error] {
	if m.Primary == "" {
		return netconf.Files(fsys)
	}
	return func(yield func(netconf.File, error) bool) {
		n, err := netconf.LoadFile(fsys, m.Primary)
		if err == nil {
			err = fail("read", m.Primary, n.Runnable())
		}
		yield(netconf.File{Name: m.Primary, Network: n}, err)
	}
}

// broken returns why a file cannot be used, or the first such file if name is empty. A
// network that is refused is not broken.
func (f found) broken(name string) error {
	for _, skipped := range f.skipped {
		if (name == "" || skipped.name == name) && !errors.Is(skipped.err, errRefused) {
			return skipped.err
		}
	}
	return nil
}

// errs returns why files were skipped.
func (f found) errs() (errs []error) {
	for _, skipped := range f.skipped {
		errs = append(errs, skipped.err)
	}
	return errs
}

// in reports whether n has a plugin of ours, at any depth, or refers to a file with the
// name of the published one: its directory has several paths, of which this process need
// not know all. With such a primary network, the two would call each other
// without end.
func (o output) in(n netconf.Network) bool {
	data, _ := n.MarshalJSON() // cannot fail
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // no number is too large
	var value any
	return d.Decode(&value) != nil || o.inValue(value)
}

func (o output) inValue(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			// A plugin written in Go takes "Type" for it as well.
			typ, ok := inner.(string)
			ours := typ == o.m.Template.Type() || slices.Contains(o.m.OwnTypes, typ)
			if ok && strings.EqualFold(key, "type") && ours || o.inValue(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, o.inValue)
	case string:
		return filepath.Base(v) == o.name
	}
	return false
}

// owns reports whether data, the content of a file with the published file's name,
// is ours to remove. Data that cannot be decoded is ours, because nobody can use
// it. A configuration without a plugin of ours belongs to someone else, even if it
// is invalid.
func (o output) owns(data []byte) bool {
	n, err := netconf.Parse(data)
	if err != nil {
		return errors.Is(err, netconf.ErrDecode)
	}
	return o.in(n)
}
