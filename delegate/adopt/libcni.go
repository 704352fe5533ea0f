package adopt

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// kind is what libcni says of an entry of its cache.
const kind = "cniCacheV1"

// An entry is a file in the cache of libcni.
type entry struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"`
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns,omitempty"`
	Args           [][2]string                `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`

	path string
}

// file is the name of the file of e. A dash may be part of a name or separate two,
// so that the names in the file count.
func (e *entry) file() string {
	return e.NetworkName + "-" + e.ContainerID + "-" + e.IfName
}

// cache is the directory of the entries of a cache directory.
func cache(dir string) string { return filepath.Join(dir, "results") }

// libcni lists the attachments to the networks Primary in libcni's cache. It reports whether
// to go on.
func (n Node) libcni(yield func(lifecycle.Adoption, error) bool) bool {
	if n.CacheDir == "" {
		return true
	}
	mayBe := func(file string) bool {
		return slices.ContainsFunc(n.Primary, func(name string) bool { return strings.HasPrefix(file, name+"-") })
	}
	for f, err := range files(n.Root, cache(n.CacheDir), mayBe) {
		a, err := n.primary(f, err)
		if !errors.Is(err, errNotPrimary) && !yield(a, err) {
			return false
		}
	}
	return true
}

// Attachment returns what [Node.Attachments] has of one interface of a container in
// libcni's cache. It looks at one file for each network of Primary, and fails with
// [fs.ErrNotExist] if none is that of the attachment.
func (n Node) Attachment(containerID, ifName string) (lifecycle.Adoption, error) {
	for _, network := range n.Primary {
		name := (&entry{NetworkName: network, ContainerID: containerID, IfName: ifName}).file()
		path := filepath.Join(cache(n.CacheDir), name)
		if n.CacheDir == "" || filepath.Base(path) != name {
			continue
		}
		a, err := n.primary(readFile(n.Root, path))
		if err == nil && (a.Key.ContainerID != containerID || a.Key.IfName != ifName) {
			err = errNotPrimary // a dash is at another place
		}
		if !errors.Is(err, errNotPrimary) && !errors.Is(err, fs.ErrNotExist) {
			return a, err
		}
	}
	return lifecycle.Adoption{}, failed(cache(n.CacheDir), fs.ErrNotExist)
}

var errNotPrimary = errors.New("an attachment to another network")

// primary returns the adoption of an entry in the file f, or err if that could not be read.
// It fails with errNotPrimary if the entry is not of a network that ours has replaced.
func (n Node) primary(f file, err error) (lifecycle.Adoption, error) {
	e, err := readEntry(f, err)
	if err == nil && !slices.Contains(n.Primary, e.NetworkName) {
		err = errNotPrimary
	}
	var attached delegate.Attached
	if err == nil {
		attached, err = e.attached()
	}
	if err == nil && has(attached.Network, func(typ string) bool { return slices.Contains(n.Own, typ) }) {
		err = errNotPrimary
	}
	if err != nil {
		return lifecycle.Adoption{}, err
	}
	return adoption(n.Root, scratch.Key{Network: n.Network, ContainerID: e.ContainerID, IfName: e.IfName}, []delegate.Attached{attached}, e.path), nil
}

// has reports whether a plugin of n has such a type.
func has(n netconf.Network, such func(typ string) bool) bool {
	return slices.ContainsFunc(n.Plugins(), func(p netconf.Plugin) bool { return such(p.Type()) })
}

// readEntry reads the entry in the file f, without its configuration. It fails with err if
// that is not nil.
func readEntry(f file, err error) (*entry, error) {
	if err != nil {
		return nil, err
	}
	e := &entry{path: f.path}
	if err := json.Unmarshal(f.data, e); err != nil {
		return nil, failed(f.path, fmt.Errorf("incomplete, or not an entry of libcni's cache: %w", err))
	}
	switch {
	case e.Kind != kind:
		return nil, failed(f.path, fmt.Errorf("of kind %q, want %q", e.Kind, kind))
	case e.file() != filepath.Base(f.path):
		return nil, failed(f.path, errors.New("the file name does not match the network, container and interface in it"))
	}
	if err := cmp.Or(utils.ValidateContainerID(e.ContainerID), utils.ValidateInterfaceName(e.IfName)); err != nil {
		return nil, failed(f.path, err)
	}
	e.Result = notNull(e.Result)
	return e, nil
}

// notNull returns result, or nil for the JSON null: there is no result.
func notNull(result json.RawMessage) json.RawMessage {
	if bytes.Equal(result, []byte("null")) {
		return nil
	}
	return result
}

// attached is the attachment that e is of.
func (e *entry) attached() (delegate.Attached, error) {
	network, err := netconf.Parse(e.Config)
	if err == nil && network.Name() != e.NetworkName {
		err = fmt.Errorf("the configuration is of network %q", network.Name())
	}
	if err != nil {
		return delegate.Attached{}, failed(e.path, err)
	}
	args := make([]string, len(e.Args))
	for i, arg := range e.Args {
		args[i] = arg[0] + "=" + arg[1]
	}
	a := delegate.Attached{
		Attachment: delegate.Attachment{
			Network: network, ContainerID: e.ContainerID, NetNS: e.NetNS, IfName: e.IfName,
			Args: strings.Join(args, ";"), CapabilityArgs: e.CapabilityArgs,
		},
		Result: e.Result, Added: e.Result != nil,
	}
	var undecoded *delegate.Error
	if _, err := a.ParsedResult(); a.Result != nil && errors.As(err, &undecoded) {
		return delegate.Attached{}, failed(e.path, undecoded.Err) // it was no ADD that failed
	}
	if a.NetNS == "" { // libcni 1.1 and before did not write it down
		a.NetNS = sandbox(a)
	}
	return a, nil
}
