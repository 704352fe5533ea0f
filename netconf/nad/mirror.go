package nad

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/nadfile"
	"github.com/metacni/metacni/netconf"
)

// Load reads the definition r from a mirror: a directory that has a file
// <namespace>/<name>.conf or .conflist with the Config of each definition. Next to it,
// <name>.key holds what else is known; package delegate/kube keeps such a mirror. Without
// a .key file the definition is one that a person wrote, and has neither UID, Version nor
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
	missing := &netconf.Error{Kind: netconf.ErrNotFound, File: file + nadfile.ConfExt, Err: fs.ErrNotExist}
	if nadfile.TooLong(r.Name) {
		return Definition{}, missing
	}
	key, err := readKey(fsys, file+nadfile.KeyExt)
	if err != nil {
		return Definition{}, err
	}
	var found []string
	for _, ext := range []string{nadfile.ConfExt, nadfile.ListExt} {
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
	i := slices.IndexFunc(found, func(config string) bool { return nadfile.Digest(config) == key.ConfigSHA256 })
	if i < 0 {
		return Definition{}, errApart
	}
	return Definition{Ref: r, UID: key.UID, Version: key.Version, Resource: key.Resource, Config: found[i]}, nil
}

// readKey reads a .key file. It returns nil if there is none.
func readKey(fsys fs.FS, file string) (*nadfile.Key, error) {
	data, err := netconf.ReadFile(fsys, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there need not be one
	}
	if err != nil {
		return nil, err
	}
	key, err := netconf.Decode[nadfile.Key](bytes.TrimSpace(data))
	if e := (*netconf.Error)(nil); errors.As(err, &e) {
		named := *e
		named.File = file
		return nil, &named
	}
	return &key, nil
}
