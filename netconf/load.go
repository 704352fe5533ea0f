package netconf

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/metacni/metacni/internal/bounds"
)

// Load finds the network called name among the configuration files at the top of
// fsys. As in libcni, the extension says what a file has: a list if it is .conflist, and
// a lone plugin if it is .conf or .json, whose "plugins" then has no meaning. Load takes the
// first with the name, lists first, in the order of their names. It
// appends the plugins of the files <name>/*.conf to a list, unless the list's
// "loadOnlyInlinedPlugins" is true (SPEC section 1, "Loading plugin
// configurations"). A list with "name" or "plugins" in another spelling, or with a cniVersion of
// null, is a bad file, because libcni does not read it.
//
// Only regular files of at most 1 MiB, and links to them, are opened. Anything
// else of those names is a bad file, as is a file that does not parse.
//
// A bad file never hides a good one; in libcni it ends the search. Where no file defines name, the error is
// [ErrNotFound] joined with the error of each bad file. Its text has the error of
// the bad file that defines name, or has its name; or else the number of bad files
// and the first error. It also names a file that has the network's name and
// defines another network.
//
// An error without a Kind, of CNI code 5, means that fsys cannot be listed. A name
// that is not a CNI network name is [ErrInvalid], and is not used as a path.
//
// If fsys is a *[Dir], calls of Load read each file once for all networks.
func Load(fsys fs.FS, name string) (Network, error) {
	d, ok := fsys.(*Dir)
	if !ok {
		d = &Dir{FS: fsys}
	}
	return d.load(name)
}

// A Dir is its FS. For [Load] it remembers the configuration files at the top of the FS: Load
// lists them once, and reads each at most once, when it first needs it. Without a Dir, Load reads
// files again for each network. Load does not see what has changed since: use a new Dir for
// each operation. If the FS cannot be listed, the next Load tries again. Pass a *Dir: a Dir
// must not be copied. Any number of goroutines may use it.
type Dir struct {
	fs.FS

	mu    sync.Mutex
	files []dirFile
}

// A dirFile is a file of a Dir.
type dirFile struct {
	name string
	read bool // the rest is set
	n    Network
	list bool // n has the form of a list
	err  error
}

