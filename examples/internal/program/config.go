package program

import (
	"cmp"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
)

// Decode decodes what every command needs of a configuration into a T. It
// looks past what is wrong in the rest: a DEL must work from its record when
// the configuration has been broken since. What attaching needs is for
// [netconf.Decode], which does not.
func Decode[T any](stdin []byte) (T, error) {
	strict, err := netconf.Decode[T](stdin)
	if err == nil {
		return strict, nil
	}
	var lenient *T // which null leaves nil
	if json.Unmarshal(stdin, &lenient) == nil && lenient != nil {
		return *lenient, nil
	}
	return strict, err
}

// StateDir is the directory of the records that key of the network's
// configuration names, or fallback where it names none. It must be a plugin's
// own: it fails with [netconf.ErrInvalid] for a path that depends on the
// working directory, and for the runtime's own directories.
func StateDir(network, key, dir, fallback string) (string, error) {
	dir = filepath.Clean(cmp.Or(dir, fallback))
	switch {
	case !filepath.IsAbs(dir):
		return "", Invalid(network, key, errors.New("not an absolute path"))
	case dir == "/var/lib/cni" || dir == "/var/lib/cni/results":
		return "", Invalid(network, key, errors.New("the runtime keeps its own state there"))
	}
	return dir, nil
}

// Complete gives the network n the name and the version that it lacks: those
// of the plugin that delegates to it.
func Complete(n netconf.Network, name, cniVersion string) (netconf.Network, error) {
	edits := []netconf.Edit{netconf.Default("name", name)}
	if !n.Has("cniVersions") {
		edits = append(edits, netconf.Default("cniVersion", cniVersion))
	}
	return n.Edit(edits...)
}

// Invalid says that key of the network's configuration is invalid because of
// err.
func Invalid(network, key string, err error) error {
	return &netconf.Error{Kind: netconf.ErrInvalid, Network: network, Key: key, Err: err}
}

// A Duration is written as "25s" in a configuration.
type Duration time.Duration

// UnmarshalText reads what [time.ParseDuration] does.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Valid reads the runtime's list of valid attachments from the configuration
// of a GC. Nil is none, which is not an empty one. An element that names no
// attachment fails with [netconf.ErrInvalid]: whatever it was meant to keep
// would be deleted.
func Valid(stdin []byte) ([]types.GCAttachment, error) {
	conf, err := netconf.Decode[struct {
		Name   string               `json:"name"`
		Valid  []types.GCAttachment `json:"cni.dev/valid-attachments"`
		Legacy []types.GCAttachment `json:"cni.dev/attachments"` // what libcni 1.1 called it
	}](stdin)
	key := "cni.dev/valid-attachments"
	if conf.Valid == nil {
		key, conf.Valid = "cni.dev/attachments", conf.Legacy
	}
	for _, a := range conf.Valid {
		if a.ContainerID == "" || a.IfName == "" {
			return nil, Invalid(conf.Name, key, errors.New("an element lacks containerID or ifname"))
		}
	}
	return conf.Valid, err
}
