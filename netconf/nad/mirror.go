package nad

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf"
)

// Load reads the definition r from a mirror: a directory that has a file
// <namespace>/<name>.conf or .conflist with the Config of each definition, byte for byte.
// Next to it, <name>.key holds what else is known, as [Mirror.Put] writes it. Without a
// .key file the definition is one that a person wrote, and has neither UID, Version nor
// Resource.
//
// Load fails
//
//   - as [Ref.Validate] does, and never uses such a name as a path;
//   - with [netconf.ErrNotFound], if there is no such definition;
//   - with CNI code 11, if the files do not belong together: one is being replaced,
//     or has been changed by hand;
//   - with [netconf.ErrDecode] or [netconf.ErrInvalid], if the .key file is damaged or
//     a file cannot be used, and with [netconf.ErrInvalid] for two files that a person
//     wrote;
//   - with CNI code 5, if a file cannot be read.
//
// Give each mirror a directory of its own. Anything that the directories in it hold may
// be selected by pods.
func Load(fsys fs.FS, r Ref) (Definition, error) {
	if err := r.Validate(); err != nil {
		return Definition{}, err
	}
	d, err := load(fsys, r)
	if err != nil && errors.Is(err, errApart) {
		d, err = load(fsys, r) // a writer may have been at work
	}
	if err != nil {
		return Definition{}, about(r, err)
	}
	return d, nil
}

// errApart is the error of files that do not belong together.
var errApart = fault.New(types.ErrTryAgainLater, "its files in the mirror do not belong together: one is being replaced, or has been changed by hand")

func load(fsys fs.FS, r Ref) (Definition, error) {
	file := path.Join(r.Namespace, r.Name)
	missing := &netconf.Error{Kind: netconf.ErrNotFound, File: file + confExt, Err: fs.ErrNotExist}
	if tooLong(r.Name) {
		return Definition{}, missing
	}
	key, err := readKey(fsys, file+keyExt)
	if err != nil {
		return Definition{}, err
	}
	var found []string
	for _, ext := range []string{confExt, listExt} {
		config, err := netconf.ReadFile(fsys, file+ext)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return Definition{}, err
		default:
			found = append(found, string(config))
		}
	}
	if len(found) == 0 {
		return Definition{}, missing
	}
	if key == nil {
		if len(found) > 1 {
			return Definition{}, invalid("", "the mirror has both a .conf and a .conflist: remove one")
		}
		return Definition{Ref: r, Config: found[0]}, nil
	}
	i := slices.IndexFunc(found, func(config string) bool { return digest(config) == key.ConfigSHA256 })
	if i < 0 {
		return Definition{}, errApart
	}
	return Definition{Ref: r, UID: key.UID, Version: key.Version, Resource: key.Resource, Config: found[i]}, nil
}

// readKey reads a .key file. It returns nil if there is none.
func readKey(fsys fs.FS, file string) (*mirrorKey, error) {
	data, err := netconf.ReadFile(fsys, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there need not be one
	}
	if err != nil {
		return nil, err
	}
	key, err := netconf.Decode[mirrorKey](bytes.TrimSpace(data))
	if e := (*netconf.Error)(nil); errors.As(err, &e) {
		named := *e
		named.File = file
		return nil, &named
	}
	return &key, nil
}

// A Mirror is a directory with definitions for [Load], which it writes: a directory for each
// namespace, with the files of its definitions. One Mirror writes to a directory at a time;
// any number of readers see each definition as it was or as it is, wherever the writer stops,
// or are told to try again (CNI code 11).
type Mirror struct {
	Dir string // made by the first Put
}

// ErrLongName is returned for a definition whose name is too long for a file. CNI code 7.
var ErrLongName = fault.New(types.ErrInvalidNetworkConfig, "its name is too long for a file")

// Put writes d, unless the mirror has it, also in the place of a definition that a person wrote.
// It fails as [Ref.Validate] does, with [ErrLongName], and with CNI code 5 if the files cannot be
// written; call it again then. After it returns nil, a loss of power does not undo it.
func (m Mirror) Put(d Definition) error {
	if err := d.Validate(); err != nil {
		return err
	}
	if tooLong(d.Name) {
		return about(d.Ref, ErrLongName)
	}
	if have, err := Load(os.DirFS(m.Dir), d.Ref); err == nil && have == d {
		return nil
	}
	return failed(d.Ref, m.put(d))
}

