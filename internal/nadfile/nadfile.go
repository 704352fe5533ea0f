// Package nadfile is the form of NetworkAttachmentDefinitions in files. A mirror has a
// directory for each namespace. In it are, of each definition,
//
//	<name>.conf or .conflist   its configuration, byte for byte: a lone plugin, or a list
//	<name>.key                 a [Key], the JSON of what the configuration does not say
//
// A definition without a key is one that a person wrote.
package nadfile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
)

// The extensions of the files.
const (
	ConfExt = ".conf"
	ListExt = ".conflist"
	KeyExt  = ".key"
)

// A Key is what the configuration does not say. The digest tells whether it is about the
// configuration beside it: the two files are not replaced at once.
type Key struct {
	UID          string `json:"uid,omitempty"`
	Version      string `json:"resourceVersion,omitempty"`
	Resource     string `json:"resourceName,omitempty"`
	ConfigSHA256 string `json:"configSHA256"`
}

// A File is a file of a mirror, to be written.
type File struct {
	Name string // its path below the directory of the mirror
	Data []byte // nil: the file is to be removed
}

// TooLong reports whether Linux has no file for a definition of this name.
func TooLong(name string) bool { return len(name+ListExt) > 255 }

// Digest returns the digest of a configuration.
func Digest(config string) string {
	sum := sha256.Sum256([]byte(config))
	return hex.EncodeToString(sum[:])
}

// Files returns the files of a definition, and sets the digest of k. Replace each file
// atomically, in this order: a reader then never takes one version of the definition for
// another, wherever the writer stops. To remove the definition, remove the files in the
// opposite order. The namespace and the name must be valid, and the name not [TooLong].
func Files(namespace, name, config string, k Key) []File {
	ext, other := ConfExt, ListExt
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(config), &object) == nil && object["plugins"] != nil {
		ext, other = other, ext
	}
	k.ConfigSHA256 = Digest(config)
	key, err := json.Marshal(k)
	if err != nil {
		panic(err) // strings have JSON
	}
	file := path.Join(namespace, name)
	return []File{
		{Name: file + KeyExt, Data: append(key, '\n')},
		{Name: file + ext, Data: append([]byte{}, config...)},
		{Name: file + other},
	}
}
