package netconf

import (
	"encoding/json"
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
// out temporary files (".tmp-" in the name). It reads a file as [Load] does, so that the extension
// decides what it has, and only when the iteration comes to it. Of runtimes that meet a file which
// cannot be used, CRI-O and podman go on with the next one, and containerd has no network.
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

// Complete returns n with this name and this version of the protocol where it has none
// or an empty one. An empty argument changes nothing. Complete fails with [ErrInvalid] for the zero
// Network, and for a list that also has a "type", which some programs take for a plugin.
func (n Network) Complete(name, version string) (Network, error) {
	if err := n.checkForm(); err != nil {
		return Network{}, err
	}
	lacks := func(key string) bool { raw, ok := n.keys[key]; return !ok || string(raw) == `""` }
	_, several := n.keys["cniVersions"]
	unnamed := name != "" && lacks("name")
	unversioned := version != "" && lacks("cniVersion") && !several
	if !unnamed && !unversioned {
		return n, nil
	}
	keys := n.keys.shallow()
	if unnamed {
		keys["name"] = encodeString(name)
	}
	if unversioned {
		keys["cniVersion"] = encodeString(version)
	}
	completed, err := newNetwork(keys, n.plugins)
	if err != nil {
		return Network{}, inNetwork(keys.nameForErrors(), err)
	}
	return completed, nil
}

// checkForm fails with ErrInvalid unless n is a list or a lone plugin to all programs.
func (n Network) checkForm() error {
	if n.IsZero() {
		return &Error{Kind: ErrInvalid, Err: errZeroNetwork}
	}
	if _, typed, err := n.keys.find("type"); typed || err != nil {
		return n.fail(ErrInvalid, "", errors.New(`has both "type" and "plugins": a plugin has a type, and a list has plugins`))
	}
	return nil
}

// Runnable fails with [ErrInvalid] for a network that no runtime can run: it has no
// name, a version of the protocol that is no version or below all that are
// implemented, or a path in place of a plugin's type; or for a list that also has a
// "type", which some programs take for a plugin. It fails with [ErrDecode] for a
// number that is too large for Go.
func (n Network) Runnable() error {
	if err := n.checkForm(); err != nil {
		return err
	}
	if n.Name() == "" {
		return n.fail(ErrInvalid, "name", errMissing)
	}
	switch known, err := version.GreaterThanOrEqualTo(n.CNIVersion(), "0.1.0"); {
	case err != nil:
		return n.fail(ErrInvalid, "cniVersion", errors.New("not a version"))
	case !known:
		return n.fail(ErrInvalid, "cniVersion", errors.New("below all that are implemented"))
	}
	if err := n.keys.checkNumbers(); err != nil {
		return inNetwork(n.Name(), err)
	}
	for i, p := range n.plugins {
		if t := p.Type(); t == "." || t == ".." || strings.ContainsAny(t, "/\\\x00") {
			return n.fail(ErrInvalid, pluginKey(i)+".type", errors.New("a path, want the name of an executable"))
		}
		if err := p.keys.checkNumbers(); err != nil {
			return inNetwork(n.Name(), under(pluginKey(i), err))
		}
	}
	return nil
}

// checkNumbers fails with ErrDecode, naming the key, if the value of one has a number that
// encoding/json cannot decode without a type: it does not fit into a float64.
func (o object) checkNumbers() error {
	for _, key := range o.sorted() {
		if json.Unmarshal(o[key], new(any)) != nil {
			return &Error{Kind: ErrDecode, Key: key, Err: errors.New("a number that is too large")}
		}
	}
	return nil
}
