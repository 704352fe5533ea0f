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

// Files finds the networks at the top of fsys that a container runtime would
// consider, in the order in which the runtime does: that of the file names. The
// first that a meta-plugin can use is the primary network.
//
// A nil consider takes the files that runtimes read: those ending in .conf,
// .conflist and .json, without temporary files (".tmp-" in the name) and files
// that were put aside ("_bak" at the end). Files are read as [Load] reads them,
// one at a time, as far as the iteration goes.
//
// An error says why a file cannot be used: what [Parse] would say, or that no
// runtime can run the network, because it has no name, a version of the protocol
// that is not implemented, a number that is too large for Go, or a path in place
// of a type. The File has the name then. An error with an empty File means that
// fsys cannot be listed.
func Files(fsys fs.FS, consider func(fs.DirEntry) bool) iter.Seq2[File, error] {
	if consider == nil {
		consider = runtimeReads
	}
	return func(yield func(File, error) bool) {
		names, err := listDir(fsys, ".", consider)
		if err != nil {
			yield(File{}, err)
			return
		}
		for _, name := range names {
			n, err := loadFile(fsys, name, nil)
			if err == nil {
				err = amend(n.runnable(), func(e *Error) { e.File = name })
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

// runtimeReads reports whether a container runtime reads a file at the top of its
// directory.
func runtimeReads(entry fs.DirEntry) bool {
	name := entry.Name()
	return isConfig(entry) && !strings.Contains(name, ".tmp-") && !strings.HasSuffix(name, "_bak")
}

// isConfig reports whether a file has the extension of a network configuration.
func isConfig(entry fs.DirEntry) bool {
	return !entry.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(entry.Name()))
}

// runnable fails unless a runtime can run n.
func (n Network) runnable() error {
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
	for _, p := range n.plugins {
		if t := p.Type(); t == "." || t == ".." || strings.ContainsAny(t, `/\`) {
			return fail("type", "a path, want the name of an executable")
		}
	}
	var value any
	return n.Decode(&value) // which fails where a number is too large
}
