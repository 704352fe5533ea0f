package nad

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
)

// A mirror has a directory for each namespace. In it are, of each definition,
//
//	<name>.conf or .conflist   its Config, byte for byte: a lone plugin, or a list
//	<name>.key                 a sidecar
//
// A definition without a sidecar is one that a person wrote.

// A sidecar is what the configuration does not say. The digest tells whether it is
// about the configuration beside it: the two files are not replaced at once.
type sidecar struct {
	UID          string `json:"uid,omitempty"`
	Version      string `json:"resourceVersion,omitempty"`
	Resource     string `json:"resourceName,omitempty"`
	ConfigSHA256 string `json:"configSHA256"`
}

const keyExt = ".key"

var configExts = []string{".conf", ".conflist"} //nolint:gochecknoglobals // never written

// A File is a file of a mirror, to be written.
type File struct {
	Name string // its path below the directory of the mirror
	Data []byte // nil: the file is to be removed
}

// Files returns the files of d in a mirror, for whoever keeps one. Replace each
// atomically, in this order: [Load] then never takes one version of d for another,
// wherever the writer stops. To remove d from the mirror, remove the files in the
// opposite order. Files fails as [Ref.Validate] does, and with [netconf.ErrInvalid] for
// a name that is too long for a file.
func (d Definition) Files() ([]File, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if d.tooLong() {
		return nil, about(d.Ref, invalid("name", "too long for the name of a file"))
	}
	ext, other := configExts[0], configExts[1]
	if keys, err := netconf.Decode[map[string]json.RawMessage]([]byte(d.Config)); err == nil && keys["plugins"] != nil {
		ext, other = other, ext
	}
	key, err := json.Marshal(sidecar{UID: d.UID, Version: d.Version, Resource: d.Resource, ConfigSHA256: digest([]byte(d.Config))})
	if err != nil {
		return nil, about(d.Ref, err)
	}
	file := path.Join(d.Namespace, d.Name)
	return []File{
		{Name: file + keyExt, Data: append(key, '\n')},
		{Name: file + ext, Data: append([]byte{}, d.Config...)},
		{Name: file + other},
	}, nil
}

// tooLong reports whether Linux has no file names for r.
func (r Ref) tooLong() bool { return len(r.Name+configExts[1]) > 255 }

func digest(config []byte) string {
	sum := sha256.Sum256(config)
	return hex.EncodeToString(sum[:])
}

// Load reads the definition r from a mirror: a directory that has a file
// <namespace>/<name>.conf or .conflist with the Config of each definition. Beside it
// <name>.key has what else is known, see [Definition.Files]. Without that the
// definition is one that a person wrote, and has neither UID, Version nor Resource.
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
var errApart = errors.New("its files in the mirror do not belong together: one is being replaced, or has been changed by hand")

func load(fsys fs.FS, r Ref) (Definition, error) {
	file := path.Join(r.Namespace, r.Name)
	missing := &netconf.Error{Kind: netconf.ErrNotFound, File: file + configExts[0], Err: fs.ErrNotExist}
	if r.tooLong() {
		return Definition{}, missing
	}
	key, err := readKey(fsys, file+keyExt)
	if err != nil {
		return Definition{}, err
	}
	var found []string
	for _, ext := range configExts {
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
	i := slices.IndexFunc(found, func(config string) bool { return digest([]byte(config)) == key.ConfigSHA256 })
	if i < 0 {
		return Definition{}, &Error{Err: errApart, code: types.ErrTryAgainLater}
	}
	return Definition{Ref: r, UID: key.UID, Version: key.Version, Resource: key.Resource, Config: found[i]}, nil
}

// readKey reads a sidecar. It returns nil if there is none.
func readKey(fsys fs.FS, file string) (*sidecar, error) {
	data, err := netconf.ReadFile(fsys, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there need not be one
	}
	if err != nil {
		return nil, err
	}
	key, err := netconf.Decode[sidecar](bytes.TrimSpace(data))
	if e := (*netconf.Error)(nil); errors.As(err, &e) {
		named := *e
		named.File = file
		return nil, &named
	}
	return &key, nil
}
