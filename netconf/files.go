package netconf

import (
	"errors"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"
)

// A File is a file with a network configuration, as [Files] finds it.
type File struct {
	Name    string  // at the top of the file system
	Network Network // what the file and its sub-directory hold; zero with an error
}

// Files yields the network configuration files at the top of fsys in the order in
// which container runtimes take them, that of their names. The primary network is
// the first that a meta-plugin can use:
//
//	for f, err := range netconf.Files(fsys) {
//		if err == nil && !ours(f.Network) {
//			return f.Network, nil
//		}
//	}
//
// The files that runtimes read are those ending in .conf, .conflist and .json. Files leaves
// out temporary files (".tmp-" in the name). It reads a file as [Load] does, and only when the
// iteration comes to it.
//
// A file that cannot be used is yielded with an error, which names the file, and
// no Network. The error is one of [LoadFile] or [Network.Runnable]. An error with
// the zero File means that fsys cannot be listed.
func Files(fsys fs.FS) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		names, err := listDir(fsys, ".", isConfig)
		if err != nil {
			yield(File{}, err)
			return
		}
		for _, name := range names {
			if strings.Contains(name, ".tmp-") {
				continue
			}
			n, err := LoadFile(fsys, name)
			if err == nil {
				err = inFile(name, n.Runnable())
			}
			if err != nil {
				n = Network{}
			}
			if !yield(File{Name: name, Network: n}, err) {
				return
			}
		}
	}
}

// isConfig reports whether a file has the extension of a network configuration.
func isConfig(entry fs.DirEntry) bool {
	return !entry.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(entry.Name()))
}

// Runnable fails with [ErrInvalid] for a network that no runtime can run: it has no
// name, a version of the protocol that is no version or below all that are
// implemented, or a path in place of a plugin's type; or for a list that also has a
// "type", which some programs take for a plugin. It fails with [ErrDecode] for a
// number that is too large for Go.
func (n Network) Runnable() error {
	fail := func(key, why string) error {
		return &Error{Kind: ErrInvalid, Network: n.Name(), Key: key, Err: errors.New(why)}
	}
	if n.Name() == "" {
		return fail("name", "missing")
	}
	switch known, err := version.GreaterThanOrEqualTo(n.CNIVersion(), "0.1.0"); {
	case err != nil:
		return fail("cniVersion", "not a version")
	case !known:
		return fail("cniVersion", "below all that are implemented")
	}
	if _, typed, err := n.keys.inAnyCase("type"); typed || err != nil {
		return fail("", `has both "type" and "plugins": a plugin has a type, and a list has plugins`)
	}
	for i, p := range n.plugins {
		if t := p.Type(); t == "." || t == ".." || strings.ContainsAny(t, "/\\\x00") {
			return fail(pluginKey(i)+".type", "a path, want the name of an executable")
		}
	}
	tooLarge := func(key string) error {
		return &Error{Kind: ErrDecode, Network: n.Name(), Key: key, Err: errors.New("a number that is too large")}
	}
	if key := n.keys.hugeNumber(); key != "" {
		return tooLarge(key)
	}
	for i, p := range n.plugins {
		if key := p.keys.hugeNumber(); key != "" {
			return tooLarge(joinKey(pluginKey(i), key))
		}
	}
	return nil
}