func (m Mirror) put(d Definition) error {
	dir, err := durable.MakeDir(filepath.Join(m.Dir, d.Namespace), nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, f := range files(d) {
		if f.Data == nil {
			err = removed(dir.Remove(f.Name))
		} else {
			err = dir.WriteFile(f.Name, f.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the definition r if Put has written it, and leaves alone what a person wrote. It
// fails with CNI code 5 if a file cannot be removed. A loss of power may bring the definition back:
// see [Mirror.Refs].
func (m Mirror) Remove(r Ref) error {
	if r.Validate() == nil && !tooLong(r.Name) { // else the mirror has no files of that name
		return failed(r, m.remove(r))
	}
	return nil
}

func (m Mirror) remove(r Ref) error {
	if _, err := os.Lstat(filepath.Join(m.Dir, r.Namespace, r.Name+keyExt)); err != nil {
		return removed(err) // the key is written first, and removed last
	}
	dir, err := durable.OpenDir(filepath.Join(m.Dir, r.Namespace), nil)
	if err != nil {
		return removed(err)
	}
	defer dir.Close()
	for _, f := range slices.Backward(files(Definition{Ref: r})) {
		if err := removed(dir.Remove(f.Name)); err != nil {
			return err
		}
	}
	_ = os.Remove(filepath.Join(m.Dir, r.Namespace)) // unless others are in it
	return nil
}

// Refs returns the definitions that a Mirror has written, those without a .key file excepted,
// which belong to a person. It removes what a writer that was killed has left. A directory that
// cannot be read has none.
func (m Mirror) Refs() (refs []Ref) {
	all, _ := fs.Glob(os.DirFS(m.Dir), "*/*") // the pattern is valid
	for _, file := range all {
		namespace, base := path.Split(file)
		if durable.IsTemp(base) {
			_ = os.Remove(filepath.Join(m.Dir, file)) // it harms nobody
		} else if name, ok := strings.CutSuffix(base, keyExt); ok {
			refs = append(refs, Ref{Namespace: path.Clean(namespace), Name: name})
		}
	}
	return refs
}

// failed returns err, if there is one, as one about the definition r, with CNI code 5.
func failed(r Ref, err error) error {
	if err == nil {
		return nil
	}
	return about(r, fault.Or(types.ErrIOFailure, err))
}

// removed returns nil if err says that there is no such file.
func removed(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// The extensions of the files.
const (
	confExt = ".conf"
	listExt = ".conflist"
	keyExt  = ".key"
)

// A mirrorKey is what the configuration does not say. The digest tells whether it is about
// the configuration beside it: the two files are not replaced at once.
type mirrorKey struct {
	UID          string `json:"uid,omitempty"`
	Version      string `json:"resourceVersion,omitempty"`
	Resource     string `json:"resourceName,omitempty"`
	ConfigSHA256 string `json:"configSHA256"`
}

// A file is one of a namespace's directory, to be written.
type file struct {
	Name string
	Data []byte // nil: the file is to be removed
}

// tooLong reports whether Linux has no file for a definition of this name.
func tooLong(name string) bool { return len(name+listExt) > 255 }

// digest returns the digest of a configuration.
func digest(config string) string {
	sum := sha256.Sum256([]byte(config))
	return hex.EncodeToString(sum[:])
}

// files returns the files of d in the order in which to replace them, each atomically: a reader
// then never takes one version of the definition for another. They are removed in the opposite
// order.
func files(d Definition) []file {
	ext, other := confExt, listExt
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(d.Config), &object) == nil && object["plugins"] != nil {
		ext, other = other, ext
	}
	key, err := json.Marshal(mirrorKey{d.UID, d.Version, d.Resource, digest(d.Config)})
	if err != nil {
		panic(err) // strings have JSON
	}
	return []file{
		{Name: d.Name + keyExt, Data: append(key, '\n')},
		{Name: d.Name + ext, Data: append([]byte{}, d.Config...)},
		{Name: d.Name + other},
	}
}