func (d *Dir) load(name string) (Network, error) {
	if err := validateName(name); err != nil {
		return Network{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		names, err := listDir(d.FS, ".", isConfig)
		if err != nil {
			return Network{}, inNetwork(name, err)
		}
		d.files = make([]dirFile, 0, len(names)) // not nil
		for _, lists := range []bool{true, false} {
			for _, file := range names {
				if (path.Ext(file) == ".conflist") == lists {
					d.files = append(d.files, dirFile{name: file})
				}
			}
		}
	}
	var bad []error
	misnamed := ""
	for i := range d.files {
		f := &d.files[i]
		if !f.read {
			f.read = true
			f.n, f.list, f.err = readNetwork(d.FS, f.name)
		}
		n, err := f.n, f.err
		if err == nil && n.Name() == name {
			if n, err = n.complete(d.FS, f.name, f.list); err == nil {
				return n, nil
			}
		}
		if err != nil {
			bad = append(bad, err)
		} else if called(f.name, name) {
			misnamed = fmt.Sprintf("file %q defines network %q: use this name", f.name, n.Name())
		}
	}
	return Network{}, notFound(name, misnamed, bad)
}

// called reports whether file, with or without its extension, is the network's name.
func called(file, name string) bool {
	return file == name || strings.TrimSuffix(file, path.Ext(file)) == name
}

// LoadFile reads the network configuration of a file at the top of fsys as [Load] does, with
// the plugins of a list's sub-directory. With another extension than those of Load, the file
// may have either form, as for [Parse].
//
// A file that does not exist is [ErrNotFound] and [fs.ErrNotExist]. A file that
// cannot be read is an [*Error] without a Kind, of CNI code 5. Anything else than a
// regular file of at most 1 MiB, or a link to one, is [ErrInvalid] and is not
// opened. Other errors are those of [Parse]. Every error names the file.
func LoadFile(fsys fs.FS, file string) (Network, error) {
	if file == "." || path.Base(file) != file {
		return Network{}, errNotFile(file)
	}
	n, list, err := readNetwork(fsys, file)
	if err != nil {
		return Network{}, err
	}
	return n.complete(fsys, file, list)
}

// LoadChain returns the network called name whose plugins are those of the files
// <name>/*.conf, in the order of their names: the network of a list without "plugins",
// but without a file for the list. It has no cniVersion.
//
// Where there are no such files, the error is [ErrNotFound]. A file that cannot be used is
// an error of [ReadFile] or [ParsePlugin], or [ErrInvalid] for a plugin without a type.
// LoadChain fails for a name as [Load] does.
func LoadChain(fsys fs.FS, name string) (Network, error) {
	if err := validateName(name); err != nil {
		return Network{}, err
	}
	plugins, err := subdirectory(fsys, name)
	if err != nil {
		return Network{}, inNetwork(name, err)
	}
	if len(plugins) == 0 {
		return Network{}, &Error{Kind: ErrNotFound, Network: name}
	}
	return List(name, "", plugins...)
}

// readNetwork reads a file at the top of fsys, and reports whether it has the form of a
// list.
func readNetwork(fsys fs.FS, file string) (n Network, list bool, err error) {
	data, err := ReadFile(fsys, file)
	if err != nil {
		return Network{}, false, err
	}
	if err = checkBounds(data, bounds.Network); err == nil {
		n, list, err = parse(data, path.Ext(file))
	}
	return n, list, inFile(file, err)
}

// complete appends the plugins of the sub-directory to n, which file has defined.
func (n Network) complete(fsys fs.FS, file string, list bool) (Network, error) {
	if list && n.Name() != "" && !n.list.onlyInlined {
		more, err := subdirectory(fsys, n.Name())
		if err != nil {
			return Network{}, inNetwork(n.Name(), err)
		}
		n.plugins = slices.Concat(n.plugins, more)
	}
	_, typed, _ := n.keys.find("type")
	if len(n.plugins) == 0 {
		why := "no plugins, here or in the sub-directory"
		if typed {
			why += ": programs read this file as a list. If it is one plugin, end its name with .conf"
		}
		return Network{}, inFile(file, n.fail(ErrInvalid, "plugins", errors.New(why)))
	}
	if typed && path.Ext(file) == ".conflist" { // which nobody takes for one plugin
		n.keys = n.keys.shallow()
		n.keys.remove("type")
	}
	return n, nil
}

// subdirectory reads the plugins that are configured in the directory dir of
// fsys. There may be none.
func subdirectory(fsys fs.FS, dir string) ([]Plugin, error) {
	files, err := listDir(fsys, dir, func(entry fs.DirEntry) bool { return !entry.IsDir() && path.Ext(entry.Name()) == ".conf" })
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var plugins []Plugin
	for _, file := range files {
		data, err := ReadFile(fsys, file)
		if err != nil {
			return nil, err
		}
		p, err := ParsePlugin(data)
		if err == nil {
			err = p.requireType()
		}
		if err != nil {
			return nil, inFile(file, err)
		}
		plugins = append(plugins, p)
	}
	return plugins, nil
}

// listDir lists the paths of the wanted entries of dir, sorted.
func listDir(fsys fs.FS, dir string, wanted func(fs.DirEntry) bool) ([]string, error) {
	if fsys == nil {
		return nil, &Error{Kind: ErrInvalid, Err: errors.New("no file system to load from")}
	}
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fileError(dir, err)
	}
	var files []string
	for _, entry := range entries {
		if wanted(entry) {
			files = append(files, path.Join(dir, entry.Name()))
		}
	}
	slices.Sort(files)
	return files, nil
}

// ReadFile reads a file of fsys as [Load] does. The error is [ErrInvalid] where the
// file is not a regular one of at most 1 MiB, or a link to one: it is not opened
// then. A file that does not exist is [ErrNotFound] and [fs.ErrNotExist]. A file that
// cannot be read is an [*Error] without a Kind.
func ReadFile(fsys fs.FS, file string) ([]byte, error) {
	if fsys == nil || !fs.ValidPath(file) {
		return nil, errNotFile(file)
	}
	data, err := bounds.ReadFS(fsys, file, bounds.Network)
	if unfit := (*bounds.UnfitError)(nil); errors.As(err, &unfit) {
		return nil, &Error{Kind: ErrInvalid, File: file, Err: unfit}
	}
	if err != nil {
		return nil, fileError(file, err)
	}
	return data, nil
}

// errNotFile is the error about a file that cannot exist.
func errNotFile(file string) error {
	return &Error{Kind: ErrInvalid, File: file, Err: errors.New("not the name of a file")}
}

// inFile returns err, an *Error or nil, as an error about file.
func inFile(file string, err error) error {
	return amend(err, func(e *Error) { e.File = file })
}

// fileError makes an *Error of what a file system returned.
func fileError(file string, err error) error {
	e := &Error{File: file, Err: err}
	if file == "." { // the caller's own directory: err says more
		e.File = ""
	} else if p := (*fs.PathError)(nil); errors.As(err, &p) {
		e.Err = p.Err // the file is named already
	}
	if errors.Is(err, fs.ErrNotExist) {
		e.Kind = ErrNotFound
	}
	return e
}
